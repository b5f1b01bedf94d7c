"""What a run says: whether its figures mean anything, whether the counts agree, and whether limits were kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.slo import LIMITS
from load_tests.report import LEFT, Part

LAG_MS = 10.0
GENERATOR_CPU = 0.9
"""Of a core."""
SLO_MS = {limit.size: float(limit.seconds) * 1e3 for limit in LIMITS}
GOODPUT = 0.8
DRIFT = 0.2
GROWTH = 1.0
"""MB a minute."""
FILES = 10
"""Files that libraries may have opened for good at the first use of something."""
OF_LEFT = {"200", "499", "429", "503"}
"""What a request may count as whose client left: it was answered before, or nobody noticed in time; it was given up; or
it had been refused already, as there was too much to do."""
SETTLED = 600.0
"""Seconds below which memory and latency say nothing of their drift."""


@dataclass(frozen=True)
class Check:
    """`speed`: means something only where the run is valid."""

    name: str
    passed: bool
    found: str
    speed: bool = False


def promised(part: Part) -> bool:
    """Whether a step was as fast as promised: p95 of each size within the limit, nothing dropped or refused."""
    slow = (
        found * 1e3 > limit
        for size, limit in SLO_MS.items()
        if (found := part.percentile(0.95, f"[{size} ")) is not None
    )
    return not part.dropped and set(part.statuses) <= {"200"} and not any(slow)


def invalid(parts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Why the figures say more of the generator than of the service: names, with what was found where."""
    reasons = []
    for part in parts:
        lag, cpu = part["lag_p99_ms"], part["generator_cores"]
        if lag is not None and lag > LAG_MS:
            reasons.append(f"schedule-lag: p99 of {lag:.1f} ms in {part['name']!r}, above {LAG_MS:g} ms")
        if part["judged"] and cpu is not None and cpu > GENERATOR_CPU:
            reasons.append(f"generator-cpu: {cpu:.0%} of a core in {part['name']!r}, above {GENERATOR_CPU:.0%}")
    return reasons


def reconcile(sent: Mapping[str, int], told: Mapping[str, int]) -> list[str]:
    """Where the counts of the clients and of the service differ; empty where they agree exactly.

    A request that its client did not wait for is counted once, as one of `OF_LEFT`: which, only the service can say.
    """
    differences = []
    over = Counter({status: told.get(status, 0) - sent.get(status, 0) for status in {*told, *sent} - {LEFT, "0"}})
    for status, more in sorted(over.items()):
        if more < 0 or (more > 0 and status not in OF_LEFT):
            differences.append(f"{status}: the clients saw {sent.get(status, 0)}, the service {told.get(status, 0)}")
    left = sent.get(LEFT, 0)
    if (extra := sum(over.values())) != left:
        differences.append(f"{left} requests were left by their clients, the service counted {extra} besides the rest")
    if unanswered := sent.get("0", 0):
        differences.append(f"{unanswered} requests never got an answer")
    return differences


def checks(summary: Mapping[str, Any]) -> list[Check]:
    """Those of every run, then the scenario's own."""
    parts: Sequence[Mapping[str, Any]] = summary["parts"]
    failed = sum(row["failed"] for part in parts for row in part["requests"])
    dropped = sum(part["dropped"] for part in parts)
    differences = reconcile(summary["sent"], summary["told"])
    found = [
        Check("no failures", failed == 0, f"{failed} failed"),
        Check("counts agree", not differences, "; ".join(differences) or f"{sum(summary['sent'].values())} requests"),
        Check(
            "nothing left behind", summary["left_behind"] == 0, f"{summary['left_behind']:g} still under way at the end"
        ),
    ]
    if summary["scenario"] != "knee":
        refused = sum(part["refused"] for part in parts if not part["refusable"])
        found.append(Check("nothing refused that was not meant to be", refused == 0, f"{refused} refused", speed=True))
        found.append(Check("nothing dropped", dropped == 0, f"{dropped} dropped", speed=True))
    own = _OWN.get(summary["scenario"])
    return [*found, *(own(summary, {part["name"]: part for part in parts}) if own else ())]


def findings(summary: Mapping[str, Any]) -> list[str]:
    """What a scenario is there to find out, in sentences."""
    parts = summary["parts"]
    if summary["scenario"] == "mix-cost":
        one, eight = (next(part for part in parts if part["name"] == name) for name in ("1 encoding", "8 encodings"))
        rates = [part["answered_200"] / part["seconds"] for part in (one, eight)]
        ratio = rates[1] / rates[0]
        return [f"Eight encodings: {ratio:.2f} of the throughput of one ({rates[1]:.0f} and {rates[0]:.0f}/s)."]
    found: dict[str, str] = {}
    if left := summary["sent"].get(LEFT, 0):
        gone = summary["told"].get("499", 0)
        found[LEFT] = f"Of {left:,} requests whose clients left, {gone:,} counted as 499, the others as they ended."
    for part in parts:
        what, is_step, _ = part["name"].partition(", step ")
        if is_step:
            found.setdefault(what, f"{what}: not even the first step was as fast as promised.")
            if part["promised"]:
                batch = part["jobs_per_batch"]
                found[what] = f"{what}: as fast as promised up to {part['rate']:.0f}/s, {batch} jobs in a batch."
    return list(found.values())


def exit_code(found: Iterable[Check], is_invalid: bool, speed_decides: bool) -> int:
    """0 passed, 1 failed, 3 nothing known of the speed that this scenario is about."""
    if any(not check.passed for check in found if not check.speed):
        return 1
    if not speed_decides:
        return 0
    if is_invalid:
        return 3
    return int(any(not check.passed for check in found))


Parts = Mapping[str, Mapping[str, Any]]


def slowest(part: Mapping[str, Any], key: str, size: str = "") -> float | None:
    """Milliseconds: the largest of this percentile among the part's answered requests (of one size)."""
    values = [
        float(row[key])
        for row in part["requests"]
        if f"[{size}" in row["name"] and not any(word in row["name"] for word in ("refused", "bad input", LEFT))
    ]
    return max(values, default=None)


def answers_per_cpu_second(summary: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """For each second of the processors that the service had: at its capacity, and in the open loop with its tail."""
    at_capacity = next(part for part in summary["parts"] if part["name"] == "capacity")
    opened = sum(part["answered_200"] for part in summary["parts"] if part["rate"] is not None)
    cores, seconds = at_capacity["service_cores"], summary["service"]["open_cpu_seconds"]
    before = at_capacity["answered_200"] / at_capacity["seconds"] / cores if cores else None
    return before, opened / seconds if seconds else None


def _within(part: Mapping[str, Any], keys: Sequence[str] = ("p95_ms", "p99_ms"), times: float = 1.0) -> Iterator[Check]:
    for size, limit in SLO_MS.items():
        for key in keys:
            if (found := slowest(part, key, f"{size} ")) is not None:
                name = f"{part['name']}: {key[:3]} of size {size} <= {times * limit:g} ms"
                yield Check(name, found <= times * limit, f"{found:.1f} ms", speed=True)


def _smoke(summary: Mapping[str, Any], parts: Parts) -> Iterator[Check]:
    found = slowest(parts["smoke"], "p95_ms") or 0.0
    yield Check("p95 <= 250 ms", found <= 250, f"{found:.1f} ms", speed=True)


def _steady(summary: Mapping[str, Any], parts: Parts) -> Iterator[Check]:
    yield from _within(parts["steady"])
    mean = parts["steady"]["jobs_per_batch"]
    yield Check("mean jobs in a batch > 1", mean is not None and mean > 1, f"{mean}", speed=True)


def _compare(summary: Mapping[str, Any], parts: Parts) -> Iterator[Check]:
    for tokens in (128, 512):
        one, many = (slowest(parts[f"{label}, {tokens} tokens"], "p95_ms") for label in ("single", "compare"))
        if one and many:
            most = summary["encodings"]
            yield Check(
                f"p95 of all {most} encodings at {tokens} tokens <= {most} x that of one",
                many <= most * one,
                f"{many:.1f} ms beside {one:.1f} ms: {many / one:.1f} x",
                speed=True,
            )


def _spike(summary: Mapping[str, Any], parts: Parts) -> Iterator[Check]:
    yield from _within(parts["after"], ("p95_ms",))


def _overload(summary: Mapping[str, Any], parts: Parts) -> Iterator[Check]:
    # A busy machine takes seconds away and does not change what is done in each.
    before, after = answers_per_cpu_second(summary)
    if before and after:
        name = f"a second of the processors answers >= {GOODPUT:.0%} of what it did"
        yield Check(name, after >= GOODPUT * before, f"{after / before:.0%}")
    for name in ("twice", "five times"):
        part = parts[name]
        share = part["answered_200"] / part["seconds"] / summary["capacity"]
        yield Check(f"{name}: goodput >= {GOODPUT:.0%} of the capacity", share >= GOODPUT, f"{share:.0%}", speed=True)
        yield from _within(part, ("p95_ms",), times=2.0)


def _soak(summary: Mapping[str, Any], parts: Parts) -> Iterator[Check]:
    yield _files(summary)
    counted = [*summary["sent"].items(), *summary["told"].items()]
    failures = {status: count for status, count in counted if status.isdigit() and int(status) >= 500}
    yield Check("no 5xx, seen or counted", not failures, f"{failures or 'none'}")
    if sum(parts[name]["seconds"] for name in ("first", "middle", "last")) < SETTLED:
        # Caches still fill: the report has the figures, and nothing follows from them.
        return
    # However late the generator was: the service did what it was asked.
    grown = summary["service"]["resident_mb_per_minute"]
    yield Check(f"memory grows by < {GROWTH:g} MB a minute", grown is not None and grown < GROWTH, f"{grown} MB")
    first, last = (slowest(parts[name], "p95_ms") for name in ("first", "last"))
    if first and last:
        change = last / first - 1
        yield Check("p95 of the last part = first +-20 %", abs(change) <= DRIFT, f"{change:+.0%}", speed=True)


def _files(summary: Mapping[str, Any]) -> Check:
    files = summary["service"]["open_files"]
    return Check(
        "no open files are left", files["after"] - files["before"] <= FILES, f"{files['before']} to {files['after']}"
    )


def _cancel(summary: Mapping[str, Any], parts: Parts) -> Iterator[Check]:
    yield _files(summary)
    counted = summary["told"].get("499", 0)
    yield Check("clients that left are counted as 499", counted > 0, f"{counted} of {summary['sent'].get(LEFT, 0)}")


_OWN = {
    "smoke": _smoke,
    "steady": _steady,
    "compare": _compare,
    "spike": _spike,
    "overload": _overload,
    "overload-compare": _overload,
    "soak": _soak,
    "cancel": _cancel,
}
