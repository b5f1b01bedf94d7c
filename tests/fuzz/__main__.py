"""`python -m tests.fuzz`: atheris makes bodies that reach code which none before it reached. What comes of them must be
an answer or a refusal, and leave no memory behind."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.fuzz.formats import FORMATS
from tests.fuzz.memory import growth

FOLDER = Path(__file__).parents[2] / ".fuzz"
LONGEST, RESIDENT_MIB, SLOW_SECONDS, MEMORY_SECONDS = 4096, 1024, 10, 20
FOUND = re.compile(r"^#(\d+)\s+DONE\s+cov: (\d+) .*corp: (\d+)/", re.MULTILINE)

app = typer.Typer(add_completion=False)
console = Console(highlight=False)


@app.command()
def main(
    formats: Annotated[
        list[str] | None, typer.Argument(help=f"{', '.join(FORMATS)}; by default all.", show_default=False)
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.5, help="For each format.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Of the fuzzer; 0 takes another each time.")] = 0,
    folder: Annotated[
        Path, typer.Option(help="Bodies that reached something, and those that failed, stay here.")
    ] = FOLDER,
    jobs: Annotated[int, typer.Option(min=1, help="Formats fuzzed at a time.")] = 1,
    run: Annotated[
        Path | None, typer.Option(help="Run this one body through the format instead.", show_default=False)
    ] = None,
) -> None:
    """Fuzz body formats, guided by coverage, going on from where the last time ended.

    Fails (exit code 1) on whatever is neither an answer nor a refusal, on what takes longer than 10 s or a gigabyte,
    and where memory grows while all bodies found are read again and again. A body that fails is kept, and tried first
    the next time.

    [dim]Examples:[/dim] python -m tests.fuzz --seconds 300 npz  |  python -m tests.fuzz npz --run .fuzz/npz/failed/x
    """
    warnings.filterwarnings("ignore", "Duplicate name", UserWarning)  # an archive that is wrong on purpose
    chosen = formats or [*FORMATS]
    unknown = [name for name in chosen if name not in FORMATS]
    if unknown:
        console.print(f"[red]unknown format {', '.join(unknown)}[/red]; known: {', '.join(FORMATS)}")
        raise typer.Exit(2)
    if run is not None:
        for name in chosen:
            FORMATS[name].target(run.read_bytes())
        return
    table = Table("format")
    for heading in ("runs", "reached", "bodies", "rounds", "traced", "resident"):
        table.add_column(heading, justify="right")
    well = True
    with console.status(f"fuzzing {', '.join(chosen)}") as status, ThreadPoolExecutor(jobs) as pool:
        for name, done in [(name, pool.submit(_fuzz, name, folder / name, seconds, seed)) for name in chosen]:
            reached = done.result()
            if reached is None:
                well = False
                continue
            status.update(f"reading {name} again and again")
            bodies = [path.read_bytes() for path in sorted((folder / name / "corpus").iterdir())]
            found = growth(FORMATS[name].target, bodies, min(seconds / 2, MEMORY_SECONDS))
            table.add_row(name, *reached, f"{found.rounds:,}", f"{found.traced:,}", f"{found.resident:,}")
            if not found.flat:
                console.print(f"[red]{name} leaves memory behind[/red]: {found}", soft_wrap=True)
                well = False
    console.print(table)
    raise typer.Exit(int(not well))


def _fuzz(name: str, home: Path, seconds: float, seed: int) -> tuple[str, ...] | None:
    """Runs, what they reached, and how many bodies that took; None where one failed."""
    corpus, kept = home / "corpus", home / "failed"
    for one in (corpus, kept):
        one.mkdir(parents=True, exist_ok=True)
    chosen = FORMATS[name]
    for body in chosen.seeds:
        (corpus / hashlib.sha1(body, usedforsecurity=False).hexdigest()).write_bytes(body)
    for path in sorted(kept.iterdir()):
        chosen.target(path.read_bytes())
    words = home / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in (*chosen.words, b"\x00\xff")))  # none is an error
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "tests.fuzz.worker", name, str(corpus)),
            *(f"-max_total_time={max(1, round(seconds))}", f"-seed={seed}", f"-dict={words}", f"-max_len={LONGEST}"),
            *(f"-rss_limit_mb={RESIDENT_MIB}", f"-timeout={SLOW_SECONDS}", f"-artifact_prefix={kept}/"),
            "-print_final_stats=0",
        ],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=seconds + 120,
        check=False,
    )
    report = FOUND.search(done.stderr)
    if done.returncode or report is None:
        console.print(f"[red]{name} failed[/red]", done.stderr[-6000:], markup=True, soft_wrap=True)
        console.print(f"kept in {kept}; again: python -m tests.fuzz {name} --run FILE", soft_wrap=True)
        return None
    return report.groups()


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    app()
