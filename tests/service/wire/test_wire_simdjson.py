"""What simdjson reads is what orjson's lists say, or it is left to them."""

from __future__ import annotations

import json as standard
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from service.errors import InvalidInput
from service.wire import json, simdjson
from service.wire.members import Members, assemble

pytestmark = pytest.mark.skipif(not simdjson.AVAILABLE, reason="there is no wheel of it for this Python")

numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
scalars = numbers | st.booleans() | st.none() | st.text(st.sampled_from('[]{}",\\/aé\u2028'), max_size=3)
matrices = npst.arrays(np.float64, npst.array_shapes(min_dims=1, max_dims=4, max_side=4), elements=st.floats(-9, 9))
arrays = (
    matrices.map(np.ndarray.tolist)
    | npst.arrays(np.int64, npst.array_shapes(max_side=3), elements=st.integers(-1, 1)).map(np.ndarray.tolist)
    | npst.arrays(np.bool_, npst.array_shapes(max_side=3)).map(np.ndarray.tolist)
    | st.recursive(scalars, lambda parts: st.lists(parts, max_size=3), max_leaves=12)
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "embeddings": arrays,
        "queries": arrays,
        "positions": arrays,
        "mask": arrays,
        "tokens": st.lists(st.text(max_size=3)) | scalars,
        "text": st.text() | scalars,
        "parameters": st.dictionaries(st.sampled_from(["t5.bias", "t5.bias\0x", "a[.b", "x"]), arrays, max_size=2)
        | scalars,
        "other": scalars,
    },
)


def parsed(body: bytes) -> Members | None:
    return simdjson.read(body, body.count(b"["))


def assert_equal(one: Members, other: Members) -> None:
    assert (one.tokens, one.text, one.parameters_at) == (other.tokens, other.text, other.parameters_at)
    for mine, theirs in ((one.arrays, other.arrays), (one.parameters, other.parameters)):
        assert list(mine) == list(theirs)
        for name, array in mine.items():
            assert array.dtype == theirs[name].dtype
            np.testing.assert_array_equal(array, theirs[name])


@given(documents, st.booleans(), st.booleans())
def test_any_document_is_read_as_its_lists_are_or_left_to_them(document: Any, escaped: bool, spaced: bool) -> None:
    body = standard.dumps(document, ensure_ascii=escaped, separators=None if spaced else (",", ":")).encode(
        errors="replace"
    )
    found = parsed(body)
    if found is not None:
        assert_equal(found, json._loaded(body))


@given(matrices)
def test_plain_arrays_are_read_here(array: np.ndarray) -> None:
    body = orjson.dumps({"tokens": ["[CLS]", "a]"], "embeddings": array}, option=orjson.OPT_SERIALIZE_NUMPY)
    found = parsed(body)
    assert found is not None
    np.testing.assert_array_equal(found.arrays["embeddings"], array)
    assert found.tokens == ["[CLS]", "a]"]


@pytest.mark.parametrize("mask", [[True, False], [[1, 0]], [[[False]], [[True]]]])
def test_masks_are_read_here(mask: Any) -> None:
    found = parsed(standard.dumps({"embeddings": [[1]], "mask": mask}).encode())
    assert found is not None
    np.testing.assert_array_equal(found.arrays["mask"], np.array(mask, float))


@pytest.mark.parametrize(
    "body",
    [
        b'{"embeddings": [[1, [2]], [3, 4]]}',  # as many numbers as two rows of two
        b'{"embeddings": [[1, 2], [3, [4]]], "tokens": ["\\u005b"]}',
        b'{"embeddings": [[1, 2], [3]]}',
        b'{"embeddings": [[1, true]]}',
        b'{"embeddings": [[1]], "embeddings": [[2]]}',
        b'{"embeddings": [[1]], "mask": [[1], true]}',
        b'{"embeddings": [[1]], "parameters": {"a.b": 1, "a.b\\u0000": 2}}',
        b'{"embeddings": [[123456789012345678901234567890]]}',
        b'{"embeddings": [[1e400]]}',
        b"[[1, 2]]",
        b"",
    ],
)
def test_what_is_out_of_the_ordinary_is_left_to_the_lists(body: bytes) -> None:
    assert parsed(body) is None


def test_two_members_of_one_name_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="'embeddings' twice"):
        json.decode(b'{"embeddings": [[1]], "embeddings": [[2]]}')


def test_without_simdjson_the_lists_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simdjson, "AVAILABLE", False)
    read = json.decode(b'{"embeddings": [[1, 2.5]], "tokens": ["[a"]}')
    assert read.embeddings is not None
    assert read.embeddings.tolist() == [[1, 2.5]]


def test_a_body_that_arrived_in_parts_is_read_too() -> None:
    body = bytearray(b'{"embeddings": [[1, 2], [3, 4]]}')
    found = simdjson.read(body, 3)
    assert found is not None
    body[:] = b" " * len(body)
    np.testing.assert_array_equal(assemble(found).embeddings, [[1, 2], [3, 4]])


def test_a_list_of_more_numbers_than_simdjson_counts_is_left_to_the_lists() -> None:
    """Its own count of a list's parts ends at 2^24 - 1."""
    body = b'{"positions":[' + b"0," * (1 << 24) + b"0]}"
    assert parsed(body) is None


def test_deep_nesting_harms_nothing() -> None:
    for depth in (9, 900, 5000):
        body = b'{"embeddings":' + b"[" * depth + b"]" * depth + b"}"
        assert parsed(body) is None
    with pytest.raises(InvalidInput, match="nested more than 8"):
        json.decode(b'{"embeddings":' + b"[" * 9 + b"]" * 9 + b"}")
