from __future__ import annotations

import json as standard
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from service.errors import InvalidInput, MalformedBody, PayloadTooLarge, ServiceError, UnknownName
from service.wire import json, media
from tests.service import samples

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def decode(document: Any) -> Any:
    return json.decode(standard.dumps(document).encode())


def refusal(body: bytes | Any, kind: type[ServiceError] = InvalidInput) -> ServiceError:
    with pytest.raises(kind) as caught:
        json.decode(body if isinstance(body, bytes) else standard.dumps(body).encode())
    assert type(caught.value) is kind
    return caught.value


@given(npst.arrays(np.float32, npst.array_shapes(min_dims=2, max_dims=3, max_side=6), elements=floats))
def test_embeddings_come_back_bit_for_bit(array: np.ndarray) -> None:
    decoded = json.decode(orjson.dumps({"embeddings": array}, option=orjson.OPT_SERIALIZE_NUMPY))
    assert decoded.embeddings is not None
    assert decoded.embeddings.dtype == np.float32
    assert decoded.embeddings.flags.c_contiguous
    np.testing.assert_array_equal(decoded.embeddings, array)


def test_integers_are_fine_and_so_are_integers_among_floats() -> None:
    np.testing.assert_array_equal(decode({"embeddings": [[1, 0], [2.5, -1]]}).embeddings, [[1, 0], [2.5, -1]])


def test_every_member_arrives_with_its_type() -> None:
    read = decode(
        {
            "queries": [[1, 2]],
            "keys": [[1, 2], [3, 4]],
            "query_positions": [7.25],
            "key_positions": [0, 1_000_000_001],
            "mask": [[True, False]],
            "tokens": ["true", "NaN"],
            "parameters": {"t5.bias": [[0.1], [0.2]], "rope.theta": 1.03},
        }
    )
    assert read.embeddings is None
    assert read.queries.shape == (1, 2)
    assert read.query_positions.dtype == np.float64
    assert read.key_positions.tolist() == [0, 1_000_000_001]
    assert read.mask.tolist() == [[True, False]]
    assert read.tokens == ["true", "NaN"]
    assert read.parameters["t5.bias"].tolist() == [[0.1], [0.2]], "the digits that were sent"
    assert read.parameters["rope.theta"].shape == ()


@pytest.mark.parametrize(
    ("document", "pointer", "words"),
    [
        ({"embeddings": [[1, 2], [3]]}, "/embeddings/1", "has 1 number,"),
        ({"embeddings": [[1, 2], [3, 4, 5]]}, "/embeddings/1", "has 3 numbers"),
        ({"embeddings": [[[1], [2]], [[3]]]}, "/embeddings/1", "has 1 list,"),
        ({"embeddings": [[1, 2], 3]}, "/embeddings/1", "the number 3"),
        ({"embeddings": [[1, 2], [3, [4]]]}, "/embeddings/1/1", "a list"),
        ({"embeddings": [[1, 2], [3, "NaN"]]}, "/embeddings/1/1", 'the string "NaN"'),
        ({"embeddings": [[1, 2], [3, None]]}, "/embeddings/1/1", "null"),
        ({"embeddings": [[1, 2], [3, True]]}, "/embeddings/1/1", "true"),
        ({"embeddings": [[1.5, 2.5], [False, 4.5]]}, "/embeddings/1/0", "false"),
        ({"embeddings": [[1, 2], [3, float("nan")]]}, "/embeddings/1/1", "nan"),
        ({"embeddings": [[1, 2], [3, float("-inf")]]}, "/embeddings/1/1", "-inf"),
        ({"embeddings": [[1, 2], [3, 1e39]]}, "/embeddings/1/1", "too large for float32"),
        ({"embeddings": [[1, 10**400]]}, "/embeddings/0/1", "too large"),
        ({"embeddings": []}, "/embeddings", "1-D"),
        ({"embeddings": [[]]}, "/embeddings", "empty"),
        ({"embeddings": [1, 2]}, "/embeddings", "1-D"),
        ({"embeddings": [[[[1]]]]}, "/embeddings", "4-D"),
        ({"embeddings": "x"}, "/embeddings", "the string"),
        ({"embeddings": {"a": 1}}, "/embeddings", "an object"),
        ({"embeddings": [[{}]]}, "/embeddings/0/0", "an object"),
        ({"embeddings": [[1]], "positions": [[0]]}, "/positions", "1-D"),
        ({"embeddings": [[1]], "positions": [float("inf")]}, "/positions/0", "inf"),
        ({"embeddings": [[1]], "mask": "all"}, "/mask", "the string"),
        ({"embeddings": [[1]], "tokens": "a"}, "/tokens", "a list of strings"),
        ({"embeddings": [[1]], "tokens": ["a", 1]}, "/tokens/1", "the number 1"),
        ({"embeddings": [[1]], "parameters": [1]}, "/parameters", "an object of arrays"),
        ({"embeddings": [[1]], "parameters": {"bias": [1]}}, "/parameters/bias", "ENCODING.NAME"),
        ({"embeddings": [[1]], "parameters": {"t5.a/b~c": ["x"]}}, "/parameters/t5.a~1b~0c/0", "the string"),
        ({"embeddings": [[1]], "text": "a"}, "/text", "came together"),
        ({"queries": [[1]]}, "/queries", "without"),
        ({"text": 5}, "/text", "a string"),
        ({}, "", "nothing to score"),
        ([[1, 2]], "", "must be an object"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(document: Any, pointer: str, words: str) -> None:
    error = refusal(document)
    assert error.pointer == pointer
    assert words in error.detail


def test_an_unknown_member_is_refused_with_the_nearest_ones() -> None:
    error = refusal({"embedings": [[1]]}, UnknownName)
    assert error.extra["nearest"] == ["embeddings"]
    assert error.pointer == "/embedings"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b'{"embeddings": [[1, 2', "end of data"),
        (b'{"embeddings": [[1, 2]]} tail', "unexpected"),
        (b"\x93NUMPY\x01\x00", media.NPY),
        (b"PK\x03\x04....", media.NPZ),
        (b"\x80\x04\x95pickled", "pickle, which is never read"),
        (b"\x1f\x8b\x08", "gzip"),
        (samples.tensors(embeddings=np.ones((2, 2))), media.SAFETENSORS),
        ('{"tokens": ["é"]}'.encode("latin-1"), "utf-8"),
        (b'{"tokens": ["NaN", "\\ud800"], "embeddings": [[1], [2]]}', "surrogate"),
    ],
)
def test_bytes_that_are_no_json_say_what_they_look_like(body: bytes, words: str) -> None:
    assert words.lower() in refusal(body, MalformedBody).detail.lower()


@pytest.mark.parametrize("depth", [9, 500, 100_000])
def test_deep_nesting_is_refused_and_harms_nothing(depth: int) -> None:
    refusal(b'{"embeddings":' + b"[" * depth + b"]" * depth + b"}", MalformedBody if depth > 1000 else InvalidInput)


def test_many_tiny_lists_are_refused_before_they_take_memory() -> None:
    error = refusal(b'{"embeddings":[' + b"[0]," * json.MAX_LISTS + b"[0]]}", PayloadTooLarge)
    assert error.extra["limit"] == json.MAX_LISTS


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_document_is_read_or_refused(document: Any) -> None:
    for body in ({"embeddings": document}, {"embeddings": [[1.0]], "mask": document}, document):
        with suppress(MalformedBody, InvalidInput):
            decode(body)


def test_the_answer_has_its_members_in_the_stated_order() -> None:
    answer = standard.loads(samples.encoded(media.JSON, samples.result(2, 3, 4)))
    assert list(answer) == ["model", "shape", "causal", "results", "timings"]
    assert answer["shape"] == {"heads": 2, "queries": 3, "keys": 4, "head_dim": 8}
    first, second = answer["results"]
    assert list(first) == [
        "encoding",
        "label",
        "name",
        "parameters",
        "conventions",
        "weights",
        "scores",
        "nonfinite_cells",
    ]
    assert list(second["terms"]) == ["content", "bias"]
    assert answer["timings"]["compute_ms"] == 1.0


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 1, 1), (3, 300, 257), (2, 1, json.BLOCK + 5)])
@pytest.mark.parametrize("batch", [None, 2])
def test_numbers_are_written_so_that_they_come_back_exactly(shape: tuple[int, int, int], batch: int | None) -> None:
    result = samples.result(*shape, batch=batch)
    answer = orjson.loads(samples.encoded(media.JSON, result))
    for read, one in zip(answer["results"], result.results, strict=True):
        np.testing.assert_array_equal(np.array(read["weights"], np.float32), one.weights)
        np.testing.assert_array_equal(np.array(read["scores"], np.float32), one.scores)


def test_nonfinite_numbers_become_null_and_are_counted() -> None:
    result = samples.result(1, 2, 2)
    weights = result.results[0].weights
    assert weights is not None
    weights[0, 0, 1] = np.nan
    result.results[0].nonfinite_cells = 1
    first = standard.loads(samples.encoded(media.JSON, result))["results"][0]
    assert first["weights"][0][0][1] is None
    assert first["nonfinite_cells"] == 1


def test_views_that_are_not_contiguous_are_written_too() -> None:
    result = samples.result(2, 4, 4)
    whole = result.results[0].weights
    assert whole is not None
    result.results[0].weights = whole[:, :3, :3]
    read = orjson.loads(samples.encoded(media.JSON, result))["results"][0]["weights"]
    np.testing.assert_array_equal(np.array(read, np.float32), whole[:, :3, :3])
