"""Answers onto the wire: in large pieces, without copies, and without holding up the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from starlette.types import Send

from service.records import ScoringResult
from service.wire import answer, body, media
from service.wire.body import DType, Form

THREADED = 1 << 18
"""Numbers from which npz, float16 and base64 are written on a thread: they take milliseconds."""
TURN = 0.002
"""Seconds of writing lists after which others get their turn: orjson holds the interpreter, a thread would not help."""
PIECE = 1 << 16


async def encode(kind: str, result: ScoringResult, dtype: DType, form: Form = "lists") -> list[Any]:
    """The answer in pieces to be sent one after the other."""
    if kind == media.JSON and form == "lists":
        return await in_turns(body.encode(kind, result, dtype))

    def encoded() -> list[Any]:
        return joined_pieces(body.encode(kind, result, dtype, form))

    slow = (kind, dtype) != (media.SAFETENSORS, "float32")  # these go as they are
    return await asyncio.to_thread(encoded) if slow and answer.cells(result) > THREADED else encoded()


async def send(send: Send, kind: str, pieces: list[Any]) -> None:
    size = sum(map(length, pieces))
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(size).encode()),
        (b"vary", b"Accept"),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in pieces[:-1]:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": pieces[-1]})


async def in_turns(parts: Iterable[bytes | memoryview]) -> list[Any]:
    collected, turn = [], time.perf_counter()
    for part in parts:
        collected.append(part)
        if time.perf_counter() - turn > TURN:
            await asyncio.sleep(0)
            turn = time.perf_counter()
    return joined_pieces(collected)


def length(piece: Any) -> int:
    """Bytes."""
    return len(piece) if isinstance(piece, bytes) else memoryview(piece).nbytes


def joined_pieces(parts: Iterable[Any]) -> list[Any]:
    """Small pieces joined to larger ones; large ones as they are."""
    parts = list(parts)
    if sum(map(length, parts)) < PIECE:
        return [b"".join(parts)]
    joined: list[Any] = []
    small: list[Any] = []
    size = 0
    for part in parts:
        own = length(part)
        if own < PIECE:
            small.append(part)
            size += own
        if small and (own >= PIECE or size >= PIECE):
            joined.append(b"".join(small))
            small, size = [], 0
        if own >= PIECE:
            joined.append(part)
    if small:
        joined.append(b"".join(small))
    return joined
