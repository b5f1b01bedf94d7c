"""Bodies and queries that are almost right, and some that are not at all: whatever comes is answered or refused in
words, and leaves nothing behind."""

from __future__ import annotations

import base64
import gc
import io
import json
import math
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from service.routes import query
from service.wire import media, members
from tests.service import samples

EXAMPLES = 400
"""Of each test; all of them take some 20 s."""
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
)

# What is sent

numbers = st.one_of(
    st.floats(-10, 10, width=32),
    st.sampled_from([0, -1, 1e38, 1e300, -0.0, 2**53, 2**63, -(2**63), 10**25, 5e-324]),
)
sizes = st.sampled_from([0, 1, 2, 3, 4, 8, 17])


@st.composite
def matrices(draw: st.DrawFn) -> Any:
    """Nested lists of one depth and mostly one length."""
    shape = draw(st.lists(sizes, min_size=1, max_size=4))
    array = np.arange(math.prod(shape), dtype=np.float64).reshape(shape) / 7
    found = array.tolist()
    if draw(st.booleans()) and found and isinstance(found[0], list):
        found[draw(st.integers(0, len(found) - 1))] = draw(
            st.one_of(numbers, st.none(), st.just([]), st.text(max_size=3))
        )
    return found


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)
encoded = st.fixed_dictionaries(
    {
        "base64": st.one_of(
            st.binary(max_size=64).map(lambda data: base64.b64encode(data).decode()), st.text(max_size=9)
        ),
        "dtype": st.sampled_from(["float32", "float16", "float64", "int64", "bool", "object", "<f4", ""]),
        "shape": st.one_of(st.lists(st.integers(-1, 2**40), max_size=3), anything),
    }
)
names = st.one_of(st.sampled_from([*members.NAMES, "t5.bias", "parameters"]), st.text(max_size=6))
documents = st.dictionaries(names, st.one_of(matrices(), encoded, anything), max_size=5)


def array_bytes() -> st.SearchStrategy[np.ndarray[Any, Any]]:
    dtypes = ["<f4", "<f8", "<f2", "<i8", "<i4", "?", "|u1", ">f4", "<c8", "<U3", "<M8[s]", "S4"]

    def make(dtype: str, shape: list[int], fortran: bool) -> np.ndarray[Any, Any]:
        array = np.zeros(shape, dtype)
        return np.asfortranarray(array) if fortran else array

    return st.builds(make, st.sampled_from(dtypes), st.lists(sizes, max_size=5), st.booleans())


def changed(body: bytes, draw: Callable[[st.SearchStrategy[Any]], Any]) -> bytes:
    """Cut, lengthened, or with some bytes turned into others: those of the header as often as the rest."""
    how = draw(st.sampled_from(["whole", "cut", "longer", "flipped", "spliced"]))
    place = draw(st.integers(0, min(len(body), 300)))
    if how == "cut":
        return body[:place]
    if how == "longer":
        more: bytes = draw(st.binary(min_size=1, max_size=20))
        return body + more
    if how == "flipped":
        found = bytearray(body)
        for at in draw(st.lists(st.integers(0, max(0, min(len(body), 200) - 1)), min_size=1, max_size=4)):
            if at < len(found):
                found[at] ^= 1 << draw(st.integers(0, 7))
        return bytes(found)
    if how == "spliced":
        amid: bytes = draw(st.binary(max_size=12))
        return body[:place] + amid + body[place:]
    return body


@st.composite
def npy_bodies(draw: st.DrawFn) -> bytes:
    return changed(samples.npy(draw(array_bytes())), draw)


@st.composite
def npz_bodies(draw: st.DrawFn) -> bytes:
    arrays = draw(st.dictionaries(names.filter(lambda name: "\0" not in name), array_bytes(), max_size=4))
    file = io.BytesIO()
    save = np.savez_compressed if draw(st.booleans()) else np.savez
    save(file, **{name: array for name, array in arrays.items() if name != "file"})  # type: ignore[arg-type]
    return changed(file.getvalue(), draw)


@st.composite
def safetensors_bodies(draw: st.DrawFn) -> bytes:
    tensor = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "F16", "BF16", "I64", "BOOL", "F8_E4M3", "U8", "f32", ""]),
            "shape": st.one_of(st.lists(st.integers(0, 8), max_size=4), anything),
            "data_offsets": st.one_of(st.tuples(st.integers(-1, 300), st.integers(-1, 300)).map(list), anything),
        }
    )
    header = draw(st.one_of(st.dictionaries(names, st.one_of(tensor, anything), max_size=3), anything))
    text = json.dumps(header).encode()
    length = draw(st.one_of(st.just(len(text)), st.integers(0, 2**64 - 1)))
    return changed(struct.pack("<Q", length) + text + bytes(draw(st.integers(0, 300))), draw)


@st.composite
def sound(draw: st.DrawFn) -> bytes:
    """A good body of safetensors, changed."""
    shape = draw(st.lists(st.sampled_from([1, 2, 4]), min_size=2, max_size=3))
    return changed(samples.tensors(embeddings=np.ones(shape, np.float32)), draw)


@st.composite
def json_bodies(draw: st.DrawFn) -> bytes:
    return changed(json.dumps(draw(st.one_of(documents, anything))).encode(), draw)


values = st.one_of(
    st.sampled_from(
        ["", "-1", "0:4", "1,2", "all", "rope", "rope@x", "nan", "1e999", "9" * 40, "true", "%00", "%ff", "\u00e9"]
    ),
    st.text(max_size=12),
)
parts = st.tuples(
    st.one_of(st.sampled_from([*query.NAMES, "rope.theta", "t5.max_distance", "rope@x.theta"]), st.text(max_size=8)),
    values,
)


@st.composite
def queries(draw: st.DrawFn) -> str:
    """Escaped or not, joined by what should join them or not."""
    joined = draw(st.sampled_from(["&", "&", "&", ";", "&&"])).join(
        f"{name}{draw(st.sampled_from(['=', '=', '=', '', '==']))}{value}"
        for name, value in draw(st.lists(parts, max_size=5))
    )
    return "".join(one if "!" <= one <= "~" and one not in '#"<>' else f"%{ord(one) & 255:02x}" for one in joined)


tensors = st.fixed_dictionaries(
    {
        "name": st.one_of(
            st.sampled_from(["embeddings", "queries", "keys", "positions", "mask", "parameter.theta"]), anything
        ),
        "shape": st.one_of(st.lists(st.integers(-1, 8), max_size=4), st.just([2**40, 2**40]), anything),
        "datatype": st.one_of(st.sampled_from(["FP32", "FP16", "BF16", "INT64", "BOOL", "BYTES", "fp32"]), anything),
    },
    optional={
        "data": st.one_of(matrices(), anything),
        "parameters": st.one_of(
            st.dictionaries(st.sampled_from(["binary_data_size", "shared_memory_region", "x"]), anything, max_size=2),
            st.fixed_dictionaries({"binary_data_size": st.integers(-1, 300)}),
            anything,
        ),
        "x": anything,
    },
)
inferences = st.fixed_dictionaries(
    {"inputs": st.one_of(st.lists(tensors, max_size=3), anything)},
    optional={
        "id": anything,
        "outputs": st.one_of(
            st.lists(
                st.fixed_dictionaries(
                    {"name": st.one_of(st.sampled_from(["weights", "scores", "output", "term.x"]), anything)},
                    optional={"parameters": anything},
                ),
                max_size=3,
            ),
            anything,
        ),
        "parameters": st.one_of(
            st.dictionaries(
                st.sampled_from(
                    ["heads", "causal", "dtype", "timeout", "priority", "theta", "binary_data_output", "x"]
                ),
                anything,
                max_size=3,
            ),
            anything,
        ),
        "x": anything,
    },
)


# What is answered


def problem(content: bytes, status: int) -> None:
    document = json.loads(content)  # orjson reads no lone surrogates, which may be what came
    assert {"type", "title", "status", "detail", "request_id"} <= set(document)
    assert document["status"] == status
    assert document["type"].startswith("urn:attention:problem:")
    assert document["title"]
    assert document["detail"]
    assert isinstance(document.get("pointer", ""), str)
    assert len(content) < 20_000


def ask(client: TestClient, path: str, kind: str, body: bytes, **headers: str) -> int:
    answer = client.post(
        path, content=body, headers={"content-type": kind} | {k.replace("_", "-"): v for k, v in headers.items()}
    )
    assert answer.status_code < 500, (answer.status_code, answer.text, body)
    assert answer.status_code in (200, 400, 404, 406, 413, 415, 422), answer.text
    assert answer.headers["x-request-id"]
    if answer.status_code == 200:
        return 200
    if path.startswith("/v2"):
        assert list(json.loads(answer.content)) == ["error"]
        assert json.loads(answer.content)["error"]
    else:
        assert answer.headers["content-type"] == media.PROBLEM
        problem(answer.content, answer.status_code)
    return answer.status_code


BODIES: dict[str, tuple[str, st.SearchStrategy[bytes]]] = {
    "json": (media.JSON, json_bodies()),
    "npy": (media.NPY, npy_bodies()),
    "npz": (media.NPZ, npz_bodies()),
    "safetensors": (media.SAFETENSORS, safetensors_bodies()),
    "sound safetensors": (media.SAFETENSORS, sound()),
}


@pytest.mark.parametrize("kind", BODIES)
def test_any_body_is_answered_or_refused_in_words(client: TestClient, kind: str) -> None:
    content_type, bodies = BODIES[kind]

    @fuzzed
    @given(
        body=bodies, compare=st.sampled_from(["", "compare=t5,alibi", "return=terms,output&top_k=1", "rows=0&head=-1"])
    )
    def check(body: bytes, compare: str) -> None:
        ask(client, f"/attention?{compare}", content_type, body, accept=media.SAFETENSORS)

    check()


@pytest.mark.parametrize("path", ["/attention", "/attention/probe"])
def test_any_query_is_answered_or_refused_in_words(client: TestClient, path: str) -> None:
    body = samples.npy(np.ones((4, 8), np.float32))

    @fuzzed
    @given(asked=queries())
    def check(asked: str) -> None:
        ask(client, f"{path}?{asked}", media.NPY, body)

    check()


@fuzzed
@given(document=st.one_of(inferences, anything), tail=st.binary(max_size=64), length=st.integers(-3, 3), data=st.data())
def test_any_inference_is_answered_or_refused_in_words(
    client: TestClient, document: Any, tail: bytes, length: int, data: st.DataObject
) -> None:
    text = changed(json.dumps(document).encode(), data.draw)
    path = f"/v2/models/{data.draw(st.sampled_from(['identity.rope', 'identity.t5', 'identity.nothing', '%00']))}/infer"
    ask(client, path, media.JSON, text)
    ask(client, path, media.OCTETS, text + tail, inference_header_content_length=str(len(text) + length))


@fuzzed
@given(
    document=st.one_of(
        st.dictionaries(
            st.sampled_from(["rope_theta", "rope_scaling", "head_dim", "model_type", "rope_parameters", "x"]), anything
        ),
        anything,
    )
)
def test_any_configuration_is_resolved_or_refused_in_words(client: TestClient, document: Any) -> None:
    ask(client, "/encodings/rope/resolve", media.JSON, json.dumps(document).encode())


def bodies(count: int) -> list[tuple[str, str, bytes]]:
    """Requests without chance, each a little different: most of them wrong."""
    generator = np.random.default_rng(5)
    good = [
        (media.NPY, samples.npy(np.ones((4, 8), np.float32))),
        (media.NPZ, samples.npz(embeddings=np.ones((4, 8), np.float32))),
        (media.SAFETENSORS, samples.tensors(embeddings=np.ones((4, 8), np.float32))),
        (media.JSON, orjson.dumps({"embeddings": np.ones((4, 8)).tolist(), "tokens": list("abcd")})),
    ]
    found = []
    for i in range(count):
        kind, body = good[i % len(good)]
        wrong = bytearray(body)
        for at in generator.integers(0, len(body), generator.integers(0, 4)):
            wrong[at] = generator.integers(0, 256)
        found.append((f"/attention?x{i % 7}=1" if i % 5 == 0 else f"/attention?rope.theta={i + 2}", kind, bytes(wrong)))
    return found


def test_thousands_of_wrong_requests_leave_nothing_behind(client: TestClient) -> None:
    """Memory of Python's own is flat once the caches are full: they are bounded, and this is more than they hold."""
    for path, kind, body in bodies(1500):
        ask(client, path, kind, body)
    gc.collect()
    tracemalloc.start()
    try:
        for path, kind, body in bodies(500):
            ask(client, path, kind, body)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for path, kind, body in bodies(1000):
            ask(client, path, kind, body)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1 << 20
