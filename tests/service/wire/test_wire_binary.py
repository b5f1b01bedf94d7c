"""npy, npz and safetensors: what they share, then what is their own."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from service.errors import InvalidInput, MalformedBody, PayloadTooLarge, ServiceError, UnknownName
from service.records import AttentionInput
from service.wire import answer, body, media
from tests.service import samples
from tests.service.samples import Array

LIMIT = 1 << 20
Pack = Callable[[Array], bytes]
BINARY: dict[str, Pack] = {
    media.NPY: samples.npy,
    media.NPZ: lambda array: samples.npz(embeddings=array),
    media.SAFETENSORS: lambda array: samples.tensors(embeddings=array),
}
formats = pytest.mark.parametrize(("kind", "pack"), BINARY.items())
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def decode(kind: str, content: bytes) -> AttentionInput:
    return body.decode(kind, content, LIMIT)


def refusal(kind: str, content: bytes, expected: type[ServiceError]) -> ServiceError:
    with pytest.raises(expected) as caught:
        decode(kind, content)
    assert type(caught.value) is expected
    return caught.value


def embeddings(kind: str, content: bytes) -> Array:
    found = decode(kind, content).embeddings
    assert found is not None
    return found


@formats
@given(array=npst.arrays(np.float32, npst.array_shapes(min_dims=2, max_dims=3, max_side=6), elements=floats))
def test_embeddings_come_back_bit_for_bit(kind: str, pack: Pack, array: Array) -> None:
    np.testing.assert_array_equal(embeddings(kind, pack(array)), array)


@formats
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i1", "i4", "i8", "u1", "u2", "u8"])
def test_every_real_type_becomes_float32(kind: str, pack: Pack, dtype: str) -> None:
    read = embeddings(kind, pack(np.array([[1, 2], [3, 4]], dtype=dtype)))
    assert read.dtype == np.dtype("=f4")
    assert read.flags.c_contiguous
    assert read.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(("kind", "pack"), [(media.NPY, BINARY[media.NPY]), (media.NPZ, BINARY[media.NPZ])])
def test_fortran_order_is_understood(kind: str, pack: Pack) -> None:
    array = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert embeddings(kind, pack(array)).tolist() == [[0, 1, 2], [3, 4, 5]]


@formats
@pytest.mark.parametrize(
    ("array", "pointer", "words"),
    [
        (np.zeros(3), "/embeddings", "1-D"),
        (np.zeros((1, 1, 1, 1)), "/embeddings", "4-D"),
        (np.zeros((0, 3)), "/embeddings", "no tokens"),
        (np.zeros((2, 0)), "/embeddings", "no width"),
        (np.array([[1, np.nan]]), "/embeddings/0/1", "nan"),
        (np.array([[1.0, 2.0], [np.inf, 0.0]]), "/embeddings/1/0", "inf"),
        (np.array([[1, 1e39]]), "/embeddings/0/1", "too large for float32"),
        (np.array([[True]]), "/embeddings", "bool"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(kind: str, pack: Pack, array: Array, pointer: str, words: str) -> None:
    error = refusal(kind, pack(array), InvalidInput)
    assert error.pointer == pointer
    assert words in error.detail


@formats
@given(data=st.data())
def test_a_body_that_is_cut_off_is_malformed(kind: str, pack: Pack, data: st.DataObject) -> None:
    whole = pack(np.ones((3, 4), np.float32))
    refusal(kind, whole[: data.draw(st.integers(0, len(whole) - 1))], MalformedBody)


@formats
@given(st.binary(max_size=300))
def test_any_bytes_are_refused(kind: str, pack: Pack, content: bytes) -> None:
    refusal(kind, content, MalformedBody)


@formats
@given(data=st.data())
def test_a_flipped_byte_never_does_worse_than_a_refusal(kind: str, pack: Pack, data: st.DataObject) -> None:
    content = bytearray(pack(np.ones((3, 4), np.float32)))
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(MalformedBody, InvalidInput, PayloadTooLarge):
        decode(kind, bytes(content))


@formats
def test_a_lying_content_type_is_told_what_the_bytes_look_like(kind: str, pack: Pack) -> None:
    others = {other: pack(np.ones((2, 2))) for other, pack in BINARY.items() if other != kind}
    for other, content in {**others, media.JSON: b' {"embeddings": [[1]]}'}.items():
        assert other in refusal(kind, content, MalformedBody).detail


@pytest.mark.parametrize("kind", [media.NPY, media.NPZ])
def test_a_pickle_is_never_read(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (print, ("the pickle was read",))

    array = np.array([[Trap()]], dtype=object)
    content = samples.npy(array, allow_pickle=True) if kind == media.NPY else samples.npz(embeddings=array)
    assert "pickle is never read" in refusal(kind, content, MalformedBody).detail
    assert not capsys.readouterr().out


@pytest.mark.parametrize("kind", [media.NPY, media.NPZ])
@pytest.mark.parametrize("dtype", ["complex128", "<U1", "M8[s]", "f4,i4"])
def test_other_types_are_refused_by_name(kind: str, dtype: str) -> None:
    array = np.zeros((2, 2), dtype)
    content = samples.npy(array) if kind == media.NPY else samples.npz(embeddings=array)
    assert str(array.dtype) in refusal(kind, content, InvalidInput).detail


@pytest.mark.parametrize("shape", [(10**10,), (2**32, 2**32), (-4, -4), (4, 5), (4,), (2,) * 40, (0, 2**62)])
def test_a_header_that_claims_another_size_is_refused_before_anything_is_made_of_it(shape: tuple[int, ...]) -> None:
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    refusal(media.NPY, file.getvalue() + bytes(64), MalformedBody)


@pytest.mark.parametrize("header", [b"(4, 4) ** 9", b"__import__('os')", b"{" * 5000, b"[" * 9000, b"\xff" * 50, b"{}"])
def test_a_header_is_never_run(header: bytes) -> None:
    refusal(media.NPY, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header, MalformedBody)


@pytest.mark.parametrize("kind", [media.NPZ, media.SAFETENSORS])
def test_arrays_arrive_under_their_names(kind: str) -> None:
    arrays: dict[str, Array] = {
        "queries": np.ones((1, 2), np.float32),
        "keys": np.ones((3, 2), np.float16),
        "key_positions": np.array([0, 1, 5]),
        "mask": np.array([True, True, False]),
        "t5.bias": np.full((32, 1), 0.1),
    }
    read = decode(kind, samples.npz(**arrays) if kind == media.NPZ else samples.tensors(**arrays))
    assert read.keys is not None
    assert read.keys.dtype == np.float32
    assert read.key_positions is not None
    assert read.key_positions.dtype == np.float64
    assert read.mask is not None
    assert read.mask.tolist() == [True, True, False]
    assert read.parameters["t5.bias"].tolist() == [[0.1]] * 32


@pytest.mark.parametrize("kind", [media.NPZ, media.SAFETENSORS])
def test_an_unknown_name_is_refused_with_the_nearest_ones(kind: str) -> None:
    arrays: dict[str, Array] = {"embedings": np.ones((1, 2))}
    error = refusal(kind, samples.npz(**arrays) if kind == media.NPZ else samples.tensors(**arrays), UnknownName)
    assert error.extra["nearest"] == ["embeddings"]


def test_an_npz_may_name_its_tokens() -> None:
    read = decode(media.NPZ, samples.npz(embeddings=np.ones((2, 2)), tokens=np.array(["a", "é"])))
    assert read.tokens == ["a", "é"]
    refusal(media.NPZ, samples.npz(embeddings=np.ones((2, 2)), tokens=np.array([1, 2])), InvalidInput)


def test_safetensors_hold_no_text() -> None:
    refusal(media.SAFETENSORS, samples.tensors(embeddings=np.ones((2, 2)), tokens=np.ones(2)), InvalidInput)


@pytest.mark.parametrize("pack", [samples.npz, samples.tensors], ids=["npz", "safetensors"])
def test_only_json_is_said_to_take_text(pack: Callable[..., bytes]) -> None:
    kind = media.NPZ if pack is samples.npz else media.SAFETENSORS
    error = refusal(kind, pack(text=np.ones(3, np.float32)), InvalidInput)
    assert "JSON" in error.detail
    assert "npz" not in error.detail.partition("JSON")[2].replace("; npz holds arrays", "")
    for sent in ({"mask": np.ones(3)}, {"embeddings": np.ones((2, 2)), "keys": np.ones((2, 2))}):
        assert "text" not in refusal(kind, pack(**sent), InvalidInput).detail


def test_tokens_of_the_type_object_are_to_become_text() -> None:
    sent = io.BytesIO()
    np.savez(sent, embeddings=np.ones((2, 2)), tokens=np.array(["a", "b"], dtype=object))
    error = refusal(media.NPZ, sent.getvalue(), MalformedBody)
    assert "text (<U)" in error.detail
    assert "float32" not in error.detail


def test_npy_of_the_third_version_is_read() -> None:
    sent, array = io.BytesIO(), np.arange(6, dtype=np.float32).reshape(2, 3)
    np.lib.format.write_array(sent, array, version=(3, 0))
    assert sent.getvalue()[6:8] == b"\x03\x00"
    np.testing.assert_array_equal(embeddings(media.NPY, sent.getvalue()), array)


def test_bfloat16_is_understood() -> None:
    header = json.dumps({"embeddings": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [0, 4]}}).encode()
    content = struct.pack("<Q", len(header)) + header + struct.pack("<HH", 0x3F80, 0xC020)
    assert embeddings(media.SAFETENSORS, content).tolist() == [[1.0, -2.5]]


def test_other_safetensors_types_are_refused_by_name() -> None:
    header = json.dumps({"embeddings": {"dtype": "F8_E4M3", "shape": [1, 2], "data_offsets": [0, 2]}}).encode()
    error = refusal(media.SAFETENSORS, struct.pack("<Q", len(header)) + header + b"\0\0", InvalidInput)
    assert "F8_E4M3" in error.detail


def test_an_npz_that_unpacks_to_too_much_is_refused_unread() -> None:
    content = samples.npz(True, embeddings=np.zeros((1024, 1024), np.float32))
    assert len(content) < LIMIT / 100
    assert refusal(media.NPZ, content, PayloadTooLarge).extra["limit"] == LIMIT


def test_an_npz_whose_directory_understates_its_sizes_is_refused() -> None:
    content = bytearray(samples.npz(True, embeddings=np.zeros((512, 512), np.float32)))
    central = content.rindex(b"PK\x01\x02")
    struct.pack_into("<I", content, central + 24, 100)
    refusal(media.NPZ, bytes(content), MalformedBody)


def test_an_npz_of_very_many_arrays_is_refused_unread() -> None:
    arrays: dict[str, Array] = {f"t5.a{i}": np.ones(1) for i in range(200)}
    refusal(media.NPZ, samples.npz(**arrays), PayloadTooLarge)


def test_an_npz_with_one_name_twice_is_refused() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("embeddings.npy", "embeddings"):
            archive.writestr(name, samples.npy(np.ones((1, 1))))
    assert "twice" in refusal(media.NPZ, file.getvalue(), MalformedBody).detail


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_packed_npz_is_read(method: int) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("embeddings.npy", samples.npy(np.ones((2, 2))))
    assert embeddings(media.NPZ, file.getvalue()).tolist() == [[1, 1], [1, 1]]


NAMES = ["rope/weights", "rope/scores", "t5/weights", "t5/scores", "t5/terms/content", "t5/terms/bias"]


def unpacked(kind: str, content: bytes) -> tuple[dict[str, Array], dict[str, Any]]:
    """Arrays and metadata, as other people's libraries read them."""
    if kind == media.NPZ:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = dict(archive)
        return arrays, json.loads(arrays.pop(answer.METADATA).tobytes())
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    assert (8 + size) % 8 == 0, "arrays are aligned"
    return safetensors.numpy.load(content), json.loads(header["__metadata__"][answer.METADATA])


@pytest.mark.parametrize("kind", media.BINARY)
@pytest.mark.parametrize("batch", [None, 3])
def test_an_answer_is_read_by_the_formats_own_libraries(kind: str, batch: int | None) -> None:
    result = samples.result(2, 3, 4, batch=batch, tokens=["a", "b", "c", "d"], skipped={"cope": "causal only"})
    arrays, metadata = unpacked(kind, samples.encoded(kind, result))
    assert sorted(arrays) == sorted(NAMES)
    for name, array in answer.arrays(result):
        np.testing.assert_array_equal(arrays[name], array)
    assert metadata["results"][0] == {
        "encoding": "rope",
        "label": None,
        "name": "rope",
        "parameters": {"theta": 10000.0},
        "conventions": {"scale": "1/sqrt(head_dim)"},
        "nonfinite_cells": 0,
    }
    assert metadata["tokens"] == ["a", "b", "c", "d"]
    assert metadata["skipped"] == {"cope": "causal only"}
    assert metadata["shape"].get("batch") == batch


@pytest.mark.parametrize("kind", media.BINARY)
def test_an_answer_holds_its_numbers_as_views_of_the_results(kind: str) -> None:
    result = samples.result(4, 64, 64)
    pieces = list(body.encode(kind, result))
    weights = result.results[0].weights
    assert weights is not None
    assert any(np.shares_memory(np.asarray(piece), weights) for piece in pieces if isinstance(piece, memoryview))


@pytest.mark.parametrize("kind", media.BINARY)
def test_float16_halves_the_answer_and_counts_what_it_cannot_hold(kind: str) -> None:
    result = samples.result(1, 2, 2)
    scores = result.results[0].scores
    assert scores is not None
    scores[0, 0, 0] = 1e5
    arrays, metadata = unpacked(kind, samples.encoded(kind, result, "float16"))
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float16)}
    assert np.isinf(arrays["rope/scores"][0, 0, 0])
    assert [one["nonfinite_cells"] for one in metadata["results"]] == [1, 0]
    assert metadata["dtype"] == "float16"


def test_an_npz_answer_is_a_sound_zip_with_sizes_in_its_local_headers() -> None:
    content = samples.encoded(media.NPZ, samples.result(2, 3, 4))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        for entry in archive.infolist():
            assert not entry.flag_bits & 0x08, "no data descriptors: readers may go from entry to entry"
