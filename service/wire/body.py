"""One way in and one way out, whatever the format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from service.errors import InvalidInput
from service.records import AttentionInput, ScoringResult
from service.wire import answer, json, media, npy, npz, safetensors

DType = Literal["float32", "float16"]


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


def check_dtype(kind: str, dtype: DType) -> None:
    """Raises InvalidInput for a type that the format of the answer has no way to write."""
    if dtype == "float16" and kind not in media.BINARY:
        raise InvalidInput(
            f"dtype=float16 is for the binary formats; ask for one with Accept: {' or '.join(media.BINARY)}",
            pointer="query:dtype",
            allowed=list(media.BINARY),
        )


def encode(kind: str, result: ScoringResult, dtype: DType = "float32") -> Iterable[Any]:
    """The answer as bytes and memoryviews, in JSON or one of `media.BINARY`."""
    if kind == media.JSON:
        return json.encode(result)
    if dtype == "float16":
        result = answer.halved(result)
    return npz.encode(result, dtype) if kind == media.NPZ else safetensors.encode(result, dtype)
