"""One look at a GPU: `python -m load_tests.gpu_check [--quick] [--out docs/gpu.md]`.

Prints what the device is, what of each graph it does not run, whether it agrees with the CPU, what binding, batching,
CUDA graphs and float16 gain on it, and the same of summaries and comparisons. Needs onnxruntime (with CUDA), onnx and
numpy. Exit code 0: all agrees; 1: something does not; 3: there is no GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import math
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime

from service.analysis.sharing import own, pair_job
from service.engine.appending import APPENDED, EXACT
from service.engine.assembly import assemble, cut
from service.engine.cuda_memory import CudaMemory
from service.engine.device import CPU, CUDA, Provider, choose, cuda_problem, quiet_options
from service.engine.finiteness import FINITE, flagged
from service.engine.gpu_policy import GpuPolicy
from service.engine.job import Graph, Job, Tables, digest
from service.engine.memory import HostMemory, Memory, Pool
from service.engine.pruning import HALF, prune
from service.engine.session import Sessions
from service.summaries.graph import TOLERANCES, open_graph, row_feeds
from service.summaries.layout import Layout

NO_GPU = 3
LONGEST = 240
"""Seconds after which no other length is begun."""
EXPORTED = Path(__file__).resolve().parent.parent / "exported"
BEGIN, END = "<!-- gpu_check: begin -->", "<!-- gpu_check: end -->"
KINDS = {"number": np.float64, "integer": np.int64, "flag": np.bool_}
OUTPUTS = ("weights", "scores")
ROWS, PAIRS = (EXPORTED / "analysis" / f"{name}.onnx" for name in ("rows", "pairs"))
SUMMARY = (
    "distance",
    "entropy_of_scores",
    "first_token",
    "max_weight",
    "previous_token",
    "row_sum",
    "self_token",
    "sink_mass_4",
)
"""What a summary reads of each row where no metrics are named."""
COMPARISON = ("argmax_agree", "counted", "jsd", "logit_squares_difference", "tv", "w1")
"""The same of a comparison."""
STEPS = frozenset(("argmax_agree", "counted", "half_mass_distance", "topk_overlap"))
"""Numbers of rows that go up by steps: where rounding decides, a row is a whole step off."""
FEW = 0.01
"""The share of rows that may be."""
AGREES = 2e-5
"""The largest difference from the CPU: of weights, and of the rest in proportion to the largest. TF32 gives 1e-3."""


@dataclass(frozen=True)
class Scale:
    """How much is measured, and how large the requests are."""

    buckets: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    seconds: float = 0.25
    heads: int = 8
    head_dim: int = 64
    copied: int = 256 << 20
    jobs: int = 64
    analysed: int = 256
    """The longest requests whose summaries and comparisons are looked at."""


FULL = Scale()
QUICK = Scale(buckets=(16, 128, 512), seconds=0.05, copied=64 << 20)
SMALLEST = Scale(buckets=(16, 64), seconds=0.0, heads=2, head_dim=8, copied=1 << 20, jobs=4, analysed=48)
"""Quick on the CPU: that everything runs, and no more."""


# Encodings, as far as their parameters need nothing that a request must bring


@dataclass(frozen=True)
class Encoding:
    """An exported encoding, read without the service's catalogue, which needs more packages."""

    model: str
    name: str
    path: Path
    document: Mapping[str, Any]

    @property
    def causal(self) -> bool:
        return bool(self.document["causal"] == "required")

    @property
    def graph(self) -> Graph:
        return Graph(f"{self.model}.{self.name}", self.path, digest(self.path.read_bytes()))

    @property
    def padded(self) -> bool:
        return bool(self.document["invariants"].get("prefix"))

    @property
    def longest(self) -> float:
        """Tokens that it has positions for."""
        largest = self.document["positions"].get("maximum")
        return math.inf if largest is None else largest + 1

    def sizes(self, scale: Scale) -> tuple[int, int]:
        """Heads and head_dim: the model's own, or those of the scale."""
        return self.document["heads"] or scale.heads, self.document["head_dim"] or scale.head_dim


def encodings(folder: Path = EXPORTED) -> list[Encoding]:
    found = []
    for path in sorted(folder.glob("*/*.onnx")):
        if path.name.endswith(".positions.onnx"):
            continue
        properties = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
        document = json.loads(properties["attention"]) if "attention" in properties else {}
        if document.get("graph") == "scores":
            found.append(Encoding(path.parent.name, path.stem, path, document))
    return found


def tables(sessions: Sessions, encoding: Encoding, length: int, heads: int, head_dim: int) -> Tables:
    """The position tables of the first `length` positions, as queries and as keys; read-only, as those served are."""
    session = sessions.positions(encoding.path.with_suffix(".positions.onnx"))
    sizes = {"heads": heads, "head_dim": head_dim, "width": heads * head_dim, "positions": length}
    feeds = {
        "query_positions": np.arange(length, dtype=np.float64),
        "key_positions": np.arange(length, dtype=np.float64),
        "causal": np.array(encoding.causal),
        "heads_like": np.zeros((heads, head_dim), np.float32),
        **{f"parameter.{one['name']}": _parameter(one, sizes) for one in encoding.document["parameters"]},
    }
    arrays = dict(zip(session.outputs, session.run(session.outputs, feeds), strict=True))
    for array in arrays.values():
        array.flags.writeable = False
    return Tables(f"{encoding.name}/{length}/{heads}x{head_dim}", arrays)


def _parameter(one: Mapping[str, Any], sizes: Mapping[str, int]) -> np.ndarray:
    default = one.get("default")
    match one["kind"]:
        case "choice":
            return np.array(one["choices"].index(default), np.int64)
        case "numbers":
            return np.array(default or (), np.float64)
        case "array":
            own = {name: size.get("default") or size.get("minimum", 1) for name, size in (one["sizes"] or {}).items()}
            shape = tuple({**own, **sizes}[axis] if isinstance(axis, str) else axis for axis in one["shape"])
            return _drawn(one["initial"], shape)
        case kind:
            return np.array(np.nan if default is None else default, KINDS[kind])


def _drawn(initial: Mapping[str, Any] | None, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers about as large as the default's. The service draws others: here only the devices are compared."""
    distribution = "zeros" if initial is None else initial["distribution"]
    if distribution in ("zeros", "ones"):
        return np.full(shape, float(distribution == "ones"), np.float32)
    return (0.1 * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)


def job(encoding: Encoding, table: Tables, length: int, bucket: int, scale: Scale, seed: int = 0) -> Job:
    """One request of this length, with the tables of `bucket` tokens: padded where it is shorter."""
    heads, head_dim = encoding.sizes(scale)
    shape: tuple[int, ...] = (1, length, heads, head_dim)
    if encoding.document["width"]:
        shape = (1, length, encoding.document["width"])
    x = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    visible = _causal(bucket) if encoding.causal else None
    padded = (bucket, bucket) if length < bucket else None
    return Job(encoding.graph, table, OUTPUTS, x, x, visible, heads * bucket**2 * len(OUTPUTS), (), padded)


def summarised(one: Job, names: Sequence[str], outputs: tuple[str, ...] = OUTPUTS) -> Job:
    """The same job where these numbers of its rows are wanted as well, fed as the service feeds it."""
    length, bucket = one.queries.shape[1], one.lengths[0]
    places, tokens = np.arange(bucket, dtype=np.float64), np.arange(length)[None] % 7
    feeds = _row_feeds(bucket)
    mine = replace(Layout(places[:length], places[:length]), query_tokens=tokens, key_tokens=tokens).token_feeds()
    matrices = max(1, len(outputs))
    return replace(
        one,
        graph=replace(one.graph, behind=ROWS),
        tables=Tables(f"{one.tables.key}|{bucket}", {**one.tables.arrays, **feeds}),
        outputs=(*outputs, *(APPENDED + name for name in names)),
        cells=one.cells // len(one.outputs) * matrices,
        own=own({**mine, "profiled": np.ones((1, length), bool)}, APPENDED),
    )


@cache
def _row_feeds(length: int) -> Mapping[str, np.ndarray]:
    feeds = row_feeds(Layout.first(length), ("distance",), TOLERANCES["float32"])
    for array in feeds.values():
        array.flags.writeable = False
    return {APPENDED + name: array for name, array in feeds.items()}


def compared(
    a: Mapping[str, np.ndarray],
    b: Mapping[str, np.ndarray],
    names: tuple[str, ...],
    bucket: int | None,
    visible: np.ndarray | None,
) -> Job:
    """One that compares the weights and scores of two requests; padded where it is shorter than the bucket."""
    matrices = {f"{name}_{side}": of[name] for side, of in (("a", a), ("b", b)) for name in OUTPUTS}
    padded = None if bucket is None else (bucket, bucket)
    return pair_job(
        open_graph(PAIRS),
        matrices,
        names,
        tolerance=TOLERANCES["float32"],
        top=8,
        visible=visible,
        sinks=(),
        padded=padded,
    )


@cache
def all_of(graph: Path) -> tuple[str, ...]:
    """The outputs of an analysis graph."""
    return tuple(value.name for value in onnx.load(graph).graph.output)


@cache
def _causal(length: int) -> np.ndarray:
    mask = np.tri(length, dtype=bool)[None, None]
    mask.flags.writeable = False
    return mask


# What is asked of the device


@dataclass
class Device:
    """Where the check runs. `graphs` captures CUDA graphs, `unflagged` does not say whether all numbers are finite;
    `cpu` is what all is compared with."""

    name: str
    provider: Provider
    memory: Memory
    sessions: Sessions
    graphs: Sessions
    unflagged: Sessions
    cpu: Sessions

    @classmethod
    def cuda(cls) -> Device:
        provider, memory = choose("cuda"), CudaMemory()
        plain, graphs = (Sessions("cuda", memory=memory, cuda_graphs=graphs) for graphs in (False, True))
        unflagged = Sessions("cuda", memory=memory, flags=False)
        return cls(gpu_name(), provider, memory, plain, graphs, unflagged, Sessions("cpu"))

    @classmethod
    def host(cls) -> Device:
        plain, graphs = (Sessions("cpu", memory=HostMemory(), cuda_graphs=graphs) for graphs in (False, True))
        name = f"no GPU: the CPU ({platform.processor() or platform.machine()})"
        unflagged = Sessions("cpu", memory=HostMemory(), flags=False)
        return cls(name, Provider(CPU), HostMemory(), plain, graphs, unflagged, Sessions("cpu"))


def gpu_name() -> str:
    """As the driver says it, with its memory and the newest CUDA that it supports."""
    driver = ctypes.CDLL("libcuda.so.1")
    name, version, size = ctypes.create_string_buffer(128), ctypes.c_int(), ctypes.c_size_t()
    driver.cuInit(0)
    driver.cuDeviceGetName(name, len(name), 0)
    driver.cuDeviceTotalMem_v2(ctypes.byref(size), 0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    return (
        f"{name.value.decode()}, {size.value / 2**30:.0f} GiB, driver for CUDA "
        f"{version.value // 1000}.{version.value % 1000 // 10}"
    )


def versions() -> str:
    cuda = getattr(onnxruntime, "cuda_version", None) or "none"
    return (
        f"onnxruntime {onnxruntime.__version__} (CUDA {cuda}), onnx {onnx.__version__}, numpy {np.__version__}, "
        f"Python {platform.python_version()}"
    )


@dataclass
class Agreement:
    """What one encoding gives on the device and on the CPU. `left` are the nodes that the device does not run."""

    encoding: str
    left: Counter[str] | None
    errors: dict[str, float] = field(default_factory=dict)
    replayed: float | None = None
    """The largest of the differences where a CUDA graph is captured and replayed; None where none could be."""
    failed: str = ""
    summaries: dict[str, float] = field(default_factory=dict)
    """Of each number of rows."""
    comparisons: dict[str, float] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        errors = [*self.errors.values(), *([] if self.replayed is None else [self.replayed])]
        errors += [*self.summaries.values(), *self.comparisons.values()]
        return not self.failed and all(error <= AGREES for error in errors)


def placement(encoding: Encoding, provider: Provider) -> Counter[str] | None:
    """The operators that the CPU runs, with all outputs asked for; None where onnxruntime cannot say."""
    return _left_of(encoding.path, provider, ())


def _left_of(path: Path, provider: Provider, switches: Sequence[str]) -> Counter[str] | None:
    model = onnx.load(path)
    pruned = flagged(prune(model, [output.name for output in model.graph.output], True, switches))
    options = quiet_options()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session: Any = onnxruntime.InferenceSession(pruned.SerializeToString(), options, provider.chain, enable_fallback=0)
    try:
        parts = session.get_provider_graph_assignment_info()
    except Exception:  # an older onnxruntime
        return None
    return Counter(node.op_type for part in parts if part.ep_name == CPU for node in part.get_nodes())


def agreement(device: Device, encoding: Encoding, scale: Scale) -> Agreement:
    """Requests of four lengths: padded in one run on the device, each alone and as it is on the CPU."""
    found = Agreement(f"{encoding.model}.{encoding.name}", None)
    try:
        found.left = placement(encoding, device.provider)
        outputs = ("weights", "scores", "output")
        for lengths, bucket in (((33, 40, 47, 48), 48), ((200, 256), 256)):
            if bucket > encoding.longest:
                continue
            found.errors = _worst(found.errors, _errors(device, encoding, lengths, bucket, outputs, scale))
            if bucket > scale.analysed:
                continue
            with_rows, with_pairs = _analysed(device, encoding, lengths, bucket, scale)
            found.summaries = _worst(found.summaries, with_rows)
            found.comparisons = _worst(found.comparisons, with_pairs)
        found.replayed = _replayed(device, encoding, outputs, scale)
    except Exception as error:
        found.failed = _said(error)
    return found


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " ").replace("|", "/")


def _replayed(device: Device, encoding: Encoding, outputs: tuple[str, ...], scale: Scale) -> float | None:
    """One shape over and over, with other numbers each time: the first runs are captured, the rest replayed."""
    table = tables(device.cpu, encoding, 48, *encoding.sizes(scale))
    errors: dict[str, float] = {}
    for seed in range(6):
        one = _with(job(encoding, table, 48, 48, scale, seed), outputs)
        (found,), (expected,) = run(device.graphs, [one]), run(device.cpu, [one])
        errors = _worst(errors, {name: _error(name, found[name], expected[name]) for name in outputs})
    session = device.graphs.session(one.graph, one.outputs, one.masked, one.switches)
    return max(errors.values()) if session.graphs else None


def _errors(
    device: Device, encoding: Encoding, lengths: Sequence[int], bucket: int, outputs: tuple[str, ...], scale: Scale
) -> dict[str, float]:
    sizes = encoding.sizes(scale)
    exact = {length: tables(device.cpu, encoding, length, *sizes) for length in lengths}
    alone = [
        _with(job(encoding, exact[length], length, length, scale, seed), outputs) for seed, length in enumerate(lengths)
    ]
    together = alone
    if encoding.padded:
        shared = tables(device.cpu, encoding, bucket, *sizes)
        together = [
            _with(job(encoding, shared, length, bucket, scale, seed), outputs) for seed, length in enumerate(lengths)
        ]
    batches: dict[Any, list[int]] = {}
    for i, one in enumerate(together):
        batches.setdefault(one.key, []).append(i)
    errors: dict[str, float] = {}
    for members in batches.values():
        answers = run(device.sessions, [together[i] for i in members])
        for i, answer in zip(members, answers, strict=True):
            (expected,) = run(device.cpu, [alone[i]])
            errors = _worst(errors, {name: _error(name, answer[name], expected[name]) for name in outputs})
    return errors


def _analysed(
    device: Device, encoding: Encoding, lengths: Sequence[int], bucket: int, scale: Scale
) -> tuple[dict[str, float], dict[str, float]]:
    """The errors of all numbers of rows, and of those of two matrices: one of each request, one of other numbers."""
    sizes, names = encoding.sizes(scale), all_of(ROWS)
    shared = tables(device.cpu, encoding, bucket, *sizes)
    alone, together, pairs, padded = [], [], [], []
    for seed, length in enumerate(lengths):
        exact = tables(device.cpu, encoding, length, *sizes)
        one = job(encoding, exact, length, length, scale, seed)
        alone.append(summarised(one, names))
        fits = job(encoding, shared, length, bucket, scale, seed) if encoding.padded else one
        together.append(summarised(fits, names))
        (a,), (b,) = run(device.cpu, [one]), run(device.cpu, [job(encoding, exact, length, length, scale, seed + 100)])
        visible = _causal(length) if encoding.causal else None
        pairs.append(compared(a, b, all_of(PAIRS), None, visible))
        padded.append(compared(a, b, all_of(PAIRS), bucket, visible))
    rows = [name for name in alone[0].outputs if name.startswith(APPENDED)]
    return _apart(device, together, alone, rows), _apart(device, padded, pairs, all_of(PAIRS))


def _apart(device: Device, jobs: Sequence[Job], alone: Sequence[Job], names: Sequence[str]) -> dict[str, float]:
    """How far these are on the device, those of one key in one run, from what the others are on the CPU one by one."""
    batches: dict[Any, list[int]] = {}
    for i, one in enumerate(jobs):
        batches.setdefault(one.key, []).append(i)
    errors: dict[str, float] = {}
    for members in batches.values():
        answers = run(device.sessions, [jobs[i] for i in members])
        for i, answer in zip(members, answers, strict=True):
            (expected,) = run(device.cpu, [alone[i]])
            errors = _worst(errors, {name: _rows_error(name, answer[name], expected[name]) for name in names})
    return errors


def _rows_error(name: str, found: np.ndarray, expected: np.ndarray) -> float:
    """In proportion to the largest, if that is over 1; `w1` to a tenth of the keys, which it is a sum over."""
    if found.shape != expected.shape or not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return math.inf
    if name.removeprefix(APPENDED) in STEPS:
        off = float((found != expected).mean())
        return 0.0 if off <= FEW else off
    finite = np.isfinite(expected)
    if not finite.any():
        return 0.0
    scale = max(1.0, float(np.abs(expected[finite]).max()), expected.shape[-1] / 10 if name == "w1" else 0.0)
    return float(np.abs(found[finite] - expected[finite]).max()) / scale


def _with(one: Job, outputs: tuple[str, ...]) -> Job:
    return replace(one, outputs=outputs, cells=one.cells // len(one.outputs) * len(outputs))


def _error(name: str, found: np.ndarray, expected: np.ndarray) -> float:
    if not np.isfinite(found).all():
        return float("inf")
    scale = 1.0 if name == "weights" else float(np.abs(expected).max()) or 1.0
    return float(np.abs(found - expected).max()) / scale


def _worst(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in {**one, **other}}


def run(sessions: Sessions, jobs: Sequence[Job]) -> list[dict[str, np.ndarray]]:
    """As the engine runs a batch."""
    first = jobs[0]
    feeds = assemble(jobs, sessions.empty)
    outputs = sessions.run(first.graph, first.outputs, first.masked, feeds, first.switches)
    if FINITE in outputs and not np.isfinite(outputs[FINITE]).all():
        raise RuntimeError("the device says that not all numbers are finite")
    return cut({name: array for name, array in outputs.items() if name != FINITE}, jobs)


def run_plain(sessions: Sessions, jobs: Sequence[Job]) -> list[dict[str, np.ndarray]]:
    """The same without binding: onnxruntime takes arrays of ordinary memory and returns such."""
    first = jobs[0]
    session = sessions.session(first.graph, first.outputs, first.masked, first.switches)
    results = session.run(first.outputs, assemble(jobs))
    return cut(dict(zip(first.outputs, results, strict=True)), jobs)


# Time


def seconds_of(call: Callable[[], object], at_least: float) -> float:
    """The median of several calls, those that warm up left out."""
    for _ in range(4):
        call()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - began < at_least:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times)


@dataclass(frozen=True)
class Copies:
    """Bytes a second between the device and page-locked memory of the host."""

    up: float
    down: float


def copies(memory: Memory, size: int, at_least: float) -> Copies:
    address, array = memory.allocate(size), Pool(memory, 2 * size).empty((size,), np.uint8)
    array[:] = 1

    def up() -> None:
        memory.upload(array, address)
        memory.wait()

    found = Copies(
        size / seconds_of(up, at_least), size / seconds_of(lambda: memory.download(address, array), at_least)
    )
    memory.free(address)
    return found


@dataclass(frozen=True)
class Speed:
    """Seconds of one bucket's runs: of one request, and of as many as share a run."""

    bucket: int
    jobs: int
    bytes: int
    """Of the shared run's answers, padding included."""
    cpu: float
    alone_plain: float
    alone: float
    alone_graph: float
    plain: float
    bound: float
    graph: float
    half: float
    finite: float
    """Of looking through the answers for NaN and infinities on the host."""
    unflagged: float
    """Of the shared run without the part by which the device looks for them."""
    failed: tuple[str, ...] = ()
    """Why some of these are not a number."""

    @property
    def requests(self) -> float:
        return self.jobs / self.bound

    @property
    def rate(self) -> float:
        return self.bytes / self.bound


def lengths_of(bucket: int, scale: Scale) -> list[int]:
    """As many as jobs share a run at most, all in this bucket and shorter than it."""
    steps = GpuPolicy().ladder.steps
    shortest = steps[steps.index(bucket) - 1] + 1 if bucket > steps[0] else 2
    even = np.linspace(shortest, bucket - 1, scale.jobs).astype(int)
    return [int(length) for length in np.random.default_rng(0).permutation(even)]


def of_one_run(jobs: Sequence[Job]) -> list[Job]:
    """As many of them as the policy lets share a run."""
    share = GpuPolicy().share(jobs[0])
    return list(jobs[: max(1, min(share.jobs, share.cells // jobs[0].cells))])


@dataclass(frozen=True)
class Analysed:
    """Seconds of one bucket's runs with the default summary, and of those that compare with the default metrics."""

    bucket: int
    jobs: int
    plain: float
    """Of a shared run that gives weights and scores and no summary."""
    cpu: float
    """Of one request with the summary, unpadded, on the CPU."""
    alone: float
    shared: float
    graph: float
    """The same by a CUDA graph."""
    only: float
    """Of a shared run that gives the summary and no matrix."""
    pairs: int
    pair_cpu: float
    pair_alone: float
    pair_shared: float
    failed: tuple[str, ...] = ()


def measure_analysis(device: Device, encoding: Encoding, bucket: int, scale: Scale) -> Analysed:
    """As `measure`, of requests with summaries and comparisons."""
    sizes, lengths = encoding.sizes(scale), lengths_of(bucket, scale)
    table = tables(device.cpu, encoding, bucket, *sizes)
    bare = of_one_run([job(encoding, table, length, bucket, scale, seed) for seed, length in enumerate(lengths)])
    jobs = [summarised(one, SUMMARY) for one in bare]
    only = [summarised(one, SUMMARY, ()) for one in bare]
    exact = tables(device.cpu, encoding, lengths[0], *sizes)
    real = job(encoding, exact, lengths[0], lengths[0], scale)
    answers = run(device.cpu, [real]), run(device.cpu, [job(encoding, exact, lengths[0], lengths[0], scale, 1)])
    (a,), (b,) = answers
    pair = compared(a, b, COMPARISON, bucket, None)
    pairs = of_one_run([pair] * scale.jobs)
    failed: list[str] = []

    def timed(call: Callable[[], object]) -> float:
        return _timed(call, scale.seconds, failed)

    return Analysed(
        bucket=bucket,
        jobs=len(jobs),
        plain=timed(lambda: run(device.sessions, bare)),
        cpu=timed(lambda: run(device.cpu, [summarised(real, SUMMARY)])),
        alone=timed(lambda: run(device.sessions, jobs[:1])),
        shared=timed(lambda: run(device.sessions, jobs)),
        graph=timed(lambda: run(device.graphs, jobs)),
        only=timed(lambda: run(device.sessions, only)),
        pairs=len(pairs),
        pair_cpu=timed(lambda: run(device.cpu, [compared(a, b, COMPARISON, None, None)])),
        pair_alone=timed(lambda: run(device.sessions, [pair])),
        pair_shared=timed(lambda: run(device.sessions, pairs)),
        failed=tuple(failed),
    )


def _timed(call: Callable[[], object], seconds: float, failed: list[str]) -> float:
    """No number, and one reason more, where it fails."""
    try:
        return seconds_of(call, seconds)
    except Exception as error:
        failed.append(_said(error))
        return math.nan


def measure(device: Device, encoding: Encoding, bucket: int, scale: Scale) -> Speed:
    """Requests of lengths that fall into the bucket, all of them shorter than it."""
    sizes, lengths = encoding.sizes(scale), lengths_of(bucket, scale)
    table = tables(device.cpu, encoding, bucket, *sizes)
    jobs = of_one_run([job(encoding, table, length, bucket, scale, seed) for seed, length in enumerate(lengths)])
    first, half = jobs[:1], [_with(one, tuple(HALF + name for name in OUTPUTS)) for one in jobs]
    real = job(encoding, tables(device.cpu, encoding, lengths[0], *sizes), lengths[0], lengths[0], scale)
    outputs = device.sessions.run(jobs[0].graph, OUTPUTS, jobs[0].masked, assemble(jobs, device.sessions.empty))

    def finite() -> None:
        for array in outputs.values():
            np.isfinite(array).all()

    failed: list[str] = []

    def timed(call: Callable[[], object]) -> float:
        return _timed(call, scale.seconds, failed)

    return Speed(
        bucket=bucket,
        jobs=len(jobs),
        bytes=sum(array.nbytes for array in outputs.values()),
        cpu=timed(lambda: run(device.cpu, [real])),
        alone_plain=timed(lambda: run_plain(device.sessions, first)),
        alone=timed(lambda: run(device.sessions, first)),
        alone_graph=timed(lambda: run(device.graphs, first)),
        plain=timed(lambda: run_plain(device.sessions, jobs)),
        bound=timed(lambda: run(device.sessions, jobs)),
        graph=timed(lambda: run(device.graphs, jobs)),
        half=timed(lambda: run(device.sessions, half)),
        finite=timed(finite),
        unflagged=timed(lambda: run(device.unflagged, jobs)),
        failed=tuple(failed),
    )


# The page


@dataclass
class Findings:
    """All that was found."""

    device: str
    provider: str
    command: str
    took: float
    agreements: list[Agreement]
    copies: Copies
    speeds: list[Speed]
    scale: Scale
    memory: tuple[int, int] | None = None
    analysed: list[Analysed] = field(default_factory=list)
    left: Mapping[str, Counter[str] | None] = field(default_factory=dict)
    """The operators of each analysis graph that the CPU runs."""


def page(found: Findings) -> str:
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Findings) -> Iterator[str]:
    yield f"`{found.command}`, {found.took:.0f} s, on {found.device}."
    yield f"{versions()}."
    yield ""
    if found.provider == CPU:
        yield "**This ran on the CPU. It shows that the check works, and nothing about a GPU.**"
        yield ""
    yield f"Differences from the CPU: of weights, and of the rest in proportion to the largest; allowed {AGREES:g}."
    yield "Requests of 33, 40, 47, 48 and of 200, 256 tokens: padded in one run here, each alone on the CPU."
    yield ""
    yield "| graph | weights | scores | output | CUDA graph | summary | comparison | agrees | run by the CPU |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for one in found.agreements:
        listed = (*(one.errors.get(name) for name in (*OUTPUTS, "output")), one.replayed)
        errors = " | ".join("-" if error is None else f"{error:.1e}" for error in listed)
        agrees = one.failed or ("yes" if one.agrees else "**no**")
        rows = " | ".join(map(_largest, (one.summaries, one.comparisons)))
        yield f"| {one.encoding} | {errors} | {rows} | {agrees} | {_left(found, one.left)} |"
    yield ""
    yield (
        "Summary and comparison: the largest difference of all numbers of rows, in proportion to the largest of its "
        f"kind if that is over 1; of what goes by steps, such as the key of the largest weight, {FEW:.0%} of the rows "
        "may be a step off."
    )
    for name, left in found.left.items():
        yield f"Of the graph `{name}` the CPU runs: {_left(found, left)}."
    scale = found.scale
    yield ""
    yield (
        f"RoPE, {scale.heads} heads of {scale.head_dim}, weights and scores. Milliseconds of a run, with assembling "
        "and cutting, of one request and of as many as the policy lets share a run; the CPU's is one core, unpadded."
    )
    yield ""
    yield (
        "| bucket | CPU, 1 | plain, 1 | bound, 1 | CUDA graph, 1 | requests | plain | bound | CUDA graph | float16 | "
        "finite? host | device |"
    )
    yield "|" + "---:|" * 12
    for speed in found.speeds:
        alone = (speed.cpu, speed.alone_plain, speed.alone, speed.alone_graph)
        looking = max(0.0, speed.bound - speed.unflagged)
        shared = (speed.plain, speed.bound, speed.graph, speed.half, speed.finite, looking)
        times = (" | ".join(map(_ms, several)) for several in (alone, shared))
        yield f"| {speed.bucket} | {f' | {speed.jobs} | '.join(times)} |"
    down = found.copies.down
    yield ""
    yield (
        f"Page-locked copies reach {found.copies.up / 1e9:.1f} GB/s to the device and {down / 1e9:.1f} GB/s back; the "
        "last column is the share of the latter that the answers of a whole run come back at."
    )
    yield ""
    yield (
        "| bucket | requests/s | binding, 1 | CUDA graph, 1 | binding | batching | CUDA graph | float16 | GB/s | "
        "of the copy |"
    )
    yield "|" + "---:|" * 10
    for speed in found.speeds:
        gains = (
            speed.alone_plain / speed.alone,
            speed.alone / speed.alone_graph,
            speed.plain / speed.bound,
            speed.jobs * speed.alone / speed.bound,
            speed.bound / speed.graph,
            speed.bound / speed.half,
        )
        yield (
            f"| {speed.bucket} | {speed.requests:,.0f} | {' | '.join(f'{gain:.2f}x' for gain in gains)} | "
            f"{speed.rate / 1e9:.2f} | {speed.rate / down:.0%} |"
        )
    for speed in found.speeds:
        for reason in speed.failed:
            yield f"\n{speed.bucket} tokens failed: {reason}"
    if found.analysed:
        yield from _analysis_lines(found)
    if found.memory is not None:
        used, total = found.memory
        yield ""
        yield f"Of the device's {total / 2**30:.0f} GiB, {used / 2**30:.1f} GiB were in use at the end."


def _analysis_lines(found: Findings) -> Iterator[str]:
    yield ""
    yield (
        "The same with the default summary of the rows, and runs that compare two such matrices by the default "
        "metrics. *share*: of the shared run's time, what the summary takes; *only*: a shared run that gives the "
        "summary and no matrix."
    )
    yield ""
    yield (
        "| bucket | CPU, 1 | 1 | requests | together | CUDA graph | only | share | requests/s one by one | together | "
        "batching |"
    )
    yield "|" + "---:|" * 11
    for one in found.analysed:
        times = " | ".join(map(_ms, (one.cpu, one.alone))), " | ".join(map(_ms, (one.shared, one.graph, one.only)))
        yield (
            f"| {one.bucket} | {times[0]} | {one.jobs} | {times[1]} | {max(0.0, 1 - one.plain / one.shared):.0%} | "
            f"{1 / one.alone:,.0f} | {one.jobs / one.shared:,.0f} | {one.jobs * one.alone / one.shared:.2f}x |"
        )
    yield ""
    yield (
        "| bucket | CPU, 1 | 1 | comparisons | together | comparisons/s one by one | together | batching | of a "
        "request of two encodings |"
    )
    yield "|" + "---:|" * 9
    for one in found.analysed:
        times = " | ".join(map(_ms, (one.pair_cpu, one.pair_alone))), _ms(one.pair_shared)
        each = one.pair_shared / one.pairs
        yield (
            f"| {one.bucket} | {times[0]} | {one.pairs} | {times[1]} | {1 / one.pair_alone:,.0f} | {1 / each:,.0f} | "
            f"{one.pair_alone / each:.2f}x | {each / (each + 2 * one.shared / one.jobs):.0%} |"
        )
    for one in found.analysed:
        for reason in one.failed:
            yield f"\n{one.bucket} tokens with a summary or a comparison failed: {reason}"


def _largest(errors: Mapping[str, float]) -> str:
    return f"{max(errors.values()):.1e}" if errors else "-"


def _left(found: Findings, left: Counter[str] | None) -> str:
    if found.provider == CPU:
        return "all"
    if left is None:
        return "not known"
    return ", ".join(f"{count} {name}" for name, count in sorted(left.items())) or "nothing"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}" if seconds >= 0.01 else f"{seconds * 1e3:.3f}"


def write(path: Path, text: str) -> None:
    """Replaces what stands between the two marks of a page that has them, or else the whole file."""
    before, begin, rest = path.read_text().partition(BEGIN) if path.exists() else ("", "", "")
    _, end, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{text}{END}{after}" if begin and end else text)


def check(device: Device, scale: Scale, command: str, say: Callable[[str], None]) -> Findings:
    began = time.perf_counter()
    agreements, served = [], encodings()
    for encoding in served:
        one = agreement(device, encoding, scale)
        agreements.append(one)
        worst = max(one.errors.values(), default=math.nan)
        rows, pairs = _largest(one.summaries), _largest(one.comparisons)
        say(f"  {one.encoding}: {one.failed or f'{worst:.1e}, summary {rows}, comparison {pairs}'}")
    left = {path.stem: _left_of(path, device.provider, (EXACT,)) for path in (ROWS, PAIRS)}
    memory = device.memory
    reached = copies(memory, scale.copied, scale.seconds)
    say(f"  copies: {reached.up / 1e9:.1f} GB/s to the device, {reached.down / 1e9:.1f} GB/s back")
    rope = next(encoding for encoding in served if (encoding.model, encoding.name) == ("identity", "rope"))
    speeds, analysed = [], []
    for bucket in scale.buckets:
        if time.perf_counter() - began > LONGEST:
            say(f"  stopped after {LONGEST} s, before {bucket} tokens")
            break
        fast = measure(device, rope, bucket, scale)
        speeds.append(fast)
        say(f"  {bucket} tokens: {fast.requests:,.0f} requests/s, {fast.jobs} in a run of {_ms(fast.bound)} ms")
        both = measure_analysis(device, rope, bucket, scale)
        analysed.append(both)
        summaries, comparisons = both.jobs / both.shared, both.pairs / both.pair_shared
        say(f"    {summaries:,.0f} requests with a summary a second, {comparisons:,.0f} comparisons")
    used = memory.used() if isinstance(memory, CudaMemory) else None
    took = time.perf_counter() - began
    name = device.provider.name
    return Findings(device.name, name, command, took, agreements, reached, speeds, scale, used, analysed, left)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m load_tests.gpu_check", description="What a GPU does for this service.")
    parser.add_argument("--quick", action="store_true", help="fewer lengths, shorter measurements")
    parser.add_argument("--out", type=Path, help="write the tables to this file, between its marks if it has them")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: only to see that this runs")
    options = parser.parse_args(arguments)
    command = " ".join(["python -m load_tests.gpu_check", *arguments])
    if options.device == "cuda":
        problem = cuda_problem(Provider(CUDA, {"use_tf32": "0"}))
        if problem is not None:
            print(f"There is no GPU to look at: {problem}.", file=sys.stderr)
            print("`--device cpu` runs the same on the CPU, to see that it runs.", file=sys.stderr)
            return NO_GPU
        device, scale = Device.cuda(), QUICK if options.quick else FULL
    else:
        device, scale = Device.host(), SMALLEST if options.quick else QUICK
    # Why a graph runs without CUDA graphs, or memory is not bound.
    logging.basicConfig(level=logging.INFO, format="  %(message)s")
    print(f"{device.name}; {versions()}", flush=True)
    found = check(device, scale, command, lambda line: print(line, flush=True))
    text = page(found)
    print(f"\n{text}")
    if options.out is not None:
        write(options.out, text)
    wrong = [one.encoding for one in found.agreements if not one.agrees]
    failed = [speed.bucket for speed in found.speeds if speed.failed]
    failed += [speed.bucket for speed in found.analysed if speed.failed]
    wrong += [f"{bucket} tokens" for bucket in dict.fromkeys(failed)]
    if wrong:
        print(f"failed, or does not agree with the CPU: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
