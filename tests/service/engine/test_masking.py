from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from service.analysis.analyst import TOLERANCE, analysis_folder
from service.engine import session as sessions_module
from service.engine.assembly import assemble
from service.engine.finiteness import FINITE
from service.engine.job import Into, Job
from service.engine.masking import add_mask
from service.engine.pruning import prune
from service.engine.session import Sessions
from service.summaries.graph import row_feeds
from service.summaries.layout import Layout
from tests.service.engine.exports import IDENTITY, exported, exported_job

OUTPUTS = ("scores", "weights", "output")
SUMMARY = tuple(f"summary.{name}" for name in ("row_sum", "entropy_of_scores", "max_weight", "distance", "first_token"))
TOKENS = 9


def masked_job(sessions: Sessions, encoding: str, visible: np.ndarray, outputs: tuple[str, ...] = OUTPUTS) -> Job:
    return replace(exported_job(sessions, encoding, outputs, TOKENS, 0), visible=visible)


def run(sessions: Sessions, job: Job) -> dict[str, np.ndarray]:
    return dict(sessions.run(job.graph, job.outputs, job.masked, assemble([job]), job.switches, job.into))


def carefully(sessions: Sessions, job: Job) -> dict[str, np.ndarray]:
    session = sessions.session(job.graph, job.outputs, True, job.switches, careful=True)
    assert not session.trusting
    return dict(zip(job.outputs, session.run(job.outputs, assemble([job])), strict=True))


def masks(*, blind: bool) -> np.ndarray:
    """Random, of each head its own; some rows see nothing if `blind`, else all see something."""
    generator = np.random.default_rng(3)
    visible = generator.random((1, 2, TOKENS, TOKENS)) < 0.5
    if blind:
        visible[:, :, [0, 4]] = False
    else:
        visible[..., np.arange(TOKENS), np.arange(TOKENS)] = True
    return visible


@pytest.mark.parametrize("switches", [(), ("sinks",)])
@pytest.mark.parametrize("encoding", exported())
def test_every_encoding_is_the_same_to_the_last_bit(encoding: str, switches: tuple[str, ...]) -> None:
    sessions = Sessions("cpu")
    for mask in (masks(blind=False), masks(blind=False)[:, :1], np.tril(np.ones((1, 1, TOKENS, TOKENS), bool))):
        job = replace(masked_job(sessions, encoding, mask), switches=switches)
        session = sessions.session(job.graph, OUTPUTS, True, switches, True)
        assert session.trusting
        found = dict(zip(OUTPUTS, session.run(OUTPUTS, assemble([job])), strict=True))
        for name, array in carefully(sessions, job).items():
            np.testing.assert_array_equal(found[name], array, strict=True)
        assert (found["weights"][np.broadcast_to(~mask, found["weights"].shape)] == 0).all()


@pytest.mark.parametrize("asked", [1, 1 << 30])
@pytest.mark.parametrize("outputs", [OUTPUTS, ("weights",), ("output",), ("half.weights",)])
def test_rows_that_see_nothing_are_0(outputs: tuple[str, ...], asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "ASKED", asked)
    sessions = Sessions("cpu")
    job = masked_job(sessions, "alibi", masks(blind=True), outputs)
    found = run(sessions, job)
    assert np.isfinite(found.pop(FINITE)).all()
    for name, array in carefully(sessions, job).items():
        np.testing.assert_array_equal(found[name], array, strict=True)
        rows = array[:, [0, 4]] if name == "output" else array[:, :, [0, 4]]
        assert name == "scores" or not rows.any()


@pytest.mark.parametrize("large", [np.inf, -np.inf, np.nan])
def test_a_score_that_nobody_sees_harms_no_row_whatever_it_is(large: float) -> None:
    sessions = Sessions("cpu")
    job = masked_job(sessions, "none", np.tril(np.ones((1, 1, TOKENS, TOKENS), bool)), ("weights",))
    keys = job.keys.copy()
    keys[0, -1, 0, 0] = large  # seen by the last query alone
    job = replace(job, keys=keys)
    found, expected = run(sessions, job), carefully(sessions, job)
    np.testing.assert_array_equal(found["weights"], expected["weights"])
    assert np.isfinite(found["weights"][:, :, :-1]).all()


def test_what_is_written_into_given_arrays_is_the_same() -> None:
    sessions = Sessions("cpu")
    for mask in (masks(blind=True), masks(blind=False)):
        job = masked_job(sessions, "alibi", mask, ("weights",))
        into = Into({"weights": np.full((1, 2, TOKENS, TOKENS), 7, np.float32)})
        found = run(sessions, replace(job, into=into))
        assert found["weights"] is into.arrays["weights"]
        np.testing.assert_array_equal(found["weights"], carefully(sessions, job)["weights"])


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("outputs", [SUMMARY, ("scores", *SUMMARY), ("weights", *SUMMARY)])
def test_so_is_what_a_graph_behind_finds(outputs: tuple[str, ...], blind: bool) -> None:
    sessions = Sessions("cpu")
    job = masked_job(sessions, "alibi", masks(blind=blind), outputs)
    names = tuple(name.removeprefix("summary.") for name in SUMMARY)
    feeds = {f"summary.{name}": array for name, array in row_feeds(Layout.first(TOKENS), names, TOLERANCE).items()}
    behind = replace(job.graph, behind=analysis_folder(()) / "rows.onnx")
    job = replace(job, graph=behind, tables=replace(job.tables, arrays={**job.tables.arrays, **feeds}))
    assert sessions.session(job.graph, job.outputs, True, (), True).trusting
    found = run(sessions, job)
    for name, array in carefully(sessions, job).items():
        np.testing.assert_array_equal(found[name], array, strict=True)


def test_no_matrix_is_chosen_from_any_more() -> None:
    model = prune(onnx.load(IDENTITY / "alibi.onnx"), OUTPUTS, masked=True)
    added = add_mask(model)
    assert added is not None
    onnx.checker.check_model(added, full_check=True)
    assert sum(node.op_type == "Where" for node in model.graph.node) == 2
    (bias,) = (node for node in added.graph.node if node.op_type == "Where")
    assert "scores" not in bias.input


def test_a_graph_without_a_mask_has_no_other_form() -> None:
    whole = onnx.load(IDENTITY / "alibi.onnx")
    assert add_mask(prune(whole, ("weights",), masked=False)) is None
    assert add_mask(prune(whole, ("scores",), masked=True)) is None
    sessions = Sessions("cpu")
    job = masked_job(sessions, "alibi", masks(blind=True), ("scores",))
    assert not sessions.session(job.graph, job.outputs, True, (), True).trusting
