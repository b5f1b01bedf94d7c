"""`python -m requirements.audit`: are versions in the locks known to be vulnerable? pip-audit asks; this says what its
answer is worth.

A vulnerability fails (exit code 1). What could not be looked up does not, for a machine without a way to the databases
would never pass: it is said, by name, and never counted as found safe. pip-audit alone exits with 0 also where it has
looked up nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

TOOL = "pip-audit==2.10.1"
SOCKET_SECONDS, SECONDS = 10, 300
LOCKS = tuple(Path(__file__).parent / f"{name}.txt" for name in ("serve", "gpu", "develop"))
LISTED = 8


@dataclass(frozen=True)
class Database:
    """Who is asked, by what pip-audit calls it, and options for that."""

    name: str
    options: tuple[str, ...] = ()


DATABASES = (Database("pypi"), Database("osv"))


@dataclass
class Answer:
    """What one database said of the locked versions: `name==version`, or a name alone where it was not looked up."""

    looked_up: set[str] = field(default_factory=set)
    vulnerable: dict[str, str] = field(default_factory=dict)
    """What is known of each, in words."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Why each was not looked up."""
    failed: str | None = None
    """Why nothing was asked at all."""


def ask(locks: Sequence[Path], database: Database) -> Answer:
    """Runs pip-audit, which uv keeps apart from this environment."""
    command = [
        *(sys.executable, "-m", "uv", "tool", "run", "--quiet", "--from", TOOL, "pip-audit"),
        *("--disable-pip", "--no-deps", "--format", "json", "--progress-spinner", "off"),
        *("--timeout", str(SOCKET_SECONDS), "--vulnerability-service", database.name, *database.options),
        *(part for lock in locks for part in ("--requirement", str(lock))),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Answer(failed=f"no answer within {SECONDS} s")
    try:
        return read(json.loads(done.stdout))
    except ValueError:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return Answer(failed=lines[-1].strip() if lines else f"{TOOL} ended with {done.returncode}")


def read(document: dict[str, Any]) -> Answer:
    """pip-audit's JSON."""
    answer = Answer()
    for one in document["dependencies"]:
        if "skip_reason" in one:
            answer.skipped[one["name"]] = one["skip_reason"]
            continue
        version = f"{one['name']}=={one['version']}"
        answer.looked_up.add(version)
        for vulnerability in one["vulns"]:
            fixed = ", ".join(vulnerability["fix_versions"]) or "no version yet"
            names = ", ".join([vulnerability["id"], *vulnerability.get("aliases", ())])
            said = f"{names}: fixed in {fixed}"
            answer.vulnerable[version] = "; ".join(filter(None, (answer.vulnerable.get(version), said)))
    return answer


def audit(locks: Sequence[Path], databases: Iterable[Database]) -> int:
    """Asks one database after the other until one has looked something up, and says what came of it; the exit code."""
    for database in databases:
        answer = ask(locks, database)
        if answer.vulnerable:
            typer.echo(f"VULNERABLE, says {database.name}:", err=True)
            for version, said in sorted(answer.vulnerable.items()):
                typer.echo(f"  {version}: {said}", err=True)
            return 1
        if answer.looked_up:
            typer.echo(
                f"{len(answer.looked_up)} locked versions looked up in {database.name}: none known as vulnerable"
            )
            if answer.skipped:
                typer.echo(f"not looked up, so nothing is known of them: {_listed(answer.skipped)}")
            return 0
        reason = answer.failed or next(iter(answer.skipped.values()), "the locks are empty")
        typer.echo(f"{database.name} could not be asked: {reason}")
    typer.echo(
        "NOT AUDITED: no database of vulnerabilities could be reached, so nothing is known of the locked versions"
    )
    return 0


def _listed(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    return ", ".join(found[:LISTED]) + more


def main(
    locks: Annotated[list[Path] | None, typer.Argument(help="Locks, by default all.", show_default=False)] = None,
    osv_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask a database there that speaks OSV's protocol, and no other.")
    ] = None,
) -> None:
    """Look the locked versions up among known vulnerabilities. Exit code 1 where one is found."""
    databases = DATABASES if osv_url is None else (Database("osv", ("--osv-url", osv_url)),)
    raise typer.Exit(audit(locks or LOCKS, databases))


if __name__ == "__main__":
    typer.run(main)
