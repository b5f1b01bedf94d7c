"""Whether all numbers are finite is found out on the device: tested with ordinary memory in its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.assembly import assemble
from service.engine.compute import Compute
from service.engine.finiteness import FINITE, flagged
from service.engine.job import Job, JobResult
from service.engine.memory import HostMemory
from service.engine.observer import Unobserved
from service.engine.pruning import prune
from service.engine.session import Sessions
from tests.service.engine.exports import exported, exported_job
from tests.service.engine.fakes import OUTPUTS, bias_tables, scores_model, write_scores_graph


@pytest.fixture(scope="module")
def both() -> tuple[Sessions, Sessions]:
    """One that looks on the host, one that has the device look."""
    return Sessions("cpu"), Sessions("cpu", memory=HostMemory())


def nonfinite(sessions: Sessions, jobs: list[Job]) -> list[int]:
    results = Compute(sessions, Unobserved(), lambda: 0.0)(jobs, "idle")
    assert all(isinstance(result, JobResult) for result in results)
    return [result.nonfinite for result in results if isinstance(result, JobResult)]


def test_the_flag_is_one_number_of_each_item_of_the_batch() -> None:
    model = flagged(prune(scores_model(), ["weights", "half.scores", "output"], masked=True))
    onnx.checker.check_model(model, full_check=True)
    flag = model.graph.output[-1]
    assert flag.name == FINITE
    assert [dim.dim_param for dim in flag.type.tensor_type.shape.dim] == [
        model.graph.output[0].type.tensor_type.shape.dim[0].dim_param
    ]


def test_a_graph_without_matrices_has_no_flag() -> None:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    model = onnx.helper.make_model(graph)
    assert flagged(model) is model


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_not_finite_is_counted_as_on_the_host(
    both: tuple[Sessions, Sessions], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Of every member of a batch: its own numbers, and nobody else's; also of numbers whose sum is too large."""
    graph = write_scores_graph(tmp_path_factory.mktemp("graphs"))
    tokens, count = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 5))
    outputs = tuple(data.draw(st.permutations(OUTPUTS))[: data.draw(st.integers(1, 5))])
    if data.draw(st.booleans()):
        outputs = tuple(f"half.{name}" for name in outputs)
    generator, jobs = np.random.default_rng(data.draw(st.integers(0, 99))), []
    tables = bias_tables(2, tokens, tokens, 0)
    for _ in range(count):
        scale = data.draw(st.sampled_from([1.0, 300.0, 1e10, 1e18, 1e19, 1e25]))
        shape = (data.draw(st.integers(1, 3)), tokens, 2, 4)
        x = np.float32(scale) * generator.standard_normal(shape, dtype=np.float32)
        jobs.append(Job(graph, tables, outputs, x, x, None, 1))
    host, device = both
    with np.errstate(all="ignore"):
        alone = [host.session(graph, outputs, job.masked).run(outputs, assemble([job])) for job in jobs]
        wanted = [sum(int((~np.isfinite(array)).sum()) for array in arrays) for arrays in alone]
        assert nonfinite(host, jobs) == nonfinite(device, jobs) == wanted


def test_numbers_that_are_all_finite_are_not_looked_at_on_the_host(
    both: tuple[Sessions, Sessions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = write_scores_graph(tmp_path)
    x = np.random.default_rng(0).standard_normal((2, 9, 2, 4), dtype=np.float32)
    job = Job(graph, bias_tables(2, 9, 9, 0), OUTPUTS, x, x, None, 1)
    looked: list[tuple[int, ...]] = []
    real = np.isfinite

    def isfinite(array: np.ndarray) -> np.ndarray:
        looked.append(array.shape)
        return np.asarray(real(array))

    monkeypatch.setattr(np, "isfinite", isfinite)
    _, device = both
    assert nonfinite(device, [job, job]) == [0, 0]
    assert looked == [(4,)]


@pytest.mark.parametrize("encoding", exported())
@pytest.mark.parametrize("kind", ["", "half."])
def test_every_exported_encoding_can_be_flagged(both: tuple[Sessions, Sessions], encoding: str, kind: str) -> None:
    host, device = both
    outputs = tuple(kind + name for name in ("weights", "scores", "output"))
    job = exported_job(host, encoding, outputs, 6, 0)
    found = device.run(job.graph, outputs, job.masked, assemble([job]))
    assert set(found) == {*outputs, FINITE}
    assert found[FINITE].shape == (len(job.queries),)
    assert np.isfinite(found[FINITE]).all()
    assert nonfinite(device, [job]) == [0]
