"""The lines of an answer on what the request changed."""

from __future__ import annotations

from service.conventions import conventions

CARD = {"scale": "c = 1/sqrt(head_dim)", "layout": "pairs"}


def test_without_modifiers_they_are_the_cards() -> None:
    assert conventions(CARD, {"theta": 5.0}, ("theta",)) == CARD


def test_a_given_scale_stands_in_place_of_the_encodings_own() -> None:
    told = conventions(CARD, {"theta": 5.0, "scale": 0.0625}, ("scale",))
    assert told == {
        **CARD,
        "scale": "0.0625, which the request gave in place of the encoding's own (c = 1/sqrt(head_dim))",
    }
    assert list(told) == list(CARD)
    assert CARD["scale"] == "c = 1/sqrt(head_dim)"
    given = conventions({}, {"scale": 0.1}, ("scale",))
    assert given == {"scale": "0.1, which the request gave in place of the encoding's own"}


def test_a_models_own_scale_is_told_by_its_card() -> None:
    assert conventions(CARD, {"scale": 0.0625}, ()) == CARD


def test_a_cap_is_told_with_its_value_and_what_terms_sum_to() -> None:
    told = conventions(CARD, {"softcap": 30.0}, ())
    assert told["softcap"] == "scores are 30 tanh(s / 30), before the mask; terms sum to s, the score before the cap"
    assert told["scale"] == CARD["scale"]


def test_sinks_take_their_share_of_the_rows() -> None:
    told = conventions(CARD, {"sinks": {"shape": [1], "source": "request"}}, ("sinks",))
    assert "rows sum to less than 1" in told["sinks"]
