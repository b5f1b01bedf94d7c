"""A run's report: tables for people, of what summary.json has for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from load_tests.verdict import Check


def written(summary: Mapping[str, Any], checks: Sequence[Check]) -> str:
    """Markdown."""
    parts = summary["parts"]
    invalid = summary["invalid"]
    lines = [
        f"# {summary['scenario']}: {summary['about']}",
        "",
        f"{summary['at']}, commit {summary['commit']}, seed {summary['seed']}, on {', '.join(summary['providers'])}."
        + (f" Capacity: {summary['capacity']:g} answers a second." if summary["capacity"] else ""),
        "",
    ]
    if invalid:
        lines += ["**INVALID: the generator had no time left, so nothing is known of the service's speed.**", ""]
        lines += [*(f"- {reason}" for reason in invalid), ""]
    lines += [*(f"- {finding}" for finding in summary["findings"]), ""] if summary["findings"] else []
    lines += _table(
        ("check", "", "found"),
        ((check.name, _word(check, bool(invalid)), check.found) for check in checks),
    )
    lines += _table(
        (
            "part",
            "s",
            "meant/s",
            "sent/s",
            "200/s",
            "dropped",
            "lag p99 ms",
            "service cores",
            "generator cores",
            "jobs/batch",
        ),
        (
            (
                part["name"],
                f"{part['seconds']:.0f}",
                _number(part["rate"]),
                _number(part["sent"] / part["seconds"]),
                _number(part["answered_200"] / part["seconds"]),
                part["dropped"],
                _number(part["lag_p99_ms"]),
                _number(part["service_cores"], 2),
                _number(part["generator_cores"], 2),
                _number(part["jobs_per_batch"], 2),
            )
            for part in parts
        ),
    )
    lines += ["Milliseconds from the moment a request was due:", ""]
    lines += _table(
        ("part", "request", "count", "failed", "p50", "p95", "p99", "max", "mean bytes"),
        (
            (
                part["name"],
                row["name"],
                row["count"],
                row["failed"],
                *(_number(row[f"{key}_ms"], 1) for key in ("p50", "p95", "p99", "max")),
                f"{row['mean_bytes']:,}",
            )
            for part in parts
            for row in part["requests"]
        ),
    )
    service = summary["service"]
    stages = ", ".join(f"{stage} {value:g}" for stage, value in service["stage_means_ms"].items())
    lines += [
        f"The clients saw {_counts(summary['sent'])}; the service counted {_counts(summary['told'])}.",
        f"It ran {service['batches']:,} batches of {service['jobs_per_batch']} jobs in the mean. Mean ms: {stages}.",
    ]
    if memory := service["resident_mb"]:
        files = service["open_files"]
        lines += [
            f"Resident memory {memory['first']} to {memory['last']} MB, {service['resident_mb_per_minute']} MB a "
            f"minute; open files {files['before']} before and {files['after']} after."
        ]
    lines += [f"- {count} x {reason}" for reason, count in summary["reasons"].items()]
    return "\n".join(lines) + "\n"


def _word(check: Check, invalid: bool) -> str:
    if check.speed and invalid:
        return "not judged"
    return "passed" if check.passed else "FAILED"


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _counts(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} x {status}" for status, count in statuses.items()) or "nothing"


def _table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    body = [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|", *body, ""]
