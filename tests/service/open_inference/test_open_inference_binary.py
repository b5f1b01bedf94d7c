"""Binary tensors, as bytes behind the JSON: what is right, and everything that can be wrong with it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from service.errors import InvalidInput, MalformedBody, PayloadTooLarge
from service.wire import open_inference as wire
from service.wire import open_inference_tensors as tensors
from tests.service.open_inference.bodies import DATATYPES, LENGTH, X, binary_body, json_body, read_binary, tensor

Refusal = (InvalidInput, MalformedBody, PayloadTooLarge)
ARRAYS = {"embeddings": X, "positions": np.arange(5.0), "mask": np.ones((5, 5), bool)}


def infer(client: TestClient, content: bytes, headers: dict[str, str] | None = None) -> Any:
    return client.post("/v2/models/identity.rope/infer", content=content, headers=headers)


def refused(client: TestClient, content: bytes, headers: dict[str, str] | None = None) -> str:
    answer = infer(client, content, headers)
    assert answer.status_code == 400, answer.text
    message: str = answer.json()["error"]
    return message


def test_a_binary_request_is_answered_in_binary_where_it_says_so(client: TestClient) -> None:
    body, headers = binary_body(ARRAYS, parameters={"binary_data_output": True})
    answer = infer(client, body, headers)
    assert answer.headers["content-type"] == "application/octet-stream"
    _, found = read_binary(answer.content, answer.headers[LENGTH])
    by_json = infer(client, json_body(*(tensor(name, array) for name, array in ARRAYS.items()))).json()
    for output in by_json["outputs"]:
        assert found[output["name"]].tobytes() == np.array(output["data"], np.float32).tobytes()


def test_each_output_may_say_for_itself_whether_it_is_binary(client: TestClient) -> None:
    outputs = [
        {"name": "weights", "parameters": {"binary_data": False}},
        {"name": "scores"},
        {"name": "output", "parameters": {"binary_data": True}},
    ]
    for default, expected in ((True, [False, True, True]), (False, [False, False, True])):
        answer = infer(client, json_body(outputs=outputs, parameters={"binary_data_output": default}))
        document, _ = read_binary(answer.content, answer.headers[LENGTH])
        assert ["data" not in output for output in document["outputs"]] == expected


def test_json_and_binary_inputs_may_be_mixed_and_json_ones_take_no_bytes(client: TestClient) -> None:
    inputs = [
        tensor("positions", ARRAYS["positions"], binary=True),
        tensor("mask", ARRAYS["mask"]),
        tensor("embeddings", X, binary=True),
    ]
    text = json_body(*inputs)
    mixed = infer(client, text + ARRAYS["positions"].tobytes() + X.tobytes(), {LENGTH: str(len(text))})
    body, headers = binary_body(ARRAYS)
    assert mixed.json() == infer(client, body, headers).json()


@pytest.mark.parametrize("padding", range(8))
def test_a_tensor_may_begin_at_any_byte(client: TestClient, padding: int) -> None:
    plain = json_body(tensor("embeddings", X, binary=True), outputs=[{"name": "scores"}])
    text = plain + b" " * padding
    answer = infer(client, text + X.tobytes(), {LENGTH: str(len(text))})
    assert answer.content == infer(client, plain + X.tobytes(), {LENGTH: str(len(plain))}).content


def test_bf16_is_the_upper_half_of_a_float32(client: TestClient) -> None:
    upper = (X.view(np.uint32) >> 16).astype("<u2")
    embeddings = {**tensor("embeddings", X), "datatype": "BF16", "parameters": {"binary_data_size": upper.nbytes}}
    del embeddings["data"]
    text = json_body(embeddings)
    rounded = (upper.astype(np.uint32) << 16).view(np.float32)
    body, headers = binary_body({"embeddings": rounded})
    expected = infer(client, body, headers).json()
    assert infer(client, text + upper.tobytes(), {LENGTH: str(len(text))}).json() == expected


def test_a_bool_is_a_byte_of_0_or_1(client: TestClient) -> None:
    body, headers = binary_body({"embeddings": X, "mask": np.ones(5, bool)})
    assert "0 and 1" in refused(client, body[:-1] + b"\x02", headers)


@pytest.mark.parametrize("length", ["-1", "1e3", "", "0x10", "99999999", "9" * 30, "٣"])
def test_a_length_of_the_json_that_cannot_be_is_refused(client: TestClient, length: str) -> None:
    body, _ = binary_body(ARRAYS)
    answer = client.post("/v2/models/identity.rope/infer", content=body, headers=[(LENGTH.encode(), length.encode())])
    assert answer.status_code == 400
    assert "Inference-Header-Content-Length" in answer.json()["error"]


def test_a_length_that_cuts_the_json_elsewhere_is_refused(client: TestClient) -> None:
    body, headers = binary_body(ARRAYS)
    end = int(headers[LENGTH])
    for wrong in (1, end - 1, end + 1, len(body)):
        refused(client, body, {LENGTH: str(wrong)})
    refused(client, body)


def test_sizes_that_do_not_fit_are_named(client: TestClient) -> None:
    body, headers = binary_body(ARRAYS)
    assert "unexpected size for input 'mask': 25 bytes were announced, 24 came" in refused(client, body[:-1], headers)
    assert "unexpected additional input data: 3 bytes" in refused(client, body + b"abc", headers)
    for size in (0, 319, 321, -320, 1 << 70, 320.0, "320", None, True):
        described = {**tensor("embeddings", X, binary=True), "parameters": {"binary_data_size": size}}
        text = orjson.dumps({"inputs": [described]}) if size != 1 << 70 else None
        if text is None:
            text = json_body(tensor("embeddings", X, binary=True)).replace(b"320", str(1 << 70).encode())
        assert "embeddings" in refused(client, text + X.tobytes(), {LENGTH: str(len(text))})


def test_an_empty_tensor_may_come_either_way_and_is_then_refused_for_being_empty(client: TestClient) -> None:
    empty = np.ones((1, 0, 4), np.float32)
    body, headers = binary_body({"embeddings": empty})
    assert "empty" in refused(client, body, headers)
    assert "empty" in refused(client, body)
    assert "empty" in refused(client, json_body(tensor("embeddings", empty, flat=True)))


def test_a_bare_tensor_needs_a_model_that_knows_its_width(client: TestClient) -> None:
    assert "JSON header" in refused(client, X.tobytes(), {LENGTH: "0"})


# The decoder, on its own

SIZES = st.integers(-2, 5) | st.sampled_from([2**16, 2**31, 2**47, 2**62, 2**63, 2**64, 10**30])
SCALARS = st.none() | st.booleans() | SIZES | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["embeddings", "mask", "parameter.bias", "rope.theta", "other", ""])
INPUTS = st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES | VALUES,
        "shape": st.lists(SIZES, max_size=5) | VALUES,
        "datatype": st.sampled_from([*tensors.DATATYPES, "BYTES", "FP31"]) | VALUES,
        "data": VALUES,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": SIZES | VALUES, "other": VALUES})
        | VALUES,
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "id": VALUES,
        "inputs": st.lists(INPUTS, max_size=4) | VALUES,
        "outputs": st.lists(st.fixed_dictionaries({}, optional={"name": NAMES, "parameters": VALUES}), max_size=3)
        | VALUES,
        "parameters": VALUES,
    },
)


def decoded(body: bytes, length: str | None) -> wire.InferRequest | None:
    """None where it was refused; anything else that is raised fails the test."""
    try:
        request = wire.decode(body, length)
        wire.attention_input(request, "rope")
    except Refusal as refusal:
        status, content = wire.encode_failure(refusal)
        assert status in (400, 413)
        assert orjson.loads(content)["error"]
        return None
    return request


@given(st.binary(max_size=200), st.none() | st.text(max_size=12) | st.integers(-5, 300).map(str))
def test_any_bytes_under_any_length_are_read_or_refused(body: bytes, length: str | None) -> None:
    decoded(body, length)


@given(DOCUMENTS, st.binary(max_size=64))
def test_any_document_before_any_bytes_is_read_or_refused(document: Any, binary: bytes) -> None:
    text = json.dumps(document).encode()
    decoded(text + binary, str(len(text)))


SHAPES = st.lists(st.integers(0, 4), max_size=4)


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, np.ndarray[Any, Any]]:
    """Some arrays of any datatype; their bytes are any bytes."""
    drawn: dict[str, np.ndarray[Any, Any]] = {}
    for name in draw(st.lists(st.sampled_from(["a.b", "a.c", "parameter.d", "mask"]), unique=True, min_size=1)):
        dtype = np.dtype(draw(st.sampled_from(list(DATATYPES))))
        shape = tuple(draw(SHAPES))
        size = int(np.prod(shape)) * dtype.itemsize
        content = draw(st.binary(min_size=size, max_size=size))
        if dtype == np.bool_:
            content = bytes(byte & 1 for byte in content)
        drawn[name] = np.frombuffer(content, dtype).reshape(shape)
    return drawn


@given(arrays())
def test_arrays_of_every_datatype_come_through_bit_for_bit(given: dict[str, np.ndarray[Any, Any]]) -> None:
    body, headers = binary_body(given)
    found = wire.decode(body, headers[LENGTH]).arrays
    assert list(found) == list(given)
    for name, array in given.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


@given(arrays(), st.data())
def test_a_body_cut_or_prolonged_anywhere_is_refused(
    given: dict[str, np.ndarray[Any, Any]], data: st.DataObject
) -> None:
    body, headers = binary_body(given)
    end = int(headers[LENGTH])
    cut = data.draw(st.integers(0, len(body) - 1))
    assert decoded(body[:cut], headers[LENGTH]) is None
    more = data.draw(st.binary(min_size=1, max_size=9))
    with pytest.raises(MalformedBody):
        wire.decode(body + more, headers[LENGTH])
    wrong = data.draw(st.integers(0, len(body)).filter(lambda length: length != end))
    with pytest.raises(Refusal):
        wire.decode(body, str(wrong))


@given(arrays(), st.data())
def test_a_size_that_lies_is_refused(given: dict[str, np.ndarray[Any, Any]], data: st.DataObject) -> None:
    inputs = [tensor(name, array, binary=True) for name, array in given.items()]
    liar = data.draw(st.sampled_from(inputs))
    true = liar["parameters"]["binary_data_size"]
    liar["parameters"] = {"binary_data_size": data.draw(SIZES.filter(lambda size: size != true and size < 2**64))}
    text = orjson.dumps({"inputs": inputs})
    with pytest.raises(MalformedBody):
        wire.decode(text + b"".join(array.tobytes() for array in given.values()), str(len(text)))


SHAPED = st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 6))
VALUE = st.booleans() | st.integers(-3, 2**40) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
PARAMETERS = st.dictionaries(
    st.sampled_from(["heads", "causal", "timeout", "priority", "dtype", "binary_data_output", "theta", "rope.theta"])
    | st.sampled_from(["layout", "sinks", "scale", "softcap", "rotary_fraction", ".", "rope.", "t5.bias", "."])
    | st.text(max_size=9),
    VALUE,
    max_size=4,
)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SHAPED, arrays(), PARAMETERS, st.sampled_from(["identity.rope", "identity.learned", "identity.t5"]), st.data())
def test_no_request_makes_the_service_fail(
    client: TestClient,
    shape: tuple[int, ...],
    more: dict[str, np.ndarray[Any, Any]],
    parameters: dict[str, Any],
    model: str,
    data: st.DataObject,
) -> None:
    names = data.draw(st.lists(st.sampled_from(["weights", "output", "term.fast", "x"]), unique=True, max_size=3))
    extra = more if data.draw(st.booleans()) else {}
    given = {"embeddings": np.ones(shape, np.float32), **extra}
    body, headers = binary_body(given, parameters=parameters, outputs=[{"name": name} for name in names])
    answer = client.post(f"/v2/models/{model}/infer", content=body, headers=headers)
    assert answer.status_code in (200, 400, 413, 504), answer.text
    if answer.status_code == 200 and LENGTH in answer.headers:
        read_binary(answer.content, answer.headers[LENGTH])
    elif answer.status_code != 200:
        assert answer.json()["error"]
