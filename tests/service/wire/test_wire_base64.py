from __future__ import annotations

import base64 as standard
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from service.errors import InvalidInput, UnknownName
from service.wire import base64
from service.wire import json as wire

shapes = npst.array_shapes(min_dims=1, max_dims=4, max_side=5)


def written(array: np.ndarray) -> dict[str, Any]:
    """As a client would: with the standard library, from little-endian bytes."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return {
        "base64": standard.b64encode(little.tobytes()).decode(),
        "dtype": array.dtype.name,
        "shape": list(array.shape),
    }


def decode(**members: Any) -> Any:
    return wire.decode(json.dumps(members).encode())


@pytest.mark.parametrize("dtype", [name for name in base64.DTYPES if name != "bool"])
def test_embeddings_may_be_base64_of_any_numbers(dtype: str) -> None:
    array = (np.arange(24).reshape(2, 3, 4) * 2.5).astype(dtype)
    read = decode(embeddings=written(array))
    assert read.embeddings.dtype == np.float32
    assert read.embeddings.flags.c_contiguous
    np.testing.assert_array_equal(read.embeddings, array.astype(np.float32))


def test_every_array_of_a_body_may_be_base64_and_lists_stand_beside_it() -> None:
    bias = np.arange(6, dtype=np.float32).reshape(3, 2)
    read = decode(
        queries=[[1.0, 2.0]],
        keys=written(np.ones((2, 2), np.float16)),
        query_positions=written(np.array([7.25])),
        key_positions=written(np.array([0, 1_000_000_001])),
        mask=written(np.array([[True, False]])),
        tokens=["[CLS]", "b"],
        parameters={"t5.bias": written(bias), "rope.theta": 5},
    )
    assert read.queries.shape == (1, 2)
    assert read.keys.dtype == np.float32
    assert read.query_positions.tolist() == [7.25]
    assert read.key_positions.tolist() == [0, 1_000_000_001]
    assert read.mask.tolist() == [[True, False]]
    np.testing.assert_array_equal(read.parameters["t5.bias"], bias)


@given(npst.arrays(np.float32, shapes, elements=st.floats(width=32)))
def test_what_is_written_comes_back_bit_for_bit(array: np.ndarray) -> None:
    document = json.loads(b"".join(base64.encode(array)))
    assert document == written(array)
    np.testing.assert_array_equal(base64.decode(document, "/x"), array)


def test_large_arrays_are_written_in_bounded_pieces_without_a_seam() -> None:
    array = np.arange(2 * base64.BLOCK // 4 + 5, dtype=np.float32)
    pieces = list(base64.encode(array))
    assert len(pieces) == 5
    assert max(map(len, pieces)) <= base64.BLOCK * 4 // 3
    assert json.loads(b"".join(pieces)) == written(array)


GOOD = written(np.ones((2, 3), np.float32))


@pytest.mark.parametrize(
    ("change", "pointer", "words"),
    [
        ({"shape": [2, 4]}, "/embeddings/base64", "holds 24 bytes, but the shape [2, 4] of float32 takes 32"),
        ({"dtype": "float16"}, "/embeddings/base64", "holds 24 bytes, but the shape [2, 3] of float16 takes 12"),
        ({"base64": "AAAA!AAA"}, "/embeddings/base64", "has '!' at 4"),
        ({"base64": "AAAA-AAA"}, "/embeddings/base64", "not the one for URLs"),
        ({"base64": "AAAA\nAAA"}, "/embeddings/base64", "has '\\n' at 4"),
        ({"base64": "AAAAé"}, "/embeddings/base64", "has 'é' at 4"),
        ({"base64": "AAAAA"}, "/embeddings/base64", "has 5 characters, 0 of them padding"),
        ({"base64": "AAA=="}, "/embeddings/base64", "has 5 characters, 2 of them padding"),
        ({"base64": ""}, "/embeddings/base64", "holds 0 bytes"),
        ({"base64": [1]}, "/embeddings/base64", "is a list; a string is expected"),
        ({"dtype": 32}, "/embeddings/dtype", "is the number 32"),
        ({"shape": 6}, "/embeddings/shape", "is the number 6"),
        ({"shape": [2, "3"]}, "/embeddings/shape/1", 'is the string "3"'),
        ({"shape": [True, 6]}, "/embeddings/shape/0", "is true"),
        ({"shape": [-2, -3]}, "/embeddings/shape/0", "is the number -2"),
        ({"shape": [0]}, "/embeddings/shape/0", "from 1 on"),
        ({"shape": [2] * 9}, "/embeddings/shape", "has 9 sizes, at most 8"),
        ({"shape": [6]}, "/embeddings", "1-D"),
        ({"shape": [2**62, 2**62]}, "/embeddings/base64", "holds 24 bytes"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(change: dict[str, Any], pointer: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(words)) as caught:
        decode(embeddings=GOOD | change)
    assert caught.value.pointer == pointer


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        decode(embeddings=GOOD | {"dtype": "float8"})
    assert caught.value.pointer == "/embeddings/dtype"
    assert "float16" in caught.value.extra["nearest"]  # type: ignore[operator]
    with pytest.raises(UnknownName) as caught:
        decode(embeddings=GOOD | {"shap": [1]})
    assert caught.value.pointer == "/embeddings/shap"


@pytest.mark.parametrize("missing", ["dtype", "shape"])
def test_what_is_missing_is_named_beside_an_example(missing: str) -> None:
    with pytest.raises(InvalidInput, match=f"has no '{missing}'; an array in base64 is") as caught:
        decode(embeddings={name: value for name, value in GOOD.items() if name != missing})
    assert caught.value.pointer == "/embeddings"


def test_an_object_without_base64_is_no_array() -> None:
    with pytest.raises(InvalidInput, match="is an object; an array of numbers is expected there"):
        decode(embeddings={"dtype": "float32", "shape": [1, 1]})


def test_booleans_are_0_or_1() -> None:
    bad = {"base64": standard.b64encode(b"\x00\x02").decode(), "dtype": "bool", "shape": [2]}
    with pytest.raises(InvalidInput, match="is bool, but has the byte 2"):
        decode(embeddings=[[1.0], [2.0]], mask=bad)
    with pytest.raises(InvalidInput, match="holds bool"):
        decode(embeddings=written(np.array([[True]])))


def test_numbers_that_are_not_finite_are_named_by_their_place() -> None:
    array = np.array([[1, 2], [3, np.nan]], np.float32)
    with pytest.raises(InvalidInput, match="nan") as caught:
        decode(embeddings=written(array))
    assert caught.value.pointer == "/embeddings/1/1"
