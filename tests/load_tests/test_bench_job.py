"""The job is the same for everyone, and a wrong answer to it is noticed."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
import safetensors.numpy

from load_tests.bench import graph, job
from load_tests.bench.job import WrongAnswer

RIGHT = job.weights(job.vectors(), job.HEADS).astype(np.float32)


def test_the_formula_and_the_exported_graph_agree() -> None:
    session = graph.session(graph.scores_graph("weights"))
    (weights,) = session.run(None, graph.feeds(session, job.vectors(), job.HEADS))
    assert np.abs(weights[0] - job.weights(job.vectors(), job.HEADS)).max() < 1e-6


def test_the_last_rows_are_those_of_the_whole_matrix() -> None:
    session = graph.session(graph.scores_graph("weights"))
    (all_rows,) = session.run(None, graph.feeds(session, job.vectors(), job.HEADS))
    (last,) = session.run(None, graph.feeds(session, job.vectors(), job.HEADS, rows=3))
    np.testing.assert_allclose(last, all_rows[:, :, -3:], atol=1e-6)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/octet-stream", RIGHT.tobytes()),
        ("application/vnd.safetensors", safetensors.numpy.save({"rope/weights": RIGHT})),
        ("application/json", orjson.dumps({"weights": RIGHT.tolist()})),
        ("application/json; charset=utf-8", orjson.dumps([RIGHT.tolist()])),
        ("application/json", orjson.dumps({"results": [{"weights": RIGHT.tolist()}]})),
    ],
)
def test_a_right_answer_passes_in_every_form_that_servers_give_it(content_type: str, body: bytes) -> None:
    assert job.check(content_type, body) < 1e-6


def test_one_wrong_weight_is_noticed() -> None:
    wrong = RIGHT.copy()
    wrong[3, 31, 31] += 1e-4
    with pytest.raises(WrongAnswer, match="off by 1"):
        job.check("application/octet-stream", wrong.tobytes())


def test_nan_is_wrong() -> None:
    wrong = RIGHT.copy()
    wrong[0, 0, 0] = np.nan
    with pytest.raises(WrongAnswer, match="off by nan"):
        job.check("application/octet-stream", wrong.tobytes())


def test_an_answer_of_another_size_is_wrong() -> None:
    with pytest.raises(WrongAnswer, match="4095 weights came where 4096 were due"):
        job.check("application/octet-stream", RIGHT.tobytes()[:-4])


def test_everyone_is_sent_the_same_numbers() -> None:
    sent = [
        orjson.loads(job.to_service("json").data)["embeddings"],
        orjson.loads(job.to_peer("json").data)["embeddings"],
        *orjson.loads(job.to_peer("json", batched=True).data)["embeddings"],
        np.frombuffer(job.to_peer("binary").data, np.float32).reshape(job.TOKENS, job.WIDTH),
        np.frombuffer(job.to_service("binary").data[-job.TOKENS * job.WIDTH * 4 :], np.float32).reshape(job.TOKENS, -1),
    ]
    for embeddings in sent:
        np.testing.assert_array_equal(np.asarray(embeddings, np.float32), job.vectors())
