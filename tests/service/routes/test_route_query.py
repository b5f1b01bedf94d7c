from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InvalidInput, UnknownName
from service.routes.query import MAX_LENGTH, parse


def test_nothing_is_all_defaults() -> None:
    query = parse(b"")
    assert query.dtype == "float32"
    assert query.options.returns is None, "as it suits the request"
    options = query.options
    assert (options.encoding, options.model, options.heads, options.causal) == (None, None, None, None)
    assert query.options.compare == ()
    assert query.options.scalars == {}


def test_everything_at_once() -> None:
    query = parse(
        b"encoding=rope&compare=alibi,t5&compare=none&model=identity&heads=8&causal=true&return=output,weights"
        b"&dtype=float16&rope.theta=5e5&rope-longrope.long_factor=1,2,3"
    )
    assert query.dtype == "float16"
    options = query.options
    assert (options.encoding, options.model, options.heads, options.causal) == ("rope", "identity", 8, True)
    assert options.compare == ("alibi", "t5", "none")
    assert options.returns == ("weights", "output")
    assert options.scalars == {"rope.theta": "5e5", "rope-longrope.long_factor": "1,2,3"}


@pytest.mark.parametrize(
    ("raw", "pointer"),
    [
        ("heads=0", "query:heads"),
        ("heads=-1", "query:heads"),
        ("heads=1.5", "query:heads"),
        ("heads=", "query:heads"),
        ("heads=9999999999", "query:heads"),
        ("heads=²", "query:heads"),
        ("causal=yes", "query:causal"),
        ("causal=", "query:causal"),
        ("encoding=", "query:encoding"),
        ("encoding=rope&encoding=t5", "query:encoding"),
        ("rope.theta=1&rope.theta=2", "query:rope.theta"),
        ("compare=rope,,t5", "query:compare"),
        ("compare=", "query:compare"),
        ("rows=", "query:rows"),
        ("rows=1,,2", "query:rows"),
        ("rows=1.5", "query:rows"),
        ("head=a", "query:head"),
        ("top_k=0", "query:top_k"),
        ("top_k=1&top_k=2", "query:top_k"),
        ("arrays=", "query:arrays"),
    ],
)
def test_bad_values_are_refused_by_name(raw: str, pointer: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(raw.encode())
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    ("raw", "pointer", "nearest"),
    [
        ("encodng=rope", "query:encodng", "encoding"),
        ("Heads=2", "query:Heads", "heads"),
        ("return=weight", "query:return", "weights"),
        ("dtype=float", "query:dtype", "float32"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(raw: str, pointer: str, nearest: str) -> None:
    with pytest.raises(UnknownName) as caught:
        parse(raw.encode())
    assert caught.value.pointer == pointer
    assert nearest in caught.value.extra["nearest"]  # type: ignore[operator]


def test_a_query_string_has_an_end() -> None:
    with pytest.raises(InvalidInput, match="bytes"):
        parse(b"rope.theta=" + b"1" * MAX_LENGTH)
    with pytest.raises(InvalidInput, match="256 parts"):
        parse(b"&".join(b"rope.a%d=1" % i for i in range(300)))


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), max_size=5))
def test_any_query_string_is_read_or_refused(pairs: list[tuple[str, str]]) -> None:
    with suppress(InvalidInput):
        parse(urlencode(pairs, errors="replace").encode())


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with suppress(InvalidInput):
        parse(raw)
