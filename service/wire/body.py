"""One way in and one way out, whatever the format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from service.errors import InvalidInput
from service.records import AttentionInput, ScoringResult
from service.wire import answer, base64, json, media, npy, npz, safetensors

DType = Literal["float32", "float16"]
Form = Literal["lists", "base64"]
"""How an array stands in a JSON answer."""


def decode(kind: str, body: bytes | bytearray, limit: int) -> AttentionInput:
    """The input in a body of the media type `kind` (one of `media.READ`), at most `limit` bytes once unpacked.

    Raises MalformedBody, InvalidInput, PayloadTooLarge.
    """
    match kind:
        case media.JSON:
            return json.decode(body)
        case media.NPY:
            return npy.decode(body)
        case media.NPZ:
            return npz.decode(body, limit)
        case _:
            return safetensors.decode(body)


def check_form(kind: str, dtype: DType, form: Form) -> None:
    """Raises InvalidInput for what the format of the answer has no way to write."""
    if form == "base64" and kind != media.JSON:
        raise InvalidInput(
            f"arrays=base64 is for JSON, but Accept asks for {kind}; leave arrays out", pointer="query:arrays"
        )
    if dtype == "float16" and kind not in media.BINARY and form != "base64":
        raise InvalidInput(
            f"dtype=float16 is for the binary formats; ask for one with Accept: {' or '.join(media.BINARY)}, "
            "or for arrays=base64 in JSON",
            pointer="query:dtype",
            allowed=list(media.BINARY),
        )


def encode(kind: str, result: ScoringResult, dtype: DType = "float32", form: Form = "lists") -> Iterable[Any]:
    """The answer as bytes and memoryviews, in JSON or one of `media.BINARY`."""
    if dtype == "float16":
        result = answer.halved(result)
    if kind == media.JSON:
        return json.encode(result, base64.encode if form == "base64" else json.encode_array)
    return npz.encode(result, dtype) if kind == media.NPZ else safetensors.encode(result, dtype)
