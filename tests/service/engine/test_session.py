from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import EPFail

from service.engine.assembly import assemble
from service.engine.device import CPU, CUDA, Provider, cuda_problem, smallest
from service.engine.job import Graph, Job, Tables, digest
from service.engine.session import Session, Sessions
from tests.service.engine.exports import IDENTITY, exported, exported_job
from tests.service.engine.fakes import OUTPUTS, assert_expected, bias_tables, expected, scores_model, write_scores_graph


@pytest.fixture(scope="module")
def sessions() -> Sessions:
    return Sessions("cpu")


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return write_scores_graph(tmp_path)


def random_job(graph: Graph, outputs: tuple[str, ...], *, masked: bool, seed: int = 0) -> Job:
    generator = np.random.default_rng(seed)
    queries = generator.standard_normal((2, 5, 3, 4), dtype=np.float32)
    keys = generator.standard_normal((2, 6, 3, 4), dtype=np.float32)
    visible = generator.random((2, 1, 5, 6)) < 0.6 if masked else None
    return Job(graph, bias_tables(3, 5, 6), outputs, queries, keys, visible, 1)


def run(sessions: Sessions, job: Job) -> dict[str, np.ndarray]:
    return sessions.run(job.graph, job.outputs, job.visible is not None, assemble([job]))


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("outputs", [(name,) for name in OUTPUTS] + [OUTPUTS, ("weights", "scores")])
def test_each_set_of_outputs_is_right(sessions: Sessions, graph: Graph, outputs: tuple[str, ...], masked: bool) -> None:
    job = random_job(graph, outputs, masked=masked)
    assert_expected([job], [run(sessions, job)])


def test_a_row_that_sees_nothing_weighs_nothing(sessions: Sessions, graph: Graph) -> None:
    job = replace(random_job(graph, ("weights",), masked=True), visible=np.zeros((1, 1, 5, 6), bool))
    assert not run(sessions, job)["weights"].any()
    assert not expected(job)["weights"].any()


def test_inputs_are_those_that_remain(sessions: Sessions, graph: Graph) -> None:
    assert set(sessions.inputs(graph, ("term.content",), True)) == {"queries", "keys", "table.scale"}
    assert "visible" in sessions.inputs(graph, ("weights",), True)
    assert "visible" not in sessions.inputs(graph, ("weights",), False)


def test_a_missing_input_is_named(sessions: Sessions, graph: Graph) -> None:
    job = random_job(graph, ("scores",), masked=False)
    with pytest.raises(ValueError, match=r"also needs table\.bias; given: table\.scale, queries, keys"):
        run(sessions, replace(job, tables=Tables("", {"table.scale": job.tables.arrays["table.scale"]})))


def test_threads_that_ask_for_the_same_session_get_the_same_one(graph: Graph) -> None:
    sessions, threads = Sessions("cpu"), 8
    barrier = threading.Barrier(threads)

    def ask(_: int) -> Session:
        barrier.wait()
        return sessions.session(graph, ("scores", "weights"), False)

    with ThreadPoolExecutor(threads) as pool:
        assert len(set(pool.map(ask, range(threads)))) == 1
    assert len(sessions) == 1


def test_a_build_that_failed_is_tried_again(tmp_path: Path) -> None:
    sessions, graph = (
        Sessions("cpu"),
        Graph("identity.late", tmp_path / "late.onnx", digest(scores_model().SerializeToString())),
    )
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            sessions.session(graph, ("scores",), False)
    assert len(sessions) == 0
    onnx.save(scores_model(), graph.path)
    assert sessions.session(graph, ("scores",), False).outputs == ("scores",)


def test_another_digest_is_another_graph(sessions: Sessions, tmp_path: Path) -> None:
    first, second = write_scores_graph(tmp_path, version="1"), write_scores_graph(tmp_path, version="2")
    assert sessions.session(first, ("scores",), False) is not sessions.session(second, ("scores",), False)


def test_dropped_sessions_are_built_anew_and_others_stay(tmp_path: Path) -> None:
    sessions = Sessions("cpu")
    old, new = write_scores_graph(tmp_path, version="1"), write_scores_graph(tmp_path, version="2")
    other = write_scores_graph(tmp_path, "identity.other")
    kept = [sessions.session(one, ("scores",), False) for one in (new, other)]
    before = sessions.session(old, ("scores",), False)
    assert sessions.drop("identity.bias", keep_digest=new.digest) == 1
    assert [sessions.session(one, ("scores",), False) for one in (new, other)] == kept
    assert sessions.session(old, ("scores",), False) is not before
    assert sessions.drop("identity.bias") == 2
    assert len(sessions) == 1


def test_only_so_many_bytes_of_sessions_are_kept_and_the_one_unused_longest_goes(graph: Graph) -> None:
    sessions = Sessions("cpu", capacity=600_000)
    first = sessions.session(graph, ("scores",), False)
    second = sessions.session(graph, ("weights",), False)
    assert sessions.session(graph, ("scores",), False) is first
    sessions.session(graph, ("output",), False)
    assert len(sessions) == 2
    assert sessions.session(graph, ("scores",), False) is first
    assert sessions.session(graph, ("weights",), False) is not second


@pytest.mark.parametrize(("processes", "kept"), [(1, 4), (2, 2), (4, 1), (64, 1)])
def test_several_processes_have_the_capacity_together(
    graph: Graph, processes: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = (("scores",), ("weights",), ("output",), ("scores", "weights"))
    size = max(Sessions("cpu").session(graph, outputs, False).bytes for outputs in every)
    monkeypatch.setattr("service.engine.session.LEAST", size)
    sessions = Sessions("cpu", capacity=4 * size)
    sessions.divide(processes)
    for outputs in every:
        sessions.session(graph, outputs, False)
    assert len(sessions) == kept


def test_a_session_over_the_capacity_is_kept_until_the_next(graph: Graph) -> None:
    sessions = Sessions("cpu", capacity=1)
    first = sessions.session(graph, ("scores",), False)
    assert sessions.session(graph, ("scores",), False) is first
    sessions.session(graph, ("weights",), False)
    assert len(sessions) == 1


def test_a_positions_graph_runs_whole_on_the_cpu_and_is_opened_once(sessions: Sessions, graph: Graph) -> None:
    session = sessions.positions(graph.path)
    assert session is sessions.positions(graph.path)
    assert session.provider == "CPUExecutionProvider"
    assert set(session.outputs) == set(OUTPUTS)
    job = random_job(graph, OUTPUTS, masked=True)
    (content,) = session.run(["term.content"], assemble([job]))
    np.testing.assert_allclose(content, expected(job)["term.content"], atol=1e-5)


def test_a_positions_graph_that_was_replaced_is_opened_anew(sessions: Sessions, tmp_path: Path) -> None:
    graph = write_scores_graph(tmp_path)
    before = sessions.positions(graph.path)
    model = scores_model()
    del model.graph.output[1:]
    onnx.save(model, graph.path)
    assert sessions.positions(graph.path) is not before
    assert sessions.positions(graph.path).outputs == ("scores",)


def test_resident_memory_does_not_grow_with_the_variety_of_shapes(sessions: Sessions, graph: Graph) -> None:
    generator = np.random.default_rng(0)

    def use(tokens: int, batch: int) -> None:
        x = generator.standard_normal((batch, tokens, 2, 4), dtype=np.float32)
        run(sessions, Job(graph, bias_tables(2, tokens, tokens), ("scores", "weights"), x, x, None, 1))

    for _ in range(5):
        use(160, 8)
    for _ in range(300):
        use(int(generator.integers(1, 161)), int(generator.integers(1, 9)))
    before = _resident_megabytes()
    for _ in range(2000):
        use(int(generator.integers(1, 161)), int(generator.integers(1, 9)))
    assert _resident_megabytes() - before < 24


def _resident_megabytes() -> float:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


@pytest.mark.parametrize("encoding", exported())
def test_an_exported_encoding_gives_the_same_with_all_visible_as_without_a_mask(
    sessions: Sessions, encoding: str
) -> None:
    outputs = tuple(value.name for value in onnx.load(IDENTITY / f"{encoding}.onnx").graph.output)
    job = exported_job(sessions, encoding, outputs, 5, 0)
    unmasked = run(sessions, job)
    masked = run(sessions, replace(job, visible=np.ones((1, 1, 5, 5), bool)))
    for name in outputs:
        np.testing.assert_allclose(masked[name], unmasked[name], atol=1e-6)
        alone = run(sessions, replace(job, outputs=(name,)))
        np.testing.assert_allclose(alone[name], unmasked[name], atol=1e-6)


@pytest.mark.skipif(cuda_problem(Provider(CUDA)) is None, reason="this machine has a GPU that works")
def test_a_session_that_the_device_cannot_have_is_not_one_of_the_cpu() -> None:
    """onnxruntime#23372: it takes the CPU instead, in silence."""
    with pytest.raises(RuntimeError, match=f"chose {CPU} where {CUDA} was asked for"):
        Session(smallest(), Provider(CUDA))


def test_a_run_that_the_device_fails_is_not_repeated_on_the_cpu() -> None:
    """onnxruntime#17801: it does so by default where a run fails, and ever after."""

    session = Session(smallest(), Provider(CPU))
    inner = session.native._sess

    class Failing:
        def run(self, *_: Any) -> None:
            raise EPFail("CUDA failure 700: an illegal memory access was encountered")

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    session.native._sess = Failing()
    with pytest.raises(EPFail, match="illegal memory access"):
        session.run(["y"], {"x": np.ones(1, np.float32)})


def test_nothing_is_printed_where_there_is_no_gpu(graph: Graph, capfd: pytest.CaptureFixture[str]) -> None:
    run(Sessions("auto"), random_job(graph, ("scores",), masked=False))
    assert capfd.readouterr() == ("", "")


def test_a_graph_that_was_replaced_since_it_was_read_is_not_taken_for_it(tmp_path: Path) -> None:
    graph = write_scores_graph(tmp_path)
    write_scores_graph(tmp_path, version="2").path.replace(graph.path)
    with pytest.raises(RuntimeError, match="replaced"):
        Sessions("cpu").session(graph, ("scores",), False)


def test_a_graph_that_is_being_copied_over_itself_is_waited_for(tmp_path: Path) -> None:
    graph = write_scores_graph(tmp_path)
    content = graph.path.read_bytes()
    graph.path.write_bytes(content[:100])
    timer = threading.Timer(0.05, lambda: graph.path.write_bytes(content))
    timer.start()
    assert Sessions("cpu").session(graph, ("weights",), False).outputs == ("weights",)
    timer.join()
