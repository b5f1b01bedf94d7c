"""What is fuzzed: for each format a function of bytes, which raises where the service would have answered 5xx, and
bodies to begin with.

Whatever comes is read as the service reads it, and what could be read is checked against a model as far as it goes
without a run. Refusals are written as the service writes them.
"""

from __future__ import annotations

import base64
import gzip
import io
import json as stdlib_json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import safetensors.numpy

from service.admission import Limits, admit
from service.catalogue import Catalogue
from service.errors import ServiceError
from service.instance import Instance
from service.masks import read_mask
from service.parameters import Parameters, Sizes, assign
from service.records import AttentionInput
from service.routes import query
from service.wire import json, npy, npz, open_inference, open_inference_coding, problem
from service.wire import safetensors as wire_safetensors
from service.wire.base64 import DTYPES

LIMIT = 1 << 16
"""Bytes that a body may unpack to."""
LONGEST_ANSWER = 20_000
LIMITS = Limits(tokens=64, width=64, heads=8, batch=8, cells=1 << 16, parameters=1 << 14)
ENCODINGS = ("rope", "t5", "learned", "rope-longrope")

_IDENTITY = Catalogue.read([Path(__file__).parents[2] / "exported"]).model("identity")
_ASKED = tuple(Instance(_IDENTITY.encoding(name)) for name in ENCODINGS)
_X = np.arange(32, dtype=np.float32).reshape(4, 8) / 7


class Bytes:
    """What a fuzzer made, taken from the front."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        """0 where nothing is left."""
        return next(iter(self.take(1)), 0)

    def take(self, count: int) -> bytes:
        found = self.data[self.at : self.at + count]
        self.at += count
        return found

    def rest(self) -> bytes:
        return self.take(len(self.data))


def refusable(read: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Refusals are right: any 4xx, in words that can be sent."""

    def target(data: bytes) -> None:
        try:
            read(data)
        except ServiceError as error:
            refusal = error
        else:
            return
        assert 400 <= refusal.status < 500, refusal
        assert refusal.detail
        for content in (problem.encode(refusal, "id"), open_inference.encode_failure(refusal)[1]):
            assert len(content) < LONGEST_ANSWER, len(content)
            stdlib_json.loads(content)

    return target


def checked(input: AttentionInput) -> None:
    """What is checked before anything is computed. Raises ServiceError."""
    given = assign(_IDENTITY, _ASKED, {}, input.parameters)
    if input.text is not None:
        return
    admitted = admit(input, _IDENTITY, None, LIMITS)
    queries, keys = len(admitted.query_positions), len(admitted.key_positions)
    if input.mask is not None:
        read_mask(input.mask, admitted.batch, admitted.heads, queries, keys)
    largest = max(admitted.query_positions.largest, admitted.key_positions.largest)
    sizes = Sizes(admitted.heads, admitted.head_dim, max(1, int(largest) + 1))
    parameters = Parameters(largest=LIMITS.parameters)
    for instance in _ASKED:
        parameters.resolve(instance.encoding, given[instance.name], sizes)


def _json(data: bytes) -> None:
    checked(json.decode(data))


def _npy(data: bytes) -> None:
    checked(npy.decode(data))


def _npz(data: bytes) -> None:
    """The first byte says whether the rest is an archive, or what to put into one: checksums are beyond a fuzzer."""
    reader = Bytes(data)
    mode = reader.byte()
    if mode < 64:
        checked(npz.decode(reader.rest(), LIMIT))
        return
    file = io.BytesIO()
    compression = zipfile.ZIP_DEFLATED if mode & 1 else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", compression) as archive:
        for _ in range(mode >> 1 & 3):
            name = reader.take(reader.byte() & 31).decode("latin-1")
            # One of the names that mean something, as often as not.
            name = _NAMES[len(name) % len(_NAMES)] if reader.byte() & 1 else name
            content = reader.take(reader.byte() | reader.byte() << 8)
            archive.writestr(zipfile.ZipInfo(name + ".npy"), content, compression)
    checked(npz.decode(file.getvalue(), LIMIT))


def _safetensors(data: bytes) -> None:
    """The first byte says whether the length of the header is right."""
    reader = Bytes(data)
    if reader.byte() < 64:
        checked(wire_safetensors.decode(reader.rest()))
        return
    header = reader.take(reader.byte() | reader.byte() << 8)
    checked(wire_safetensors.decode(len(header).to_bytes(8, "little") + header + reader.rest()))


def _inference(data: bytes) -> None:
    """The first three bytes say what the header of the JSON part's length says."""
    reader = Bytes(data)
    mode, length = reader.byte(), reader.byte() | reader.byte() << 8
    body = reader.rest()
    header = None if mode < 64 else str(length) if mode < 192 else body[: mode & 31].decode("latin-1")
    checked(open_inference.attention_input(open_inference.decode(body, header), "t5"))


def _base64(data: bytes) -> None:
    """An array as JSON has it in base64, made of sound and unsound parts."""
    reader = Bytes(data)
    mode, dtype = reader.byte(), reader.byte()
    shape: list[object] = [reader.byte() for _ in range(reader.byte() & 7)]
    if mode & 1:
        shape = [size or None for size in shape]
    content = reader.rest()
    text = content.decode("latin-1") if mode & 2 else base64.b64encode(content).decode()
    array = {
        "base64": text,
        "dtype": DTYPES[dtype % len(DTYPES)] if dtype < 250 else text[:8],
        "shape": shape,
    }
    if mode & 4:
        array[text[:3]] = text
    name = ("embeddings", "mask", "positions", "queries")[mode >> 3 & 3]
    checked(json.decode(stdlib_json.dumps({"embeddings": _X.tolist(), name: array}).encode()))


def _compressed(data: bytes) -> None:
    """A body of `/v2` in gzip or deflate: as it comes, or packed here and then changed at its end."""
    reader = Bytes(data)
    mode = reader.byte()
    coding = open_inference_coding.coding("gzip" if mode & 1 else "deflate")
    assert coding is not None
    if mode & 2:
        body = reader.rest()
    else:
        end, more = reader.byte(), reader.byte()
        content = reader.rest()
        body = gzip.compress(content, 1, mtime=0) if coding == "gzip" else zlib.compress(content, 1)
        body = body[: len(body) - (end & 31)] + bytes(more & 3)
    content = open_inference_coding.inflate(body, coding, LIMIT)
    checked(open_inference.attention_input(open_inference.decode(content, None), "t5"))


def _query(data: bytes) -> None:
    query.parse(data)


@dataclass(frozen=True)
class Format:
    """`words` are what a fuzzer could not guess."""

    read: Callable[[bytes], None]
    seeds: Sequence[bytes]
    words: Sequence[bytes] = ()

    def target(self, data: bytes) -> None:
        """What is fuzzed."""
        refusable(self.read)(data)


_NAMES = ("embeddings", "queries", "keys", "positions", "mask", "tokens", "t5.bias", "learned.table")
_WORDS = [
    *(
        f'"{name}"'.encode()
        for name in (*_NAMES, "query_positions", "key_positions", "parameters", "text", "rope.theta")
    ),
    *(b"null", b"true", b"false", b"1e999", b"-0.0", b"NaN", b"Infinity", b"9" * 30, b'"\\ud800"', b"[[", b"]]"),
]


def _array(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _documents() -> list[bytes]:
    x = _X.tolist()
    return [
        orjson.dumps(document)
        for document in (
            {"embeddings": x},
            {"embeddings": [x, x], "positions": [0, 1, 2, 5], "mask": [1, 1, 0, 1], "tokens": list("abcd")},
            {"queries": x[:2], "keys": x, "query_positions": [1, 2], "key_positions": [0, 1, 2, 3]},
            {"embeddings": x, "parameters": {"t5.bias": [[1.0]] * 32, "rope-longrope.short_factor": [1.0, 2.0]}},
            {"text": "def area(a, b): return a"},
            {"embeddings": {"base64": base64.b64encode(_X.tobytes()).decode(), "dtype": "float32", "shape": [4, 8]}},
        )
    ]


def _inferences() -> list[bytes]:
    """Without the first three bytes those that are JSON throughout."""
    rows = {"name": "embeddings", "shape": [1, 4, 8], "datatype": "FP32", "data": _X.reshape(-1).tolist()}
    mask = {"name": "mask", "shape": [4], "datatype": "BOOL", "data": [True, True, False, True]}
    bias = {"name": "parameter.bias", "shape": [32, 1], "datatype": "FP64", "data": [0.5] * 32}
    text = orjson.dumps(
        {
            "id": "a",
            "parameters": {"heads": 2, "timeout": 1000},
            "inputs": [
                {"name": "embeddings", "shape": [4, 8], "datatype": "FP32", "parameters": {"binary_data_size": 128}},
                mask,
            ],
            "outputs": [{"name": "weights", "parameters": {"binary_data": True}}],
        }
    )
    return [
        b"\x00\x00\x00" + orjson.dumps({"inputs": [rows]}),
        b"\x00\x00\x00" + orjson.dumps({"inputs": [rows, mask, bias]}),
        b"\x80" + len(text).to_bytes(2, "little") + text + _X.tobytes(),
    ]


def _archives() -> list[bytes]:
    found = []
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, embeddings=_X, positions=np.arange(4.0), mask=np.ones(4, bool), tokens=np.array(list("abcd")))
        found.append(b"\x00" + file.getvalue())
    content = _array(_X)
    name = b"\x0aembeddings\x00"
    found.append(b"\x42" + name + len(content).to_bytes(2, "little") + content)
    return [*found, b"\x43" + found[-1][1:]]


def _headed() -> list[bytes]:
    body = safetensors.numpy.save({"embeddings": _X, "mask": np.ones(4, bool), "t5.bias": np.ones((32, 1), np.float16)})
    length = int.from_bytes(body[:8], "little")
    return [b"\x00" + body, b"\x80" + length.to_bytes(2, "little") + body[8:]]


_INFERENCE_WORDS = [
    *(b'"inputs"', b'"outputs"', b'"shape"', b'"datatype"', b'"data"', b'"parameters"', b'"binary_data_size"'),
    *(b'"FP32"', b'"BOOL"', b'"BF16"', b'"INT64"', b'"BYTES"', b'"parameter.bias"', b'"shared_memory_region"'),
]

FORMATS: Mapping[str, Format] = {
    "json": Format(_json, _documents(), [*_WORDS, b'"base64"', b'"dtype"', b'"shape"', b'"float32"']),
    "npy": Format(
        _npy,
        [
            *(_array(_X.astype(kind)) for kind in ("<f4", "<f8", "<f2", ">f4", "<i8", "?")),
            _array(np.asfortranarray(_X)),
            _array(np.ones((2, 4, 8), np.float32)),
        ],
        [b"'descr'", b"'fortran_order'", b"'shape'", b"True", b"False", b"'<f4'", b"'|O'", b"(4, 8)", b"\x93NUMPY\x02"],
    ),
    "npz": Format(_npz, _archives(), [name.encode() for name in _NAMES]),
    "safetensors": Format(
        _safetensors,
        _headed(),
        [*_WORDS, b'"dtype"', b'"shape"', b'"data_offsets"', b'"F32"', b'"BF16"', b'"__metadata__"'],
    ),
    "inference": Format(_inference, _inferences(), [*_WORDS, *_INFERENCE_WORDS]),
    "base64": Format(
        _base64,
        [
            bytes([0, DTYPES.index("float32"), 2, 4, 8]) + _X.tobytes(),
            bytes([0, DTYPES.index("float16"), 3, 2, 4, 8]) + np.stack([_X, _X]).astype(np.float16).tobytes(),
            bytes([8, DTYPES.index("bool"), 1, 4, 1, 1, 0, 1]),
            bytes([16, DTYPES.index("int64"), 1, 4]) + np.arange(4).tobytes(),
            bytes([2, 0, 2, 4, 8]) + base64.b64encode(_X.tobytes()),
        ],
    ),
    "compressed": Format(
        _compressed,
        [bytes([mode, 0, 0]) + one[3:] for one in _inferences()[:2] for mode in (0, 1)],
        _INFERENCE_WORDS,
    ),
    "query": Format(
        _query,
        [
            b"encoding=none&compare=rope,alibi&heads=8&return=weights",
            b"model=tiny&causal=true&rows=-1,0:4&head=0&top_k=3&dtype=float16",
            b"rope.theta=1e4&rope@long.theta=5e5&metrics=all&arrays=base64&zoom=2",
        ],
        [*(f"{name}=".encode() for name in query.NAMES), b"%00", b"%ff", b"&", b"=", b":", b",", b"nan"],
    ),
}
