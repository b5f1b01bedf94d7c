"""`POST /attention`: plain ASGI, for it is the one endpoint whose speed counts; `openapi` documents it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from starlette.types import Receive, Scope, Send

from service.cache import Cache
from service.deadline import Deadline
from service.errors import InvalidInput, NotAcceptable, Overloaded, ServiceError, UnknownName
from service.exchange import Exchange, header
from service.instance import ALL, Instance
from service.lifecycle import Lifecycle
from service.plan import Plan, RunsAtOnce
from service.records import (
    DEFAULT_RETURN,
    MATRICES,
    AttentionInput,
    AttentionOptions,
    ScoringResult,
    Timings,
)
from service.routes import download, meant, query, upload
from service.routes.leaving import Leaving
from service.scoring import Scoring
from service.settings import Settings
from service.telemetry import UNKNOWN
from service.views import figures
from service.wire import answer, body, media

PATH = "/attention"
LOADS = 256
"""Lengths of bodies that are remembered for each question."""
THREADED = 1 << 18
"""Bytes from which a body is read on a thread."""


CERTAIN = 1 << 20
"""Cells of a request that needs a worker on any machine: smaller ones may have their turn on the event loop."""


class Load(NamedTuple):
    """What a request asks of the queue it waits in; `large` says that this is the one of large requests."""

    jobs: int
    cells: int
    large: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """What query string and headers say of a request: the same for most requests of a client."""

    query: query.Query
    label: str
    accepted: str
    kind: str
    loads: dict[int, Load] = field(default_factory=dict, compare=False)
    """By the length of a body: that of a request that was like it."""


class Attention:
    """Who attends to whom, under one encoding or several."""

    def __init__(self, scoring: Scoring, engine: RunsAtOnce, lifecycle: Lifecycle, settings: Settings) -> None:
        self.scoring = scoring
        self.engine = engine
        self.lifecycle = lifecycle
        self.settings = settings
        self._asked: Cache[tuple[bytes, str | None, str | None], Asked] = Cache(1024)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange.of(scope)
        deadline = Deadline.after(self.settings.deadline_seconds)
        exchange.encoding = UNKNOWN
        self.lifecycle.check_open()
        said = scope["query_string"], header(scope, b"accept"), header(scope, b"content-type")
        known = self._asked.get(said) or self._read(exchange, *said)
        exchange.encoding, asked, accepted = known.label, known.query, known.accepted
        length = upload.declared(scope)
        load = None if length is None else known.loads.get(length)
        if load is not None and load.cells >= CERTAIN and (refusal := self.refusal(load)) is not None:
            raise refusal
        content = await upload.read(scope, receive, self.settings.max_body_bytes, self.settings.body_seconds)
        exchange.took(known.kind, len(content))
        input = await self._decode(known.kind, content)
        options = asked.options
        if input.text is not None:
            input, options = await self.scoring.read_text(input, options)
            exchange.encoding = self._encoding(options)
        exchange.asks(input)
        lists = accepted == media.JSON and asked.arrays == "lists"
        if lists:
            least = self._least_cells(input, options)
            if least <= self.settings.request_cells:  # else no format helps, and scoring says so
                self._check_cells(least)

        timings = Timings(decode=time.perf_counter() - exchange.began)
        with Leaving(receive):
            result = await self.scoring.score(input, options, timings, deadline)
        computed = time.perf_counter()
        self._remember(known, len(content), result)
        if lists:
            self._check_cells(answer.cells(result))
        if accepted == media.PNG:
            pieces = [await asyncio.to_thread(lambda: figures.png(figures.of_attention(input, result), asked.zoom))]
        else:
            pieces = await download.encode(accepted, result, asked.dtype, asked.arrays)
        timings.serialize = time.perf_counter() - computed
        exchange.answers(result, timings)
        del content, input
        exchange.let_go()  # whoever takes an answer slowly holds nothing but that
        await download.send(send, accepted, pieces)
        timings.serialize = time.perf_counter() - computed

    def _remember(self, asked: Asked, length: int, result: ScoringResult) -> None:
        """What such a request asks of the queue, so that one which comes while that is full need not be read."""
        plan = result.plan
        if not isinstance(plan, Plan):
            return
        if len(asked.loads) >= LOADS:
            asked.loads.clear()
        cells = plan.layout.cells * sum(part.matrices for part in plan.parts)
        asked.loads[length] = Load(len(plan.parts), cells, self.scoring.large.takes(plan))

    def refusal(self, load: Load) -> Overloaded | None:
        """What a request that waits is told now; None where there is room for it."""
        if load.large:
            return self.scoring.large.refusal(load.cells)
        return self.engine.refusal(load.jobs, load.cells)

    def _read(self, exchange: Exchange, raw: bytes, accept: str | None, content_type: str | None) -> Asked:
        try:
            asked = query.parse(raw)
        except UnknownName as error:
            raise meant.dotted(self.scoring.catalogue, raw, error) from None
        exchange.encoding = self._encoding(asked.options)
        accepted = media.negotiate(accept)
        body.check_form(accepted, asked.dtype, asked.arrays)
        if accepted == media.PNG:
            if asked.options.metrics:
                raise InvalidInput(
                    f"metrics={','.join(asked.options.metrics)[:200]} are for numbers, but Accept asks for "
                    f"{media.PNG}, which shows none of them; leave metrics out, or ask for another format",
                    pointer="query:metrics",
                )
            asked = replace(asked, options=_pictured(asked.options))
        else:
            query.check_zoom(asked.zoom, accepted)
        known = Asked(asked, exchange.encoding, accepted, media.media_type(content_type))
        if len(raw) + len(accept or "") + len(content_type or "") <= query.CACHED_LENGTH:
            self._asked.put((raw, accept, content_type), known, 1)
        return known

    def forget(self) -> None:
        """What requests were found to say: the catalogue has changed."""
        self._asked.clear()

    def known(self, said: tuple[bytes, str | None, str | None]) -> Asked | None:
        """What these, a query string, an `Accept` and a `Content-Type`, were found to say before."""
        return self._asked.get(said)

    async def _decode(self, kind: str, content: bytes | bytearray) -> AttentionInput:
        limit = self.settings.max_body_bytes
        if len(content) < THREADED:
            return body.decode(kind, content, limit)
        return await asyncio.to_thread(body.decode, kind, content, limit)

    def _encoding(self, options: AttentionOptions) -> str:
        """The id of the reference, for the metrics: as many series as there are encodings, whatever the labels."""
        instance = self._instance(options, options.encoding)
        return UNKNOWN if instance is None else instance.encoding.id

    def _instance(self, options: AttentionOptions, name: str | None) -> Instance | None:
        try:
            return Instance.of(self.scoring.catalogue.model(options.model), name)
        except ServiceError:
            return None

    def _check_cells(self, cells: int) -> None:
        limit = self.settings.json_cells
        if cells > limit:
            raise NotAcceptable(
                f"the answer has {cells:,} numbers or more, too large for JSON (ATTENTION_JSON_CELLS is {limit:,}): "
                f"ask for it with Accept: {' or '.join(media.BINARY)}, with arrays=base64, or for less with "
                "return=weights, rows, head or top_k",
                pointer="header:Accept",
                limit=limit,
                allowed=list(media.BINARY),
            )

    def _least_cells(self, input: AttentionInput, options: AttentionOptions) -> int:
        """A lower bound of the answer's numbers, known before anything is computed."""
        queries = input.embeddings if input.embeddings is not None else input.queries
        keys = input.embeddings if input.embeddings is not None else input.keys
        if queries is None or keys is None:
            return 0
        batch = len(queries) if queries.ndim == 3 else 1
        rows, columns = queries.shape[-2], keys.shape[-2]
        if options.rows is not None:
            chosen = options.rows.indices(rows)
            rows = rows if chosen is None else len(chosen)
        heads = (options.heads or 1) if options.head is None else 1
        returns = DEFAULT_RETURN if options.returns is None else options.returns
        matrices = sum(name in MATRICES and name != "output" for name in returns)
        if options.top_k is not None:  # there are always indices and weights
            columns = min(options.top_k, columns)
            matrices += 1 + ("weights" not in returns)
        named = (name for name in (options.encoding, *options.compare) if name is None or name.lower() != ALL)
        instances = [self._instance(options, name) for name in named]
        encodings = len({None if instance is None else instance.name for instance in instances})
        cells: int = batch * heads * rows * columns * matrices * encodings
        return cells


def _pictured(options: AttentionOptions) -> AttentionOptions:
    """Without what no picture shows."""
    returns = DEFAULT_RETURN if options.returns is None else options.returns
    shown = tuple(name for name in returns if name in MATRICES)
    return replace(options, returns=shown) if shown else options
