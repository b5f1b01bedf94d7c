"""`POST /v2/models/{model}/infer`: the scoring of `POST /attention` in the words of the Open Inference Protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, TypeVar

import numpy as np
from starlette.types import Receive, Scope, Send

from service.deadline import Deadline
from service.errors import PayloadTooLarge
from service.exchange import Exchange, header
from service.lifecycle import Lifecycle
from service.places import Places
from service.records import AttentionInput, ScoringResult, Timings
from service.routes import download, upload
from service.routes import open_inference_options as options
from service.routes.leaving import Leaving
from service.routes.open_inference_models import VERSION, ServedModel
from service.routes.open_inference_options import InferOptions
from service.routes.open_inference_regions import check_local
from service.routes.open_inference_statistics import Refusals, Statistics
from service.scoring import Scoring
from service.settings import Settings
from service.shared_memory.lending import Lending
from service.shared_memory.regions import Regions
from service.wire import answer, media
from service.wire import open_inference as wire
from service.wire import open_inference_coding as coding
from service.wire.open_inference import InferRequest, InferResponse, RequestedOutput
from service.wire.pointer import pointer

T = TypeVar("T")

HEADER_LENGTH = wire.HEADER_LENGTH.lower().encode()
THREADED = 1 << 18
"""Bytes or numbers from which reading, compressing and rounding are done on a thread."""
INFLATED = 1 << 12
"""The same for a compressed body, which may be a thousand times larger than it looks."""
PACKED = 1 << 16
"""The same for an answer to be compressed, in bytes."""


class Infer:
    """Answers inference requests for any model."""

    def __init__(
        self,
        scoring: Scoring,
        lifecycle: Lifecycle,
        settings: Settings,
        statistics: Statistics,
        shared: Regions | None = None,
    ) -> None:
        """`shared`: None where no memory is shared."""
        self.scoring = scoring
        self.lifecycle = lifecycle
        self.settings = settings
        self.statistics = statistics
        self.shared = shared

    async def __call__(self, scope: Scope, receive: Receive, send: Send, served: ServedModel) -> None:
        with Refusals(self.statistics, served.name):
            await self._infer(scope, receive, send, served)

    async def _infer(self, scope: Scope, receive: Receive, send: Send, served: ServedModel) -> None:
        exchange = Exchange.of(scope)
        arrived = time.monotonic()
        self.lifecycle.check_open()
        lending = None if self.shared is None else Lending(self.shared, partial(check_local, scope))
        request, input, asked = await self._read(scope, receive, served, lending)
        exchange.asks(input)
        self._check_cells(asked, input, served)
        deadline = Deadline.after(self.settings.deadline_seconds, arrived=arrived)
        if asked.timeout is not None and asked.timeout < deadline.seconds:
            deadline = Deadline.after(asked.timeout, arrived=arrived, limit="its own timeout")

        timings = Timings(decode=time.perf_counter() - exchange.began)
        with Leaving(receive):
            wanted = None if lending is None else places(lending, asked.outputs)
            result = await self.scoring.score(input, asked.attention, timings, deadline, wanted)
        if lending is not None:
            lending.finish()
        computed = time.perf_counter()
        response = await _response(request, result, asked, served)
        headers, pieces = await _written(response, header(scope, b"accept-encoding"))
        timings.serialize = time.perf_counter() - computed
        exchange.answers(result, timings)
        await _send(send, headers, pieces)
        timings.serialize = time.perf_counter() - computed

    async def _read(
        self, scope: Scope, receive: Receive, served: ServedModel, lending: Lending | None
    ) -> tuple[InferRequest, AttentionInput, InferOptions]:
        limit = self.settings.max_body_bytes
        packed = coding.coding(header(scope, b"content-encoding"))
        content = await upload.read(scope, receive, limit, self.settings.body_seconds, coded=True)
        came = len(content)
        if packed is not None:
            content = await _threaded(len(content) > INFLATED, coding.inflate, content, packed, limit)
        length = header(scope, HEADER_LENGTH)
        Exchange.of(scope).took(media.JSON if length is None else media.OCTETS, came)

        large = len(content) > THREADED
        if length is not None and length.strip() == "0":
            request = wire.raw(content, served.model.width, served.name)
        else:
            parts = await _threaded(large, wire.take_apart, content, length)
            large = large or (lending is not None and parts.shared_bytes > THREADED)
            request = await _threaded(large, wire.read, parts, lending)
        input = await _threaded(large, wire.attention_input, request, served.encoding.id)
        return request, input, options.read(request, served)

    def _check_cells(self, asked: InferOptions, input: AttentionInput, served: ServedModel) -> None:
        limit = self.settings.json_cells
        cells = asked.json_cells(input, served.model.heads or asked.attention.heads or 1)
        if limit < cells <= self.settings.request_cells:  # above, no format helps, and scoring says so
            raise PayloadTooLarge(
                f"the answer has {cells:,} numbers, too many for JSON (ATTENTION_JSON_CELLS is {limit:,}): ask for "
                "them with the parameter binary_data_output, or for fewer outputs",
                limit=limit,
            )


def places(lending: Lending, outputs: Sequence[RequestedOutput]) -> Places | None:
    """None where all outputs are sent."""
    wanted = {output.name: output.place for output in outputs if output.place is not None}
    if not wanted:
        return None

    def array(output: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> np.ndarray | None:
        place = wanted.get(output)
        if place is None:
            return None
        content = lending.write(place, prod(shape) * kind.itemsize, kind.itemsize, f"/outputs{pointer(output)}")
        return np.frombuffer(content, kind).reshape(shape)

    return array


async def _response(
    request: InferRequest, result: ScoringResult, asked: InferOptions, served: ServedModel
) -> InferResponse:
    if asked.dtype == "float16":
        result = await _threaded(answer.cells(result) > THREADED, answer.halved, result)
    outputs = wire.select(result, asked.outputs, asked.binary)
    return InferResponse(served.name, VERSION, request.id, outputs, result.results[0].nonfinite_cells)


async def _written(response: InferResponse, accept_encoding: str | None) -> tuple[dict[str, str], list[Any]]:
    """The headers and the body in pieces."""
    text = await download.in_turns(wire.encode_json(response))
    headers = {"content-type": media.OCTETS if response.binary else media.JSON}
    if response.binary:
        headers[wire.HEADER_LENGTH.lower()] = str(sum(map(len, text)))
    pieces = [*text, *wire.encode_binary(response)]
    chosen = coding.negotiate(accept_encoding, binary=response.binary)
    if chosen is not None:
        headers["content-encoding"] = chosen
        size = sum(map(len, pieces))
        pieces = [await _threaded(size > PACKED, coding.deflate, pieces, chosen)]
    return headers, download.joined_pieces(pieces)


async def _send(send: Send, headers: dict[str, str], pieces: list[Any]) -> None:
    headers |= {"content-length": str(sum(map(len, pieces))), "vary": "Accept-Encoding", "cache-control": "no-store"}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": raw})
    for piece in pieces[:-1]:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": pieces[-1]})


async def _threaded(large: bool, call: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.to_thread(call, *arguments) if large else call(*arguments)
