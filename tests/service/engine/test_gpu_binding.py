"""Binding, on the CPU: `HostMemory` stands for the device's. Addresses, layouts, reuse and lifetimes are the same."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from service.engine.appending import APPENDED
from service.engine.assembly import assemble
from service.engine.binding import Binding
from service.engine.cuda_memory import CudaError
from service.engine.device import CPU, NO_GRAPH, Provider
from service.engine.finiteness import FINITE
from service.engine.job import Graph, Job, digest
from service.engine.memory import ALIGNMENT, HostMemory, Memory, Pool, Resident, Slab
from service.engine.session import Session, Sessions
from service.summaries.graph import row_feeds
from service.summaries.layout import Layout
from tests.service.engine.exports import IDENTITY, exported, exported_job
from tests.service.engine.fakes import OUTPUTS, assert_expected, bias_tables, write_scores_graph

ROWS = IDENTITY.parent / "analysis" / "rows.onnx"


class Counting(HostMemory):
    """Counts what is copied."""

    def __init__(self) -> None:
        super().__init__()
        self.uploads: list[int] = []
        self.downloads: list[int] = []
        self.freed: list[int] = []

    def upload(self, array: np.ndarray, address: int) -> None:
        self.uploads.append(array.nbytes)
        super().upload(array, address)

    def download(self, address: int, array: np.ndarray) -> None:
        self.downloads.append(array.nbytes)
        super().download(address, array)

    def free(self, address: int) -> None:
        self.freed.append(address)
        super().free(address)

    def held(self) -> int:
        return len(self._blocks)


@pytest.fixture
def memory() -> Counting:
    return Counting()


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return write_scores_graph(tmp_path_factory.mktemp("graphs"))


def random_job(
    graph: Graph, tokens: int = 5, batch: int = 1, outputs: tuple[str, ...] = ("weights", "scores"), seed: int = 0
) -> Job:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((batch, tokens, 2, 4), dtype=np.float32)
    visible = generator.random((batch, 1, tokens, tokens)) < 0.8
    tables = bias_tables(2, tokens, tokens, seed)
    for array in tables.arrays.values():
        array.flags.writeable = False
    return Job(graph, tables, outputs, x, x, visible, batch * 2 * tokens * tokens * len(outputs))


def run(sessions: Sessions, job: Job) -> dict[str, np.ndarray]:
    found = sessions.run(job.graph, job.outputs, job.masked, assemble([job], sessions.empty), job.switches)
    assert (FINITE in found) is any(array.ndim == 4 for array in found.values())
    return {name: array for name, array in found.items() if name != FINITE}


# Values


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_run_gives_what_it_gives_unbound(graph: Graph, data: st.DataObject) -> None:
    sessions = bound_sessions()
    for seed in range(data.draw(st.integers(1, 4))):
        outputs = tuple(data.draw(st.permutations(OUTPUTS))[: data.draw(st.integers(1, 5))])
        job = random_job(graph, data.draw(st.integers(1, 40)), data.draw(st.integers(1, 4)), outputs, seed)
        if data.draw(st.booleans()):
            job = replace(job, visible=None)
        assert_expected([job], [run(sessions, job)])


@pytest.fixture(scope="module")
def exported_sessions() -> tuple[Sessions, Sessions]:
    return Sessions("cpu"), Sessions("cpu", memory=HostMemory())


def bound_sessions(memory: Memory | None = None) -> Sessions:
    return Sessions("cpu", memory=memory or HostMemory())


@pytest.mark.parametrize("encoding", exported())
def test_every_exported_encoding_can_be_bound(exported_sessions: tuple[Sessions, Sessions], encoding: str) -> None:
    plain, bound = exported_sessions
    for outputs in (("weights", "scores", "output"), ("half.weights",)):
        job = exported_job(plain, encoding, outputs, 7, 1)
        expected, found = run(plain, job), run(bound, job)
        for name in outputs:
            assert found[name].dtype == expected[name].dtype
            np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("model", ["identity", "tiny"])
def test_summaries_are_bound_and_come_back_in_the_same_copy(memory: Counting, model: str) -> None:
    """Also sums over diagonals, whose size is a sum, and where the model knows its number of heads."""
    behind = onnx.load(ROWS)
    outputs = ("weights", *(APPENDED + value.name for value in behind.graph.output))
    path = IDENTITY.parent / model / "none.onnx"
    graph = Graph(f"{model}.none", path, digest(path.read_bytes()), ROWS)
    queries, keys, heads = 5, 7, 2 if model == "identity" else 4
    generator = np.random.default_rng(0)
    feature = (heads, 4) if model == "identity" else (64,)
    tokens = generator.integers(0, 3, (3, keys))
    layout = Layout(np.arange(2.0, 2 + queries), np.arange(float(keys)), tokens[:, 2:], tokens)
    feeds = {
        "queries": generator.standard_normal((3, queries, *feature), dtype=np.float32),
        "keys": generator.standard_normal((3, keys, *feature), dtype=np.float32),
        "table.scale": np.array(0.5, np.float32),
        "visible": np.ones((3, 1, 1, keys), bool),
        **{APPENDED + name: array for name, array in row_feeds(layout, ("distance",), 1e-5).items()},
    }
    found = bound_sessions(memory).run(graph, outputs, True, feeds)
    expected = Sessions("cpu").run(graph, outputs, True, feeds)
    assert len(memory.downloads) == 1
    assert found[f"{APPENDED}diagonals"].shape == (3, heads, queries + keys + 1)
    for name in outputs:
        np.testing.assert_array_equal(found[name], expected[name])


def test_inputs_of_another_type_are_refused_and_never_read_as_they_lie(graph: Graph) -> None:
    sessions, job = bound_sessions(), random_job(graph)
    feeds = assemble([job])
    for name, kind in (("queries", np.float64), ("visible", np.uint8)):
        wrong = {**feeds, name: feeds[name].astype(kind)}
        with pytest.raises(ValueError, match=rf"'{name}' is {np.dtype(kind)}, but the graph takes"):
            sessions.run(graph, job.outputs, True, wrong)


def test_inputs_that_are_missing_are_named(graph: Graph) -> None:
    with pytest.raises(ValueError, match="the graph also needs queries"):
        bound_sessions().run(graph, ("scores",), True, {"keys": np.zeros((1, 2, 1, 2), np.float32)})


def test_inputs_that_do_not_lie_in_order_are_put_in_order(graph: Graph) -> None:
    job = random_job(graph, 6)
    turned = np.asfortranarray(job.queries)
    assert not turned.flags.c_contiguous
    job = replace(job, queries=turned, keys=turned)
    assert_expected([job], [run(bound_sessions(), job)])


def test_a_graph_whose_answers_have_sizes_of_their_own_runs_unbound(memory: Counting, tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["queries"], ["found"])]
    inputs = [helper.make_tensor_value_info("queries", TensorProto.FLOAT, ["n"])]
    outputs = [helper.make_tensor_value_info("found", TensorProto.INT64, [1, "count"])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    )
    onnx.save(model, tmp_path / "g.onnx")
    found = Sessions("cpu", memory=memory).run(
        Graph("g", tmp_path / "g.onnx", digest(model.SerializeToString())),
        ("found",),
        True,
        {"queries": np.array([0, 1, 2], np.float32)},
    )
    np.testing.assert_array_equal(found["found"], [[1, 2]])
    assert not memory.downloads


# Copies and memory


def test_all_outputs_come_back_in_one_copy(memory: Counting, graph: Graph) -> None:
    run(bound_sessions(memory), random_job(graph, outputs=OUTPUTS))
    assert len(memory.downloads) == 1


def test_tables_that_come_again_stay_on_the_device_and_queries_do_not(memory: Counting, graph: Graph) -> None:
    sessions, job = bound_sessions(memory), random_job(graph)
    run(sessions, job)
    run(sessions, job)
    first, memory.uploads = memory.uploads[4:], []
    run(sessions, job)
    assert sorted(first) == sorted([4, 2 * 5 * 5 * 4, 5 * 2 * 4 * 4, 25])
    assert sorted(memory.uploads) == sorted([5 * 2 * 4 * 4, 25])


def test_keys_that_are_the_queries_are_copied_once(memory: Counting, graph: Graph) -> None:
    job = random_job(graph, 33)
    run(bound_sessions(memory), job)
    assert memory.uploads.count(job.queries.nbytes) == 1


def test_a_read_only_mask_stays_on_the_device_and_a_read_only_body_does_not(memory: Counting, graph: Graph) -> None:
    sessions, job = bound_sessions(memory), random_job(graph)
    assert job.visible is not None
    job.visible.flags.writeable = False
    job.queries.flags.writeable = False
    run(sessions, job)
    run(sessions, job)
    memory.uploads = []
    run(sessions, job)
    assert memory.uploads == [job.queries.nbytes]


def test_results_are_not_overwritten_while_somebody_holds_a_part_of_them(graph: Graph) -> None:
    sessions = bound_sessions()
    jobs = [random_job(graph, seed=seed) for seed in range(6)]
    kept = [run(sessions, job) for job in jobs]
    assert_expected(jobs, kept)
    slices = [outputs["scores"][0, 1, 2:] for outputs in kept]
    copies = [part.copy() for part in slices]
    del kept
    gc.collect()
    for job in jobs:
        run(sessions, job)
    for part, copy in zip(slices, copies, strict=True):
        np.testing.assert_array_equal(part, copy)


def test_memory_of_results_that_are_gone_is_used_again(memory: Counting, graph: Graph) -> None:
    sessions, job = bound_sessions(memory), random_job(graph)
    run(sessions, job)
    run(sessions, job)
    before = memory.held()
    for _ in range(50):
        run(sessions, job)
    assert memory.held() == before


def test_memory_is_that_of_the_largest_run_whatever_the_shapes_are(memory: Counting, graph: Graph) -> None:
    sessions = bound_sessions(memory)
    run(sessions, random_job(graph, 200, 4))
    before = memory.held()
    for tokens in range(1, 60):
        run(sessions, random_job(graph, tokens))
    # One block for each size of a result, and tables: these jobs bring tables of their own.
    assert memory.held() <= before + 2 * 59 + 8


def test_what_is_bound_is_bound_once_for_each_shape(graph: Graph) -> None:
    binding = Binding(HostMemory(), kept=3)
    session = Sessions("cpu").session(graph, ("weights", "scores"), True)
    jobs = [random_job(graph, tokens) for tokens in (3, 4, 3, 3)]
    feeds = [assemble([job]) for job in jobs]
    for one in (*feeds, *feeds):
        binding.run(session, one)
    signature = binding._signatures[session]
    assert len(signature.bound) == 3  # two of the four have tables that are elsewhere, but no more than 3 are kept
    assert all(bound.graph == NO_GRAPH for bound in signature.bound.values())


def test_what_was_bound_for_a_session_goes_with_it(graph: Graph) -> None:
    binding = Binding(HostMemory())
    session = Sessions("cpu").session(graph, ("weights", "scores"), True)
    binding.run(session, assemble([random_job(graph)]))
    assert len(binding._signatures) == 1
    del session
    gc.collect()
    assert len(binding._signatures) == 0


def test_a_slab_that_moves_is_bound_anew(graph: Graph) -> None:
    sessions = bound_sessions()
    small = random_job(graph, 3)
    first = run(sessions, small)
    large = random_job(graph, 300, 3)
    assert_expected([large], [run(sessions, large)])
    second = run(sessions, small)
    assert_expected([small, small], [first, second])


def test_many_threads_share_one_binding(graph: Graph) -> None:
    sessions, wrong = bound_sessions(), []

    def work(seed: int) -> None:
        for i in range(30):
            job = random_job(graph, 3 + (seed + i) % 9, seed=seed)
            try:
                assert_expected([job], [run(sessions, job)])
            except AssertionError as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# CUDA graphs: on the CPU the numbers of the graphs are handed over and ignored


def graph_session(graph: Graph) -> Session:
    return Session(graph.path, Provider(CPU), graphs=True)


def test_a_run_is_captured_once_it_has_recurred(graph: Graph) -> None:
    binding, session = Binding(HostMemory(), warm=2), graph_session(graph)
    feeds = assemble([random_job(graph)])
    binding.run(session, feeds)  # from then on tables are where they stay
    captured = []
    for _ in range(4):
        binding.run(session, feeds)
        captured.append(binding.graphs(session))
    assert captured == [0, 0, 1, 1]


def test_other_addresses_are_never_run_by_a_graph_that_was_captured_with_these(graph: Graph) -> None:
    binding, session = Binding(HostMemory(), warm=1), graph_session(graph)
    one, other = assemble([random_job(graph, seed=1)]), assemble([random_job(graph, seed=2)])
    for _ in range(3):
        binding.run(session, one)
        binding.run(session, other)
    numbers = [bound.graph for bound in binding._signatures[session].bound.values() if bound.graph != NO_GRAPH]
    assert (
        len(numbers) == len(set(numbers)) == 3
    )  # both had their tables pass through one place first, and then tables, and addresses, of their own


def test_so_many_graphs_are_captured_and_no_more(graph: Graph) -> None:
    binding, session = Binding(HostMemory(), warm=1, captured=2), graph_session(graph)
    for tokens in range(2, 8):
        feeds = assemble([random_job(graph, tokens)])
        for _ in range(3):
            binding.run(session, feeds)
    assert binding.graphs(session) == 2


class Native:
    """An onnxruntime session that notes which graph each run is of, and refuses to capture where it is told to."""

    def __init__(self, session: Session, *, refuses: bool = False) -> None:
        self._native, self.graphs, self.refuses = session.native, list[str](), refuses
        session.native = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        self.graphs.append(options.get_run_config_entry("gpu_graph_id"))
        if self.refuses and self.graphs[-1] != "-1":
            raise RuntimeError("operation not permitted when stream is capturing")
        self._native.run_with_iobinding(binding, options)


def test_a_run_that_cannot_be_captured_is_run_without_from_then_on(graph: Graph) -> None:
    binding, session = Binding(HostMemory(), warm=1), graph_session(graph)
    native, job = Native(session, refuses=True), random_job(graph)
    for _ in range(5):
        found = dict(zip(session.outputs, binding.run(session, assemble([job])), strict=True))
        assert_expected([job], [{name: found[name] for name in job.outputs}])
    assert [one for one in native.graphs if one != "-1"] == ["1"]
    assert binding.graphs(session) == 0


def test_what_fails_without_a_graph_fails(graph: Graph) -> None:
    binding, session = Binding(HostMemory(), warm=1), graph_session(graph)
    feeds = assemble([random_job(graph)])
    binding.run(session, feeds)
    Native(session).run_with_iobinding = None  # type: ignore[method-assign, assignment]
    with pytest.raises(TypeError):
        binding.run(session, feeds)


def test_a_graph_is_replayed_by_the_thread_that_captured_it_only(graph: Graph) -> None:
    binding, session = Binding(HostMemory(), warm=1), graph_session(graph)
    native, feeds = Native(session), assemble([random_job(graph)])
    for _ in range(4):
        binding.run(session, feeds)
    assert native.graphs[-1] == "1"
    thread = threading.Thread(target=binding.run, args=(session, feeds))
    thread.start()
    thread.join()
    assert native.graphs[-1] == "-1"
    binding.run(session, feeds)
    assert native.graphs[-1] == "1"


def test_a_session_without_graphs_captures_none(graph: Graph) -> None:
    binding, session = Binding(HostMemory(), warm=1), Session(graph.path, Provider(CPU))
    for _ in range(4):
        binding.run(session, assemble([random_job(graph)]))
    assert binding.graphs(session) == 0
    assert session.options is None


def test_runs_outside_of_a_graph_say_so(graph: Graph) -> None:
    options = graph_session(graph).options
    assert options is not None
    assert options.get_run_config_entry("gpu_graph_id") == "-1"


# Pieces


def test_arrays_of_a_pool_are_aligned_and_of_the_shape_asked_for() -> None:
    pool = Pool(HostMemory(), 1 << 20)
    array = pool.empty((3, 5), np.float32)
    assert array.shape == (3, 5)
    assert array.dtype == np.float32
    assert array.flags.writeable
    assert array.flags.c_contiguous
    assert array.ctypes.data % ALIGNMENT == 0


def test_a_pool_gives_ordinary_memory_above_its_capacity(memory: Counting) -> None:
    pool = Pool(memory, 3 * 4096)
    arrays = [pool.empty((4096,), np.uint8) for _ in range(5)]
    assert pool.bytes == 3 * 4096
    assert memory.held() == 3
    assert [array.flags.owndata for array in arrays] == [False] * 3 + [True] * 2


def test_a_pool_gives_blocks_of_other_sizes_back_where_it_needs_room(memory: Counting) -> None:
    pool = Pool(memory, 4 * 4096)
    small = [pool.empty((4096,), np.uint8) for _ in range(4)]
    del small
    gc.collect()
    large = pool.empty((8192,), np.uint8)
    assert not large.flags.owndata
    assert pool.bytes <= 4 * 4096
    assert len(memory.freed) == 2


def test_a_pool_gives_ordinary_memory_where_the_system_has_no_page_locked_one(memory: Counting) -> None:
    def fail(size: int) -> int:
        raise CudaError("cudaHostAlloc failed: out of memory (CUDA error 2)")

    memory.allocate_host = fail  # type: ignore[method-assign]
    pool = Pool(memory, 1 << 20)
    assert pool.empty((4096,), np.uint8).flags.owndata
    assert pool.bytes == 0


def test_a_pool_gives_back_what_nobody_holds(memory: Counting) -> None:
    pool = Pool(memory, 1 << 20)
    held, dropped = pool.empty((4096,), np.uint8), [pool.empty((size,), np.uint8) for size in (1, 5000, 70_000)]
    held[:] = 7
    del dropped
    gc.collect()
    pool.give_back()
    assert pool.bytes == 4096
    assert memory.held() == 1
    assert (held == 7).all()
    assert not pool.empty((5000,), np.uint8).flags.owndata


def test_an_array_may_be_dropped_by_any_thread() -> None:
    pool = Pool(HostMemory(), 1 << 20)
    held = [pool.empty((100,), np.float32)]
    address = held[0].ctypes.data
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert pool.empty((100,), np.float32).ctypes.data == address


def test_a_slab_that_cannot_grow_serves_what_is_smaller(memory: Counting) -> None:
    slab = Slab(memory, lambda: None)
    slab.reserve(100)

    def fail(size: int) -> int:
        raise CudaError("cudaMalloc failed: out of memory (CUDA error 2)")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "allocate", fail)
        with pytest.raises(CudaError):
            slab.reserve(1 << 30)
    assert slab.reserve(100)
    assert memory.held() == 1


def test_a_slab_grows_and_says_so() -> None:
    moved: list[int] = []
    slab = Slab(HostMemory(), lambda: moved.append(slab.size))
    first = slab.reserve(100)
    assert slab.reserve(1 << 20) == first
    slab.reserve((1 << 20) + 1)
    assert slab.size == 2 << 20
    assert moved == [0, 1 << 20]


def read_only(count: int, fill: float = 1.0) -> np.ndarray:
    array = np.full(count, fill, np.float32)
    array.flags.writeable = False
    return array


def again(resident: Resident, array: np.ndarray) -> int | None:
    """Where an array is that came before."""
    resident.address(array)
    return resident.address(array)


def test_what_comes_once_is_not_kept_on_the_device(memory: Counting) -> None:
    resident, array = Resident(memory, 1 << 20), read_only(256)
    resident.begin()
    assert resident.address(array) is None
    assert memory.held() == resident.bytes == 0
    assert resident.address(array) is not None
    assert resident.bytes == 1024


def test_of_what_came_once_so_much_is_remembered_and_no_more(memory: Counting) -> None:
    resident = Resident(memory, 1 << 20)
    arrays = [read_only(16) for _ in range(resident.REMEMBERED + 1)]
    for array in arrays:
        resident.address(array)
    assert resident.address(arrays[-1]) is not None
    assert resident.address(arrays[0]) is None


def test_what_stays_on_the_device_is_bounded_and_what_was_used_longest_ago_goes(memory: Counting) -> None:
    resident = Resident(memory, 3 * 1024)
    arrays = [read_only(256, i) for i in range(4)]
    for array in arrays[:3]:
        resident.begin()
        again(resident, array)
    resident.begin()
    first = again(resident, arrays[0])
    again(resident, arrays[3])
    assert resident.bytes == 3 * 1024
    memory.uploads = []
    resident.begin()
    assert resident.address(arrays[0]) == first
    assert memory.uploads == []
    again(resident, arrays[1])
    assert memory.uploads == [1024]


def test_nothing_that_a_run_uses_makes_room_for_another_of_its_inputs(memory: Counting) -> None:
    resident = Resident(memory, 3 * 1024)
    arrays = [read_only(256, i) for i in range(4)]
    resident.begin()
    assert all(again(resident, array) is not None for array in arrays[:3])
    assert again(resident, arrays[3]) is None
    assert not memory.freed


def test_arrays_that_are_gone_make_room_first(memory: Counting) -> None:
    resident = Resident(memory, 2 * 1024)
    kept, gone = read_only(256), read_only(256)
    resident.begin()
    again(resident, kept)
    again(resident, gone)
    del gone
    gc.collect()
    resident.begin()
    again(resident, read_only(256))
    memory.uploads = []
    again(resident, kept)
    assert memory.uploads == []


def test_an_array_that_has_the_id_of_one_that_is_gone_is_not_taken_for_it(memory: Counting) -> None:
    resident = Resident(memory, 1 << 20)
    for fill in range(200):
        array = read_only(16, fill)
        resident.begin()
        address = again(resident, array)
        assert address is not None
        back = np.empty(16, np.float32)
        memory.download(address, back)
        np.testing.assert_array_equal(back, array)
        del array
