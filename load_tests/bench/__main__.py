"""The command line: `make bench`, or `python -m load_tests.bench`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from load_tests.bench import machine, memory, plot, report, scaling, throughput, wrk
from load_tests.bench.comparison import Comparison
from load_tests.bench.contenders import ROOT
from load_tests.bench.environments import make_cache
from load_tests.bench.job import WrongAnswer
from load_tests.bench.processes import StartFailed
from load_tests.bench.records import Bare, Memory, Part, Peers, Scaling
from load_tests.bench.report import Findings
from load_tests.bench.wrk import RunFailed, WrkMissing

EXAMPLES = """
python -m load_tests.bench                           everything, about 20 minutes; writes docs/benchmark.md
python -m load_tests.bench --quick                   everything once and briefly, to see that it works
python -m load_tests.bench --only bare --only memory these parts, and docs/benchmark.md from them and the last others
python -m load_tests.bench --report                  docs/benchmark.md anew from what was measured last
"""
DOCS = ROOT / "docs"
RESULTS = ROOT / "results" / "bench"


@dataclass(frozen=True)
class Scale:
    """How much is measured: rounds in turns, seconds of a run, longest request, requests of the memory part."""

    rounds: int = 5
    seconds: int = 3
    longest: int = scaling.LONGEST
    passes: int = 3
    shapes: int = 5000
    every_setting: bool = True


FULL = Scale()
QUICK = Scale(rounds=1, seconds=1, longest=512, passes=1, shapes=300, every_setting=False)


class Name(StrEnum):
    """A part of the benchmark."""

    PEERS = "peers"
    BARE = "bare"
    SCALING = "scaling"
    MEMORY = "memory"


class Progress:
    """One line for each measurement, with the time since the start."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def __call__(self, line: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self.began), 60)
        print(f"[{minutes:2}:{seconds:02}] {line}", flush=True)


cli = typer.Typer(add_completion=False, rich_markup_mode=None)


@cli.command(
    epilog="\b\nExamples:\n" + "\n".join("  " + line for line in EXAMPLES.strip().splitlines()),
    context_settings={"max_content_width": 160, "help_option_names": ["-h", "--help"]},
)
def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="Everything once and briefly; writes results/bench/quick only.")
    ] = False,
    only: Annotated[list[Name] | None, typer.Option(help="This part; may be given several times.")] = None,
    report_only: Annotated[bool, typer.Option("--report", help="Measure nothing, write the page anew.")] = False,
) -> None:
    """Measure this service beside mosec, LitServe, BentoML and Ray Serve, beside the bare model, against length, and
    its memory, and write docs/benchmark.md.

    The peers are installed into .bench/, each in a virtual environment of its own, with pinned versions. The client is
    wrk, the Debian package of that name. All load stays on the loopback interface; Ray Serve's own services listen on
    every interface while it is measured.
    """
    say = Progress()
    results, docs = (RESULTS / "quick", RESULTS / "quick") if quick else (RESULTS, DOCS)
    try:
        wrk.version()
        if not report_only:
            _warn_if_busy(say)
            make_cache()
            for name in only or list(Name):
                _measure(PARTS[name], QUICK if quick else FULL, say).write(results)
        page = _write(results, docs)
    except (WrkMissing, RunFailed, StartFailed, WrongAnswer) as error:
        print(f"failed: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    say(f"written: {page.relative_to(ROOT)}")


def _warn_if_busy(say: Progress) -> None:
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"the load average is {load:.1f}: this machine has other work, and what is measured will say less")


Measure = Callable[[Scale, Progress], tuple[type[Part], dict[str, Any]]]


def _measure(measure: Measure, scale: Scale, say: Progress) -> Part:
    date, busy, began = datetime.now(UTC), os.getloadavg()[0], time.monotonic()
    commit = machine.commit()
    kind, found = measure(scale, say)
    if machine.commit() != commit:  # servers are started anew in every turn
        commit += f" to {machine.commit()}"
    common = {"date": f"{date:%Y-%m-%d %H:%M}", "commit": commit, "busy": busy, "seconds": time.monotonic() - began}
    return kind.model_validate(common | found)


def _peers(scale: Scale, say: Progress) -> tuple[type[Part], dict[str, Any]]:
    comparison = Comparison(say, rounds=scale.rounds, seconds=scale.seconds)
    ready = comparison.choose(comparison.prepare(), try_all=scale.every_setting)
    comparison.measure(ready)
    return Peers, {
        "trials": comparison.trials,
        "chosen": {
            name: {connections: setting.label for connections, setting in by_connections.items()}
            for name, by_connections in comparison.chosen.items()
        },
        "samples": comparison.samples,
        "errors": dict(comparison.errors),
        "resident": comparison.resident,
        "model_us": comparison.model_us,
        "absent": comparison.absent,
        "run_seconds": scale.seconds,
    }


def _bare(scale: Scale, say: Progress) -> tuple[type[Part], dict[str, Any]]:
    rows = throughput.measure(say, rounds=scale.rounds, seconds=scale.seconds)
    about = {"connections": throughput.CONNECTIONS, "heads": throughput.HEADS, "width": throughput.WIDTH}
    return Bare, {"rows": rows, **about}


def _scaling(scale: Scale, say: Progress) -> tuple[type[Part], dict[str, Any]]:
    points = scaling.measure(say, passes=scale.passes, seconds=1, longest=scale.longest)
    return Scaling, {"points": points, "heads": scaling.HEADS, "width": scaling.WIDTH}


def _memory(scale: Scale, say: Progress) -> tuple[type[Part], dict[str, Any]]:
    requests, resident, started, processes = memory.measure(say, requests=scale.shapes)
    found = {"requests": requests, "resident": resident, "started": started, "processes": processes}
    return Memory, {**found, "largest": memory.LARGEST, "connections": memory.CONNECTIONS}


PARTS: dict[Name, Measure] = {
    Name.PEERS: _peers,
    Name.BARE: _bare,
    Name.SCALING: _scaling,
    Name.MEMORY: _memory,
}


def _write(results: Path, docs: Path) -> Path:
    found = Findings(
        machine.rows(), Peers.read(results), Bare.read(results), Scaling.read(results), Memory.read(results)
    )
    if found.scaling:
        plot.draw(found.scaling.points, docs / report.PICTURE)
    page = docs / "benchmark.md"
    page.write_text(report.render(found))
    return page


if __name__ == "__main__":
    cli(prog_name="python -m load_tests.bench")
