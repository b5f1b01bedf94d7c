"""float16 answers: cast where they are computed, so that half the bytes are copied back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from service.engine.assembly import assemble
from service.engine.job import Job
from service.engine.pruning import prune, whole
from service.engine.session import Sessions
from tests.service.engine.exports import exported, exported_job
from tests.service.engine.fakes import bias_tables, scores_model, write_scores_graph

MODEL = scores_model()


@pytest.fixture(scope="module")
def sessions() -> Sessions:
    return Sessions("cpu")


def test_an_output_is_cast_under_a_name_of_its_own() -> None:
    pruned = prune(MODEL, ["half.weights", "scores", "half.scores"], masked=True)
    onnx.checker.check_model(pruned, full_check=True)
    assert [(value.name, value.type.tensor_type.elem_type) for value in pruned.graph.output] == [
        ("half.weights", TensorProto.FLOAT16),
        ("scores", TensorProto.FLOAT),
        ("half.scores", TensorProto.FLOAT16),
    ]
    assert sum(node.op_type == "Cast" for node in pruned.graph.node) == 2
    assert whole("half.term.bias") == whole("term.bias") == "term.bias"


def test_only_the_answer_is_rounded_and_not_what_follows_from_it(sessions: Sessions, tmp_path: Path) -> None:
    graph = write_scores_graph(tmp_path)
    x = 8 * np.random.default_rng(0).standard_normal((2, 5, 2, 4), dtype=np.float32)
    job = Job(graph, bias_tables(2, 5, 5), ("half.scores", "weights"), x, x, None, 200)
    found = sessions.run(graph, job.outputs, job.masked, assemble([job]))
    whole_scores = sessions.run(graph, ("scores", "weights"), job.masked, assemble([job]))
    assert found["half.scores"].dtype == np.float16
    np.testing.assert_array_equal(found["half.scores"], whole_scores["scores"].astype(np.float16))
    np.testing.assert_array_equal(found["weights"], whole_scores["weights"])


def test_what_is_too_large_becomes_infinite(sessions: Sessions, tmp_path: Path) -> None:
    graph = write_scores_graph(tmp_path)
    x = np.full((1, 2, 1, 2), 300.0, np.float32)
    job = Job(graph, bias_tables(1, 2, 2), ("half.scores",), x, x, None, 4)
    assert np.isposinf(sessions.run(graph, job.outputs, False, assemble([job]))["half.scores"]).all()


def test_an_output_that_is_not_there_is_named_as_the_graph_would() -> None:
    with pytest.raises(ValueError, match=r"no output term\.other; it has"):
        prune(MODEL, ["half.term.other"], masked=True)


@pytest.mark.parametrize("encoding", exported())
def test_every_output_of_an_exported_encoding_can_be_had_in_float16(sessions: Sessions, encoding: str) -> None:
    names = ("weights", "scores", "output")
    job = exported_job(sessions, encoding, names, 5, 0)
    expected = sessions.run(job.graph, names, job.masked, assemble([job]))
    halves = tuple(f"half.{name}" for name in names)
    found = sessions.run(job.graph, halves, job.masked, assemble([job]))
    for name in names:
        assert found[f"half.{name}"].dtype == np.float16
        np.testing.assert_allclose(found[f"half.{name}"], expected[name], rtol=1e-3, atol=1e-7)


def test_onnxruntime_is_the_one_that_casts() -> None:
    session = onnxruntime.InferenceSession(
        prune(MODEL, ["half.weights"], masked=False).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert [output.type for output in session.get_outputs()] == ["tensor(float16)"]
