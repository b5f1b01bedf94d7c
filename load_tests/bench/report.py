"""docs/benchmark.md, written from what was found: no figure in it is typed by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from load_tests.bench import comparison, job, memory, scaling
from load_tests.bench.contenders import PEER_LIST, SERVICE
from load_tests.bench.records import Bare, Memory, Part, Peers, Sample, Scaling
from load_tests.bench.statistics import Summary, slope, summarise

COMMAND = "make bench"
PICTURE = "images/benchmark-scaling.png"
QUIET = 0.05
"""Part of the cores used by others up to which a machine counts as quiet."""
FLAT = 0.05
"""Growth over all requests, as a part of the resident memory, up to which it counts as flat."""


@dataclass(frozen=True)
class Findings:
    """What there is to report; a part that was not measured is None."""

    machine: Sequence[tuple[str, str]]
    peers: Peers | None
    bare: Bare | None
    scaling: Scaling | None
    memory: Memory | None


def render(found: Findings) -> str:
    """The whole page in Markdown."""
    sections = [_head(found)]
    if found.peers:
        sections.append(peers_section(found.peers))
    if found.bare:
        sections.append(bare_section(found.bare))
    if found.scaling:
        sections.append(scaling_section(found.scaling))
    if found.memory:
        sections.append(memory_section(found.memory))
    return "\n\n".join(sections) + "\n"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Markdown; all columns but the first `left` are aligned to the right."""
    rule = ["---"] * left + ["---:"] * (len(headings) - left)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headings, rule, *rows))


def number(value: float) -> str:
    """Three significant digits; whole numbers above."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    digits = max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:.{digits}f}"


def spread(summary: Summary) -> str:
    return f"{number(summary.low)} to {number(summary.high)}"


def _head(found: Findings) -> str:
    parts: list[Part] = [one for one in (found.peers, found.bare, found.scaling, found.memory) if one is not None]
    measured = [(type(part).name, part.date, part.commit, f"{part.seconds:.0f}", f"{part.busy:.2f}") for part in parts]
    return f"""# Benchmark

`{COMMAND}` measures all of this and writes this page; no figure in it is typed by hand. `python -m load_tests.bench
--help` lists what it can be told.

{table(("", ""), found.machine, left=2)}

{table(("part", "begun (UTC)", "commit", "seconds", "load average before"), measured)}

Servers and client share the same cores, over the loopback interface: what the client costs is taken from every server
alike. Figures are medians of the rounds, with the lowest and the highest. Ratios compare within one run; on another
machine expect other numbers and similar ratios.

{_busy(found)}{_changed(parts)}"""


def _changed(parts: Sequence[Part]) -> str:
    """Which parts began on one commit and ended on another."""
    names = [type(part).name for part in parts if " to " in part.commit]
    if not names:
        return ""
    return f" The service was changed while {', '.join(names)} ran: later rounds are of newer code than earlier ones."


def _busy(found: Findings) -> str:
    """How much others used of the machine, said plainly."""
    shares = [sample.others for sample in found.peers.samples] if found.peers else []
    shares += [share for row in (found.bare.rows if found.bare else []) for share in row.others]
    shares += [share for point in (found.scaling.points if found.scaling else []) for share in point.others]
    if not shares:
        return "The load average says whether the machine had other work before."
    median, worst = float(np.median(shares)), max(shares)
    said = f"Other processes used {median:.0%} of the cores in the median run, at most {worst:.0%}"
    if median <= QUIET:
        return f"{said}."
    return f"{said}: **this was not a quiet machine**, all figures are lower than they need be and ratios are rough."


# Beside others


def peers_section(found: Peers) -> str:
    rounds = 1 + max(sample.round for sample in found.samples)
    names = [one.name for one in (SERVICE, *PEER_LIST) if any(s.contender == one.name for s in found.samples)]
    absent = "".join(f"\n\nNot measured: {name}, which {_one_line(reason)}." for name, reason in found.absent.items())
    parts = [
        f"""## 1. Beside other servers

The same ONNX model for all, as this service runs it on a CPU, and fed constant tables: RoPE in {job.HEADS} heads,
{job.TOKENS} x {job.WIDTH} float32 in, the weights ({job.HEADS} x {job.TOKENS} x {job.TOKENS} float32) out. onnxruntime
computes in one thread for each worker, of which there are as many as cores unless said otherwise. Each peer batches
dynamically as its documentation shows, in the best of the settings tried below: for {comparison.MANY} connections the
one of most requests a second, for {comparison.ONE} another where that answers a good deal sooner. The client is wrk
with one thread; {rounds} rounds in turns, every other one in the opposite order, {found.run_seconds} s a run after a
warm-up of {comparison.WARM_UP} s that is not counted. Before it is timed, every server's answer is checked against the
formula in float64; a run in which anything but 2xx comes back fails.""",
    ]
    for format, title in (("binary", "Binary both ways"), ("json", "JSON both ways")):
        for connections in (comparison.MANY, comparison.ONE):
            rows = list(_peer_rows(found, names, format, connections))
            if rows:
                heading = f"{connections} connections" if connections > 1 else "1 connection"
                columns = (
                    "",
                    "setting",
                    "requests/s",
                    "lowest to highest",
                    "this service is",
                    "p50 ms",
                    "p99 ms",
                    "halves",
                    "others",
                )
                parts.append(f"### {title}, {heading}\n\n{table(columns, rows, left=2)}")
    parts.append(
        f"""*This service is*: its requests a second over the other's, medians. *halves*: the median of the first half
of the rounds over that of the second; 1.00 is no drift. *others*: the part of all cores
that processes used that take no part. p50 and p99 are medians of each run's own.{absent}"""
    )
    parts.append(_settings(found, names))
    parts.append(_remarks())
    return "\n\n".join(parts)


def _peer_rows(found: Peers, names: Sequence[str], format: str, connections: int) -> Iterator[list[str]]:
    def of(name: str) -> list[Sample]:
        chosen = (s for s in found.samples if (s.contender, s.format, s.connections) == (name, format, connections))
        return sorted(chosen, key=lambda sample: sample.round)

    ours = [sample.run.per_second for sample in of(SERVICE.name)]
    for name in names:
        measured = of(name)
        if not measured or not ours:
            continue
        rate = summarise([sample.run.per_second for sample in measured])
        ratio = float(np.median(ours)) / rate.median
        yield [
            f"**{name}**" if name == SERVICE.name else name,
            found.chosen[name][connections],
            number(rate.median),
            spread(rate),
            "" if name == SERVICE.name else f"{number(ratio)} x",
            number(float(np.median([sample.run.p50_us for sample in measured])) / 1e3),
            number(float(np.median([sample.run.p99_us for sample in measured])) / 1e3),
            f"{rate.halves:.2f}",
            f"{np.median([sample.others for sample in measured]):.0%}",
        ]


def _settings(found: Peers, names: Sequence[str]) -> str:
    rows = []
    for trial in found.trials:
        used = _used(found.chosen.get(trial.contender, {}), trial.setting)
        many = number(trial.many.per_second) if trial.many else _one_line(trial.failed)
        alone = number(trial.one.p50_us / 1e3) if trial.one else ""
        rows.append((trial.contender, trial.setting + used, many, alone))
    columns = ("", "setting", f"requests/s, {comparison.MANY} connections", "p50 ms, 1 connection")
    errors = "; ".join(f"{name} {error:.1e}" for name, error in found.errors.items() if name in names)
    model = "; ".join(
        f"{name} {number(alone)} and {number(batch)}"
        for name, (alone, batch) in found.model_us.items()
        if name in names
    )
    resident = "; ".join(f"{name} {value / 1e6:,.0f} MB" for name, value in found.resident.items() if name in names)
    return f"""### Settings tried

One run each, binary bodies; the first of each peer follows an example of its documentation.

{table(columns, rows, left=2)}

Largest error of a weight against float64: {errors}.

A bare run of the model in each environment, in microseconds, alone and in a batch of 16: {model}.

Resident memory under load, of all processes, with what they share counted once: {resident}."""


def _used(chosen: dict[int, str], setting: str) -> str:
    """For which numbers of connections this is the one that was used."""
    used = [connections for connections, label in chosen.items() if label == setting]
    if not used:
        return ""
    return " (used)" if len(used) == len(chosen) else f" (used at {used[0]})"


def _remarks() -> str:
    return """### What is not comparable

- The peers do nothing but this: one shape, one encoding, no check of their input beyond its size. This service reads
  the query, checks every number, finds the encoding, its parameters and its tables at every request, and describes its
  answer.
- Its binary bodies are npy in and safetensors out, with a header; the peers' are float32 and nothing else. Its JSON
  adds the encoding's parameters and conventions.
- BentoML's JSON has a batch axis, and its endpoints read no raw numbers over HTTP: for those a small ASGI application
  in front hands them to the batched service in other processes, as its documentation composes services. LitServe's
  endpoint takes raw bytes because its `decode_request` declares them. mosec, LitServe and Ray Serve write JSON through
  orjson here, which is faster than what they do by themselves.
- Ray Serve and BentoML are made for many machines; one small model on a few cores is not what they are for.
- This service has the same settings for many connections and for one; several peers are faster at one where they do not
  batch, and slower then at many."""


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:200]


# Beside the bare model


def bare_section(found: Bare) -> str:
    rows = []
    for row in found.rows:
        service, bare, sending = summarise(row.service), summarise(row.bare), summarise(row.sending)
        ratio, best = (
            summarise([ours / theirs for ours, theirs in zip(row.service, other, strict=True)])
            for other in (row.bare, row.best)
        )
        rows.append(
            (
                f"{row.tokens}",
                number(row.megabytes),
                number(service.median),
                spread(service),
                number(bare.median),
                spread(bare),
                number(sending.median),
                spread(sending),
                f"{ratio.median:.2f}",
                f"{best.median:.2f}",
                f"{best.low:.2f} to {best.high:.2f}",
                f"{service.halves:.2f} / {bare.halves:.2f}",
                f"{np.median(row.others):.0%}",
            )
        )
    columns = (
        "tokens", "MB an answer", "service, requests/s", "lowest to highest",
        "bare, runs/s", "lowest to highest", "sending, answers/s", "lowest to highest",
        "to bare", "to the best possible", "lowest to highest", "halves", "others",
    )  # fmt: skip
    return f"""## 2. Beside `session.run`

RoPE in {found.heads} heads, {found.width} wide, scores and weights, binary both ways, {found.connections} connections;
beside it the same pruned graph, run in as many threads as there are cores, with no HTTP and nobody reading the result
(*bare*), and a server that computes nothing and sends as many bytes to the same client (*sending*). In turns,
{len(found.rows[0].service)} rounds. The client reads every byte of the answers on the same cores, so no server can
answer more often than 1 / (1 / bare + 1 / sending): that is *the best possible*.

{table(columns, rows)}

*to bare*: requests a second over runs a second, round by round; *to the best possible* likewise. *halves*: of the
service / of the bare model.{_shared(found)}"""


def _shared(found: Bare) -> str:
    """The same with tensors in shared memory, where that was measured."""
    rows = []
    for row in found.rows:
        measured = ((1, row.shared, row.shared_others), (row.together, row.shared_together, row.together_others))
        for sequences, rounds, others in measured:
            if not rounds:
                continue
            shared = summarise(rounds)
            ratio = summarise([ours / bare for ours, bare in zip(rounds, row.bare, strict=True)])
            rows.append(
                (
                    f"{row.tokens}",
                    f"{sequences}",
                    number(shared.median),
                    spread(shared),
                    f"{ratio.median:.2f}",
                    f"{ratio.low:.2f} to {ratio.high:.2f}",
                    f"{shared.halves:.2f}",
                    f"{np.median(others):.0%}",
                )
            )
    if not rows:
        return ""
    columns = (
        "tokens", "sequences a request", "sequences/s", "lowest to highest",
        "to bare", "lowest to highest", "halves", "others",
    )  # fmt: skip
    return f"""

### In shared memory

The same work by `/v2/models/{{model}}/infer` for clients on the same machine, whose embeddings, scores and weights lie
in shared memory ([docs/open-inference.md](open-inference.md)); {found.connections} connections of as many processes as
there are cores, each with a region of its own. In the same rounds. Requests and answers are a few hundred bytes, and
nobody reads the numbers.

{table(columns, rows)}"""


# Against length


def scaling_section(found: Scaling) -> str:
    rows = []
    for point in sorted(found.points, key=lambda point: (point.rows is not None, point.tokens)):
        service, bare = summarise(point.service), summarise(point.bare)
        rows.append(
            (
                f"{point.tokens:,}",
                "all" if point.rows is None else f"last {point.rows}",
                number(service.median),
                spread(service),
                number(bare.median),
                spread(bare),
                number(service.median / bare.median),
                f"{np.median(point.others):.0%}",
            )
        )
    columns = (
        "tokens",
        "rows",
        "service ms",
        "lowest to highest",
        "bare ms",
        "lowest to highest",
        "service / bare",
        "others",
    )
    longest = max(point.tokens for point in found.points if point.rows is None)
    passes = len(found.points[0].service)
    return f"""## 3. Time against length

RoPE in {found.heads} heads, {found.width} wide, weights only, npy in and safetensors out, 1 connection: p50 of a
request, beside the median of a bare `session.run` in one thread; medians of {passes} passes. The whole matrix goes up
to {longest:,} tokens: one of twice as many exceeds the service's default limit of {scaling.REQUEST_CELLS:,} cells.
Beyond that only the last {scaling.LAST_ROWS} rows are asked for (`rows=-{scaling.LAST_ROWS}:`), and only they are
computed.

![Time for one request against its length, both axes logarithmic]({PICTURE})

{table(columns, rows)}"""


# Memory


def memory_section(found: Memory) -> str:
    mega = [value / 1e6 for value in found.resident]
    half = len(mega) // 2
    whole, late = _growth(found.requests, mega), _growth(found.requests[half:], mega[half:])
    above = max(mega) / mega[0] - 1
    verdict = "flat" if above <= FLAT or max(whole.part, late.part) <= FLAT else "rising"
    shown = [round(i * (len(mega) - 1) / 10) for i in range(11)]
    rows = [(f"{found.requests[i]:,}", number(mega[i])) for i in dict.fromkeys(shown)]
    return f"""## 4. Memory

{found.requests[-1]:,} requests over {found.connections} connections, of random shapes: 1 to {found.largest}
tokens, 1 to 8 heads of 2 to 64, {len(memory.ENCODINGS)} encodings, several sets of outputs, npy and JSON. Before them,
a warm-up: every connection at once sends the largest of each encoding and set of outputs, and as many lengths as fill
the caches. Resident memory of all {found.processes} {"process" if found.processes == 1 else "processes"}, what they
share counted once (PSS), {number(found.started / 1e6)} MB at the start:

{table(("requests", "MB"), rows, left=0)}

**{verdict.capitalize()}**: {whole.per_thousand:+.2f} MB for 1,000 requests, {whole.part:+.1%} over all of them; in the
second half {late.per_thousand:+.2f} MB, {late.part:+.1%}. The most was {number(max(mega))} MB, {above:+.1%} beside what
the warm-up left. Up to {FLAT:.0%} above that counts as flat, for what was given back meanwhile may be taken again, and
so does growth up to {FLAT:.0%} over all and over the second half."""


class _Growth(NamedTuple):
    """Of resident memory, by the straight line through it: MB for 1,000 requests, and over all, as a part of it."""

    per_thousand: float
    part: float


def _growth(requests: Sequence[int], mega: Sequence[float]) -> _Growth:
    per_thousand = round(slope([count / 1e3 for count in requests], mega), 2) + 0.0
    return _Growth(per_thousand, per_thousand * (requests[-1] - requests[0]) / 1e3 / float(np.median(mega)))
