"""The scenarios are bounded, and their mixes ask for what the service knows."""

from __future__ import annotations

import json
import random
from collections import Counter

import numpy as np
import pytest

from load_tests.bodies import build
from load_tests.mixes import ACCEPT, Ask, draw, needed, problem_with, size
from load_tests.scenarios import SCENARIOS, Closed, Mix, Open, Scenario, chosen


def mixes(scenario: Scenario) -> list[Mix]:
    return [part.mix for stage in scenario.stages for part in ([stage] if isinstance(stage, Closed) else stage.steps)]


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_a_scenario_is_bounded_and_knows_its_rates(scenario: Scenario) -> None:
    assert scenario.seconds <= 3600
    assert sum(scenario.shares.values()) == pytest.approx(1)
    known = scenario.absolute
    for stage in scenario.stages:
        known |= isinstance(stage, Closed) and stage.name == "capacity"
        assert not isinstance(stage, Open) or known, "rates are multiples of a capacity that was found before"
    names = [part.name for stage in scenario.stages for part in ([stage] if isinstance(stage, Closed) else stage.steps)]
    assert all(count == 1 for name, count in Counter(names).items() if name != "capacity")


def test_continuous_integration_waits_less_than_half_a_minute_for_the_smoke_test() -> None:
    assert SCENARIOS["smoke"].seconds <= 20


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_every_request_that_can_be_drawn_has_a_body(scenario: Scenario) -> None:
    for mix in mixes(scenario):
        bodies = build(0, needed(mix))
        names = {draw(mix, bodies, ["rope", "alibi"], random.Random(seed))[0].name for seed in range(50)}
        assert len(names) <= 12


def test_an_open_loop_lasts_as_long_as_it_is_told_to() -> None:
    short = chosen("soak", 60.0)
    assert short.open_seconds == pytest.approx(60)
    whole = SCENARIOS["soak"]
    before = [stage.seconds for stage in short.stages if isinstance(stage, Closed)]
    assert before == [6.0, 6.0]  # else they would take longer than all that is looked at
    longer = chosen("soak", 2 * whole.open_seconds)
    assert longer.seconds - longer.open_seconds == whole.seconds - whole.open_seconds
    assert chosen("soak", 0.0) is whole
    assert whole.seconds >= 1800


def test_encodings_are_drawn_by_zipfs_law() -> None:
    mix = Mix({4: 1.0}, exponent=1.0)
    bodies = build(0, needed(mix))
    chance = random.Random(0)
    encodings = ["a", "b", "c", "d"]
    paths = Counter(draw(mix, bodies, encodings, chance)[0].path[-1] for _ in range(20_000))
    harmonic = 1 + 1 / 2 + 1 / 3 + 1 / 4
    for rank, name in enumerate(encodings, 1):
        assert paths[name] / 20_000 == pytest.approx(1 / rank / harmonic, abs=0.015)


@pytest.mark.parametrize(("tokens", "name"), [(1, "s"), (128, "s"), (129, "m"), (512, "m"), (513, "l"), (4096, "l")])
def test_sizes_are_those_that_limits_are_promised_for(tokens: int, name: str) -> None:
    assert size(tokens) == name


def test_an_answer_that_is_wrong_is_found_out() -> None:
    body = build(0, [(2, 4, "json")])[2, 4, "json"]
    ask = Ask("name", "/attention", body, ACCEPT["json"], weights=True)

    def said(weights: object) -> str | None:
        return problem_with(ask, json.dumps({"results": [{"weights": weights}]}).encode())

    assert said([[[0.5, 0.5], [1.0, 0.0]]]) is None
    assert "sum to 1" in str(said([[[0.5, 0.4], [1.0, 0.0]]]))
    assert "shape" in str(said([[[1.0], [1.0]]]))
    assert "not finite" in str(said([[[0.5, None], [1.0, 0.0]]]))
    assert "weights were due" in str(problem_with(ask, b'{"results": [{}]}'))


def test_bodies_are_the_same_for_the_same_seed() -> None:
    wanted = [(8, 4, "npy"), (8, 4, "json")]
    assert build(3, wanted) == build(3, wanted) != build(4, wanted)
    shown = np.array(json.loads(build(3, wanted)[8, 4, "json"].data)["embeddings"])
    assert shown.shape == (8, 4)
