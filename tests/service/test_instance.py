"""Encodings by the names that requests give them."""

from __future__ import annotations

import pytest

from service.catalogue import Model
from service.encoding import Parameter
from service.errors import InvalidInput, UnknownName
from service.instance import MOST, Instance, asked
from tests.service import tiny

ROPE = tiny.encoding("rope", Parameter("theta", "number", default=10000.0))
T5 = tiny.encoding(
    "t5",
    Parameter("bias", "array", shape=("heads",)),
    Parameter("max_distance", "integer", default=128),
    aliases=("relative-2",),
)
NONE = tiny.encoding("none")
MODEL = Model("identity", {one.id: one for one in (NONE, ROPE, T5)}, "rope")


def names(encoding: str | None, *compare: str) -> list[str]:
    return [one.name for one in asked(MODEL, encoding, compare)[0]]


def test_a_name_is_an_id_with_or_without_a_label() -> None:
    assert Instance.of(MODEL, None).name == "rope"
    assert Instance.of(MODEL, " ROPE ").name == "rope"
    assert Instance.of(MODEL, "rope@long").name == "rope@long"
    assert Instance.of(MODEL, "Relative-2@Mine_2-b").name == "t5@Mine_2-b"
    assert Instance.of(MODEL, "rope@" + "x" * 32).label == "x" * 32


@pytest.mark.parametrize("label", ["", "x" * 33, "a.b", "a@b", "a/b", "a b", "\u00e9", "a\n", "\u0661"])
def test_what_is_no_label_is_refused(label: str) -> None:
    with pytest.raises(InvalidInput, match="no label: it has 1 to 32 letters") as caught:
        Instance.of(MODEL, f"rope@{label}x" if label == "a\n" else f"rope@{label}", pointer="query:compare")
    assert caught.value.pointer == "query:compare"


def test_a_label_needs_an_encoding_that_there_is() -> None:
    with pytest.raises(InvalidInput, match="'@long' is a label without an encoding"):
        Instance.of(MODEL, "@long")
    with pytest.raises(InvalidInput, match="all takes no label"):
        Instance.of(MODEL, "All@long")
    with pytest.raises(UnknownName, match=r"unknown encoding 'rop'; did you mean rope\?"):
        Instance.of(MODEL, "rop@long")


def test_the_reference_comes_first() -> None:
    assert names("t5", "rope@a", "rope@b", "t5@c", "rope") == ["t5", "rope@a", "rope@b", "t5@c", "rope"]
    assert names(None, "rope@a") == ["rope", "rope@a"]


def test_compare_may_name_the_models_own_where_the_reference_was_left_out() -> None:
    assert names(None, "t5", "rope") == ["rope", "t5"]


def test_compare_may_not_name_the_reference_alone() -> None:
    with pytest.raises(InvalidInput, match="compare=Rope names the reference alone, which is rope where") as caught:
        names(None, "Rope")
    assert caught.value.pointer == "query:compare"
    assert names(None, "rope", "all")[0] == "rope"


@pytest.mark.parametrize(
    ("encoding", "compare", "words"),
    [
        ("rope", ("rope",), r"rope is asked for twice, by encoding=rope and by compare=rope: name it once"),
        ("t5", ("relative-2",), r"t5 is asked for twice, by encoding=t5 and by compare=relative-2"),
        (None, ("rope", "Rope"), r"rope is asked for twice, by compare=rope and by compare=Rope"),
        ("none", ("rope@a", "t5", "rope@a"), r"rope@a is asked for twice, by compare=rope@a and by compare=rope@a"),
        ("relative-2@a", ("t5@a",), r"t5@a is asked for twice, by encoding=relative-2@a and by compare=t5@a"),
        ("rope", ("rope",), r"compare=rope@other&rope@other\.theta=\.\.\.$"),
        ("rope", ("rope@other", "rope"), r"compare=rope@0&rope@0\.theta"),
        ("t5", ("t5",), r"compare=t5@other&t5@other\.max_distance"),
        ("none", ("none",), r"compare=none@other$"),
    ],
)
def test_a_name_that_comes_twice_is_refused_and_labels_explained(
    encoding: str | None, compare: tuple[str, ...], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        names(encoding, *compare)
    assert caught.value.pointer == "query:compare"


def test_all_adds_those_without_a_label_that_are_not_there_yet() -> None:
    instances, optional = asked(MODEL, "rope@a", ("t5", "all", "t5@b", "ALL"))
    assert [one.name for one in instances] == ["rope@a", "t5", "t5@b", "none", "rope"]
    assert optional == {"none", "rope"}


def test_the_models_own_is_optional_under_all_where_nobody_named_it() -> None:
    assert asked(MODEL, None, ("all",))[1] == {"none", "rope", "t5"}
    assert asked(MODEL, None, ("all", "rope"))[1] == {"none", "t5"}
    assert asked(MODEL, "rope", ("all",))[1] == {"none", "t5"}


def test_a_request_names_a_bounded_number() -> None:
    most = [f"rope@{i}" for i in range(MOST - 1)]
    assert len(names("rope", *most)) == MOST
    with pytest.raises(InvalidInput, match="compare names 64 encodings") as caught:
        names("rope", *most, "t5")
    assert caught.value.extra == {"limit": MOST}
