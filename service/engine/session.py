"""onnxruntime sessions: one for each graph, set of outputs, mask or none, and switches; built when first asked for."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import onnxruntime

from service.engine import placing
from service.engine.appending import APPENDED, EXACT, append, appended
from service.engine.assembly import Empty
from service.engine.binding import Binding
from service.engine.cuda_memory import CudaError, CudaMemory
from service.engine.device import CPU, CUDA, NO_GRAPH, Device, Provider, choose, graph_options, quiet_options, smallest
from service.engine.finiteness import FINITE, flag, flagged, implied, softmaxes
from service.engine.job import Graph, Into, Job, digest
from service.engine.masking import VISIBLE, add_mask
from service.engine.memory import Memory
from service.engine.permuting import WIDEST, permute
from service.engine.picking import pick_less
from service.engine.pruning import prune, whole
from service.engine.reshaping import reshape_simply
from service.engine.uncopied import uncopied
from service.finite import all_finite

T = TypeVar("T")

logger = logging.getLogger(__name__)

PAUSES = (0.01, 0.03, 0.1, 0.2)
"""Seconds before a file that is not whole is read again: the same may be being copied over it."""

LEAST = 64 << 20
"""Bytes of sessions that a process has room for, however many share the capacity: those that are asked for most."""


TELLING = ("weights", "output")
ROW_SUM = f"{APPENDED}row_sum"

ASKED = 1 << 16
"""Cells of a mask from which each row is asked whether it sees anything: that takes 1 % of a run at most."""


class Session:
    """A graph ready to run, from many threads at once. `inputs` are those it needs; `run` may be given more.

    `native` is onnxruntime's own session, `options` are those of its runs. With `graphs` its runs may be captured as
    CUDA graphs: RuntimeError where a part of it would be run by the CPU. `rows` are its `softmaxes`, `passed`
    what is `implied`. One that is `trusting` has its mask added (`add_mask`): where that is not good enough, its
    results say so.
    """

    def __init__(
        self,
        model: bytes | Path,
        provider: Provider,
        threads: int = 1,
        *,
        graphs: bool = False,
        rows: frozenset[str] = frozenset(),
        passed: frozenset[str] = frozenset(),
        trusting: bool = False,
    ) -> None:
        self.graphs = graphs
        self.rows, self.passed = rows, passed
        self.trusting = trusting
        # Without options, every run would be captured, and replayed with inputs that have gone.
        self.options = graph_options(NO_GRAPH) if graphs else None
        if graphs:
            provider = replace(provider, options={**provider.options, "enable_cuda_graph": "1"})
        # One unless told otherwise: parallel runs scale better than parallel operators.
        options = quiet_options(threads)
        options.enable_mem_pattern = False
        # One arena for all sessions (`_share_allocator`): 8 of them took 270 MB instead of 1,142.
        options.add_session_config_entry("session.use_env_allocators", "1")
        source = model if isinstance(model, bytes) else str(model)
        # No fallback: onnxruntime would otherwise move to the CPU in silence.
        self.native: Any = onnxruntime.InferenceSession(source, options, provider.chain, enable_fallback=0)
        self.provider: str = self.native.get_providers()[0]
        if self.provider != provider.name:
            raise RuntimeError(f"onnxruntime chose {self.provider} where {provider.name} was asked for")
        self.inputs = tuple(value.name for value in self.native.get_inputs())
        self.outputs = tuple(value.name for value in self.native.get_outputs())
        # onnxruntime keeps the file's bytes and a copy of the weights laid out for its kernels; the rest was measured.
        self.bytes = 2 * (len(model) if isinstance(model, bytes) else model.stat().st_size) + 250_000

    def run(self, output_names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """These outputs. Raises ValueError naming the inputs that are missing; onnxruntime's own exceptions else."""
        needed = self.needed(feeds)
        results: list[np.ndarray] = self.native.run(
            output_names, dict(zip(self.inputs, needed, strict=True)), self.options
        )
        return results

    def needed(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The inputs, in the graph's order. Raises ValueError naming those that are missing."""
        try:
            return [feeds[name] for name in self.inputs]
        except KeyError:
            missing = [name for name in self.inputs if name not in feeds]
            raise ValueError(f"the graph also needs {', '.join(missing)}; given: {', '.join(feeds)}") from None


class Sessions:
    """Runs scores graphs on one device. Safe to share between threads: of two that ask for the same session, one
    builds it.

    About `capacity` bytes of sessions are held, the least recently used go first. A `Graph` of another digest is
    another graph.
    """

    def __init__(
        self,
        device: Device = "auto",
        *,
        threads: int = 1,
        capacity: int = 512 << 20,
        memory: Memory | None = None,
        cuda_graphs: bool = False,
        flags: bool = True,
    ) -> None:
        """On CUDA, inputs and outputs are bound to its memory; `memory` is bound to instead, on any device. With
        `cuda_graphs`, runs that recur are captured and replayed. With `flags`, runs on bound memory say whether all
        their numbers are finite.

        Raises DeviceError where `device` is cuda and CUDA does not work.
        """
        _share_allocator()
        self._provider = choose(device)
        if memory is None and self._provider.name == CUDA:
            memory = _cuda_memory()
        self._binding = None if memory is None else Binding(memory)
        self._graphs = cuda_graphs and self._binding is not None
        self._flags = flags and self._binding is not None
        self._permutes = self._provider.name == CPU
        self._threads = threads
        self._capacity = capacity
        self._lock = threading.Lock()
        self._sessions: OrderedDict[tuple[Hashable, ...], Future[Session]] = OrderedDict()
        self._built: set[tuple[Hashable, ...]] = set()
        self._smallest: Session | None = None

    @property
    def provider(self) -> str:
        return self._provider.name

    def divide(self, processes: int) -> None:
        """So many processes, of which this is one or will be, have the capacity together."""
        self._capacity = max(self._capacity // processes, min(self._capacity, LEAST))

    def run(
        self,
        graph: Graph,
        outputs: tuple[str, ...],
        masked: bool,
        feeds: Mapping[str, np.ndarray],
        switches: tuple[str, ...] = (),
        into: Into | None = None,
    ) -> dict[str, np.ndarray]:
        """These outputs of the graph, on the CPU in the arrays of `into`, and `FINITE`, for whoever computes them is
        quicker to find it out. Feeds it does not need are ignored.
        """
        narrow = _narrow(feeds.get("queries"))
        session = self.session(graph, outputs, masked, switches, narrow)
        if self._binding is not None:
            return dict(zip(session.outputs, self._binding.run(session, feeds), strict=True))
        if session.trusting and _blind(feeds[VISIBLE]):
            session = self.session(graph, outputs, masked, switches, narrow, careful=True)
        found, told = _run(session, outputs, feeds, into)
        if session.trusting and _suspect(found, told):
            session = self.session(graph, outputs, masked, switches, narrow, careful=True)
            found, told = _run(session, outputs, feeds, into)
        return found if told is None else {**found, FINITE: told}

    @property
    def empty(self) -> Empty:
        """Makes arrays that the device reads fastest."""
        return np.empty if self._binding is None else self._binding.pool.empty

    def session(
        self,
        graph: Graph,
        outputs: tuple[str, ...],
        masked: bool,
        switches: tuple[str, ...] = (),
        narrow: bool = False,
        *,
        careful: bool = False,
    ) -> Session:
        """The session for this, built now if need be. A build that fails is tried again the next time. `narrow`: for
        heads of at most `permuting.WIDEST` numbers. `careful`: one that is not `trusting`.
        """
        narrow = narrow and self._permutes
        key = _key(graph, outputs, masked, switches, narrow, careful)
        return self._get(key, lambda: self._pruned(graph, outputs, masked, switches, narrow, careful))

    def ready(self, job: Job) -> bool:
        """Whether the session that this needs has been built."""
        narrow = self._permutes and _narrow(job.queries)
        return _key(job.graph, job.outputs, job.masked, job.switches, narrow) in self._built

    def positions(self, path: Path) -> Session:
        """A positions graph, whole, and on the CPU whatever the device. A file that has changed is opened anew."""
        status = path.stat()
        key = (str(path), status.st_mtime_ns, status.st_size)
        return self._get(key, lambda: _whole(lambda: Session(path, Provider(CPU), self._threads)))

    def inputs(
        self, graph: Graph, outputs: tuple[str, ...], masked: bool, switches: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """The inputs that these outputs need."""
        return self.session(graph, outputs, masked, switches).inputs

    def give_back(self) -> None:
        """Returns memory to the system that no run needs now. It takes about a tenth of a second for a gigabyte, in
        which runs that need memory wait.
        """
        if self._binding is not None:
            self._binding.pool.give_back()
        if self._smallest is None:
            self._smallest = Session(smallest(), Provider(CPU))
        options = onnxruntime.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self._smallest.native.run(None, {"x": np.ones(1, np.float32)}, options)
        # What the arena frees, the C library keeps.
        with suppress(AttributeError):  # only GNU's has it
            ctypes.CDLL(None).malloc_trim(0)

    def drop(self, name: str, *, keep_digest: str | None = None) -> int:
        """Forgets the sessions of the scores graph `name`, but those of `keep_digest`. Runs in flight finish on
        theirs.
        """
        with self._lock:
            gone = [key for key in self._sessions if key[0] == name and key[1] != keep_digest]
            for key in gone:
                del self._sessions[key]
                self._built.discard(key)
        return len(gone)

    def __len__(self) -> int:
        return len(self._sessions)

    def model(
        self,
        graph: Graph,
        outputs: tuple[str, ...],
        masked: bool,
        switches: tuple[str, ...],
        narrow: bool,
        careful: bool = False,
    ) -> tuple[onnx.ModelProto, bool] | None:
        """What a session is built of, and whether that is `trusting`; None where it is the same for wide heads."""
        behind = [name.removeprefix(APPENDED) for name in outputs if appended(name)]
        wanted = tuple(name for name in outputs if not appended(name))
        reads: set[str] = set()
        if behind:
            if graph.behind is None:
                raise ValueError(f"nothing is behind {graph.name}, which has no {', '.join(behind)}")
            analysis = prune(onnx.load(graph.behind), behind, masked, (*switches, EXACT))
            reads = {value.name for value in analysis.graph.input} & {"weights", "scores"}
        scores = onnx.load_model_from_string(_whole(lambda: _content(graph)))
        model = prune(scores, (*wanted, *sorted(reads - {*wanted})), masked, switches)
        on_cpu = self._provider.name == CPU
        if narrow:
            permuted = permute(model)
            if permuted is None:
                return None
            model = permuted
        if on_cpu:
            model = pick_less(model) or model
        if behind:
            model = append(model, analysis, outputs)
        model, trusting = reshape_simply(uncopied(model)), None
        if masked and on_cpu and self._binding is None and not careful and _telling(outputs):
            trusting = add_mask(model)
        model = trusting or model
        return flagged(model) if self._flags else model, trusting is not None

    def _pruned(
        self,
        graph: Graph,
        outputs: tuple[str, ...],
        masked: bool,
        switches: tuple[str, ...],
        narrow: bool,
        careful: bool,
    ) -> Session:
        found = self.model(graph, outputs, masked, switches, narrow, careful)
        if found is None:
            return self.session(graph, outputs, masked, switches, careful=careful)
        pruned, trusting = found
        model = pruned.SerializeToString()
        if self._graphs:
            try:
                return Session(model, self._provider, self._threads, graphs=True)
            except Exception as error:  # onnxruntime's errors share no other base
                logger.info("%s runs without CUDA graphs: %s", graph.name, error)
        rows, passed = softmaxes(pruned), implied(pruned)
        return Session(model, self._provider, self._threads, rows=rows, passed=passed, trusting=trusting)

    def _get(self, key: tuple[Hashable, ...], build: Callable[[], Session]) -> Session:
        with self._lock:
            found = self._sessions.get(key)
            if found is None:
                mine = self._sessions[key] = Future()
            else:
                self._sessions.move_to_end(key)
        if found is not None:
            return found.result()
        try:
            session = build()
        except BaseException as error:
            with self._lock:
                if self._sessions.get(key) is mine:
                    del self._sessions[key]
            mine.set_exception(error)
            raise
        mine.set_result(session)
        self._built.add(key)
        self._shrink(key)
        return session

    def _shrink(self, used: Hashable) -> None:
        with self._lock:
            built = {key: one.result().bytes for key, one in self._sessions.items() if one.done()}
            excess = sum(built.values()) - self._capacity
            for key, size in built.items():
                if excess > 0 and key != used:
                    del self._sessions[key]
                    self._built.discard(key)
                    excess -= size


def _whole(read: Callable[[], T]) -> T:
    """What `read` makes of a file that may just now be copied over itself. Raises what it raises at last."""
    for pause in PAUSES:
        try:
            return read()
        except FileNotFoundError:
            raise
        except Exception:  # onnxruntime's errors share no other base
            time.sleep(pause)
    return read()


def _content(graph: Graph) -> bytes:
    content = graph.path.read_bytes()
    if digest(content) != graph.digest:
        raise RuntimeError(f"{graph.path} has been replaced since it was read")
    return content


def _narrow(queries: np.ndarray | None) -> bool:
    """Whether heads are narrow. Those that a model projects to are; a graph without queries has none."""
    return queries is not None and queries.size > 0 and (queries.ndim < 4 or queries.shape[-1] <= WIDEST)


def _key(
    graph: Graph,
    outputs: tuple[str, ...],
    masked: bool,
    switches: tuple[str, ...],
    narrow: bool,
    careful: bool = False,
) -> tuple[Hashable, ...]:
    return graph.name, graph.digest, outputs, masked, switches, narrow, careful


def _run(
    session: Session, outputs: Sequence[str], feeds: Mapping[str, np.ndarray], into: Into | None
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """These outputs, and whether all their numbers are finite."""
    if into is not None and session.provider == CPU:
        placing.run(session, feeds, into)
        found = {name: into.arrays[name] for name in outputs}
    else:
        found = dict(zip(outputs, session.run(outputs, feeds), strict=True))
    return found, flag(found, session.rows, session.passed)


def _telling(outputs: Sequence[str]) -> bool:
    """Whether a NaN among weights shows in these outputs."""
    return any(whole(name) in (*TELLING, ROW_SUM) for name in outputs)


def _suspect(found: Mapping[str, np.ndarray], told: np.ndarray | None) -> bool:
    """Whether weights may be NaN that would be numbers if their mask had not been added."""
    sums = found.get(ROW_SUM)
    if sums is not None and not all_finite(sums):
        return True
    return told is not None and not all_finite(told)


def _blind(visible: np.ndarray) -> bool:
    """Whether a row sees nothing, where to ask costs little beside a run. Where it is not asked, NaN will tell."""
    return visible.size >= ASKED and not visible.any(axis=-1).all()


def _cuda_memory() -> Memory | None:
    try:
        return CudaMemory()
    except CudaError as error:
        logger.warning("inputs and outputs are not bound to the device's memory: %s", error)
        return None


@cache
def _share_allocator() -> None:
    """The arena that all sessions of this process allocate from. It doubles as it grows. Shrinking it after every run
    made resident memory rise without end.
    """
    info = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(info, onnxruntime.OrtArenaCfg({"arena_extend_strategy": 0}))
