"""What position alone contributes, against the formulas written out, over the exported graphs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float

from service.catalogue import Catalogue
from service.engine.engine import Engine
from service.engine.session import Sessions
from service.errors import InvalidInput, PayloadTooLarge, ServiceError, UnknownName
from service.records import Timings
from service.scoring import Limits, Scoring
from service.tables import TableCache
from service.views.positions import Views
from service.views.records import VIEWS, PositionViews, ViewOptions

CATALOGUE = Catalogue.read([Path(__file__).parents[3] / "exported"])
IDENTITY = CATALOGUE.model("identity")
ENCODINGS = sorted(IDENTITY.encodings)
Matrix = Float[np.ndarray, "queries keys"]


@dataclass
class Shown:
    """Views over a real engine, on an event loop that lasts as long as the tests do."""

    views: Views
    runner: asyncio.Runner

    def __call__(self, encoding: str, *, picture: bool = False, **options: Any) -> PositionViews:
        if "views" in options:
            options["views"] = tuple(options["views"].split(","))
        asked = ViewOptions(encoding, **options)
        return self.runner.run(self.views.show(asked, Timings(), picture=picture))

    def array(self, encoding: str, view: str, **options: Any) -> np.ndarray:
        return self(encoding, views=view, **options).views[view].values


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    sessions = Sessions("cpu")
    with asyncio.Runner() as runner:
        engine = Engine(sessions, workers=1)
        runner.run(engine.start())
        yield Shown(Views(Scoring(CATALOGUE, engine, TableCache(sessions), Limits(cells=1 << 20))), runner)
        runner.run(engine.stop())


def waves(count: int, width: int, offset: int = 0) -> Float[np.ndarray, "count width"]:
    """The original Transformer's p, entry by entry."""
    return np.array(
        [
            [
                (math.sin if j % 2 == 0 else math.cos)((offset + m) / 10_000 ** ((j - j % 2) / width))
                for j in range(width)
            ]
            for m in range(count)
        ]
    )


def test_sinusoidal_vectors_are_the_articles_waves(shown: Shown) -> None:
    for heads, offset in ((1, 0), (4, 0), (2, 1000)):
        vectors = shown.array("sinusoidal", "vectors", queries=40, keys=3, width=32, heads=heads, offset=offset)
        assert vectors == pytest.approx(waves(40, 32, offset), abs=1e-6)


def test_sinusoidal_bias_is_p_times_p(shown: Shown) -> None:
    p = waves(50, 32)
    one = shown.array("sinusoidal", "bias", queries=50, keys=50, width=32, heads=1)
    assert one[0] == pytest.approx(p @ p.T / math.sqrt(32), abs=1e-5)
    assert one[0].diagonal() == pytest.approx(16 / math.sqrt(32))
    two = shown.array("sinusoidal", "bias", queries=50, keys=50, width=32, heads=2)
    assert two[1] == pytest.approx(p[:, 16:] @ p[:, 16:].T / 4, abs=1e-5)


def test_rope_similarity_is_a_sum_of_cosines_of_the_distance(shown: Shown) -> None:
    m, n = np.arange(70)[:, None], np.arange(90)[None, :]
    cosines = sum(2 * np.cos((m - n) * 10_000 ** (-2 * i / 16)) for i in range(8)) / 4
    for layout in ("interleaved", "half"):
        similarity = shown.array(
            "rope", "similarity", queries=70, keys=90, width=32, heads=2, scalars={"rope.layout": layout}
        )
        assert similarity == pytest.approx(np.stack([cosines, cosines]), abs=1e-5)


def test_rope_adds_nothing_of_its_own(shown: Shown) -> None:
    assert not shown.array("rope", "bias").any()


def test_alibi_falls_with_distance_by_each_heads_slope(shown: Shown) -> None:
    m, n = np.arange(20)[:, None], np.arange(20)[None, :]
    for causal, distance in ((False, np.abs(m - n)), (True, m - n)):
        bias = shown.array("alibi", "bias", queries=20, keys=20, heads=8, causal=causal)
        for head, slope in enumerate((0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625)):
            assert bias[head] == pytest.approx(-slope * distance)


def test_t5_goes_in_steps_that_widen(shown: Shown) -> None:
    bias = shown.array("t5", "bias", queries=200, keys=200, heads=2)
    past = bias[:, 199, ::-1]  # by distance
    # The buckets of 32 / 128, both directions: exact to 7, then from these distances on.
    starts = [*range(8), 8, 12, 16, 23, 32, 46, 64, 91, 200]
    for start, end in pairwise(starts):
        assert (past[:, start:end] == past[:, start : start + 1]).all()
    assert all(len({float(past[head, start]) for start in starts[:-1]}) == 16 for head in range(2))
    assert (bias[:, 0, 0] == past[:, 0]).all()


def test_none_makes_equal_tokens_equal(shown: Shown) -> None:
    answer = shown("none", views="bias,similarity,weights", queries=5, keys=7, width=18, heads=2)
    assert not answer.views["bias"].values.any()
    assert answer.views["similarity"].values == pytest.approx(3.0)
    assert answer.views["weights"].values == pytest.approx(1 / 7)


def test_integer_positions_are_added_as_they_are(shown: Shown) -> None:
    vectors = shown.array("integer", "vectors", queries=4, keys=4, width=6, offset=10)
    assert vectors.tolist() == [[position] * 6 for position in (10, 11, 12, 13)]


def test_weights_are_the_softmax_of_similarity_over_the_keys_that_are_seen(shown: Shown) -> None:
    answer = shown("alibi", views="similarity,weights", queries=9, keys=9, causal=True)
    visible = answer.visible
    assert visible is not None
    assert visible.tolist() == [[n <= m for n in range(9)] for m in range(9)]
    scores = np.where(visible, answer.views["similarity"].values, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    assert answer.views["weights"].values == pytest.approx(powers / powers.sum(-1, keepdims=True), abs=1e-6)
    assert not answer.views["weights"].values[:, ~visible].any()


def turning(answer: PositionViews) -> tuple[np.ndarray, np.ndarray, list[str]]:
    views = answer.views
    return (
        views["frequencies"].values,
        views["wavelengths"].values,
        [answer.terms[band] for band in views["bands"].values],
    )


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_frequencies_are_one_for_each_pair(shown: Shown, layout: str) -> None:
    scalars = {"rope.layout": layout, "rope.theta": "100"}
    answer = shown("rope", views="frequencies", width=24, heads=2, scalars=scalars)
    frequencies, wavelengths, bands = turning(answer)
    expected = [100 ** (-2 * i / 12) for i in range(6)]
    assert frequencies == pytest.approx(expected)
    assert wavelengths == pytest.approx([2 * math.pi / one for one in expected])
    assert bands == ["fast", "fast", "medium", "medium", "slow", "slow"]


def test_components_that_do_not_turn_are_no_pair(shown: Shown) -> None:
    for layout in ("interleaved", "half"):
        scalars = {"rope.layout": layout, "rope.rotary_fraction": "0.5"}
        frequencies, _, _ = turning(shown("rope", views="frequencies", width=16, heads=1, scalars=scalars))
        assert frequencies == pytest.approx([10_000 ** (-2 * i / 8) for i in range(4)])
    nothing = shown("rope", views="frequencies", scalars={"rope.rotary_fraction": "0"})
    assert nothing.views["frequencies"].values.size == 0


def test_a_frequency_of_zero_has_an_infinite_wavelength(shown: Shown) -> None:
    scalars = {"rope-proportional.proportion": "0.5"}
    frequencies, wavelengths, _ = turning(shown("rope-proportional", views="frequencies", heads=1, scalars=scalars))
    assert len(frequencies) == 32
    assert frequencies[:16] == pytest.approx([10_000 ** (-2 * i / 64) for i in range(16)])
    assert not frequencies[16:].any()
    assert np.isinf(wavelengths[16:]).all()


def test_linear_scaling_slows_every_pair_alike(shown: Shown) -> None:
    plain, _, _ = turning(shown("rope", views="frequencies"))
    slowed, _, _ = turning(shown("rope-linear", views="frequencies", scalars={"rope-linear.factor": "8"}))
    assert slowed == pytest.approx(plain / 8)


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_shows_everything_it_has_in_the_shape_it_says(shown: Shown, name: str) -> None:
    encoding = IDENTITY.encodings[name]
    answer = shown(name, queries=5, keys=7, width=24, heads=3)
    sizes = {"heads": 3, "queries": 5, "keys": 7, "head_dim": 8, "width": 24, "pairs": 4}
    assert {"bias", "similarity"} <= set(answer.views)
    assert ("vectors" in answer.views) == ("query_vectors" in encoding.tables)
    assert ("frequencies" in answer.views) == ("theta" in encoding.tables)
    assert set(answer.tables) == set(encoding.tables) - set(encoding.switches)
    for view in answer.arrays().values():
        assert len(view.axes) == view.values.ndim
        assert view.description
        for axis, size in zip(view.axes, view.values.shape, strict=True):
            assert size == int(axis) if axis.isdigit() else size == sizes.get(axis, size)
    assert answer.nonfinite_cells == 0
    assert (answer.heads, answer.head_dim, answer.queries, answer.keys) == (3, 8, 5, 7)


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_offset_matters_only_to_those_who_look_at_positions_themselves(shown: Shown, name: str) -> None:
    here = shown.array(name, "similarity", queries=8, keys=8, width=16, heads=1)
    there = shown.array(name, "similarity", queries=8, keys=8, width=16, heads=1, offset=40)
    same = np.allclose(here, there, atol=2e-5)
    if IDENTITY.encodings[name].document["invariants"].get("shift"):
        assert same
    if name in ("sinusoidal", "integer", "learned"):
        assert not same


def test_modifiers_change_the_scores_and_show_their_tables(shown: Shown) -> None:
    answer = shown("integer", views="bias,tables", scalars={"integer.softcap": "5"}, queries=30, keys=30)
    assert np.abs(answer.views["bias"].values).max() <= 5
    assert answer.tables["softcap"].values == 5
    assert "sinks" not in answer.tables
    assert answer.parameters["softcap"] == 5


@pytest.mark.parametrize(
    ("name", "view"), [("alibi", "bias"), ("sinusoidal", "bias"), ("rope", "similarity"), ("none", "similarity")]
)
def test_a_picture_shows_what_is_not_nothing(shown: Shown, name: str, view: str) -> None:
    assert list(shown(name, picture=True).views) == [view]


def test_a_picture_shows_the_view_it_is_asked_for(shown: Shown) -> None:
    assert list(shown("alibi", picture=True, views="similarity").views) == ["similarity"]


def test_sizes_are_chosen_so_that_they_fit(shown: Shown) -> None:
    cases: list[tuple[dict[str, Any], tuple[int, int]]] = [
        ({}, (4, 16)),
        ({"heads": 8}, (8, 8)),
        ({"heads": 5}, (5, 16)),
        ({"width": 2}, (1, 2)),
        ({"width": 6}, (3, 2)),
        ({"width": 100}, (2, 50)),
        ({"width": 128, "heads": 1}, (1, 128)),
    ]
    for options, expected in cases:
        answer = shown("rope", views="frequencies", **options)
        assert (answer.heads, answer.head_dim) == expected
    assert shown("none", views="tables", width=7).head_dim == 7


def test_only_what_was_asked_for_is_there(shown: Shown) -> None:
    for view in VIEWS:
        answer = shown("rope" if view == "frequencies" else "sinusoidal", views=view)
        found = {*answer.views, *(["tables"] if answer.tables else [])}
        assert found == ({view, "wavelengths", "bands"} if view == "frequencies" else {view})


@pytest.mark.parametrize(
    ("name", "options", "failure", "pointer", "words"),
    [
        ("rope", {"views": "similarty"}, UnknownName, "query:view", "did you mean similarity"),
        ("alibi", {"views": "vectors"}, InvalidInput, "query:view", "it has bias, similarity, weights, tables"),
        ("rope", {"views": "vectors"}, InvalidInput, "query:view", "frequencies"),
        ("rope", {"width": 63}, InvalidInput, "query:width", "even head_dim"),
        ("transformer-xl", {"width": 63}, InvalidInput, "query:width", "even width"),
        ("rope", {"width": 60, "heads": 4}, InvalidInput, "query:heads", "15 is odd"),
        ("none", {"width": 64, "heads": 5}, InvalidInput, "query:heads", "1, 2, 4, 8"),
        ("none", {"queries": 200_000}, PayloadTooLarge, "query:queries", "131,072"),
        ("none", {"keys": 200_000}, PayloadTooLarge, "query:keys", "131,072"),
        ("none", {"width": 10_000}, PayloadTooLarge, "query:width", "8,192"),
        ("none", {"queries": 2000, "keys": 2000}, PayloadTooLarge, None, "fewer tokens"),
        ("rope", {"offset": 1e12}, InvalidInput, "query:offset", "1,000,000,000"),
        ("t5", {"offset": 0.5}, InvalidInput, "query:offset", "whole positions"),
        ("learned", {"offset": -1.0}, InvalidInput, "query:offset", "-1"),
        ("xpos", {"causal": False}, InvalidInput, "query:causal", "causal"),
        ("rope", {"scalars": {"rope.theta": "x"}}, InvalidInput, "query:rope.theta", "finite number"),
        ("rope", {"model": "identty"}, UnknownName, "query:model", "identity"),
        ("rop", {}, UnknownName, None, "rope"),
    ],
)
def test_what_cannot_be_shown_is_refused_by_the_name_that_was_sent(
    shown: Shown, name: str, options: dict[str, Any], failure: type[ServiceError], pointer: str | None, words: str
) -> None:
    with pytest.raises(failure) as caught:
        shown(name, **options)
    assert caught.value.pointer == pointer
    assert words in caught.value.detail
