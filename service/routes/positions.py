"""`GET /encodings/{id}/positions`: what position alone contributes, as numbers or as a picture."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from service.catalogue import Catalogue, Model
from service.deadline import Deadline
from service.encoding import Encoding
from service.errors import InvalidInput, NotAcceptable, NotFound, ServiceError, UnknownName
from service.exchange import Exchange, header
from service.lifecycle import Lifecycle
from service.records import Timings
from service.routes import catalogue_schemas, download, query
from service.routes.answers import Pieces
from service.routes.leaving import Leaving
from service.routes.schemas import BINARY
from service.settings import Settings
from service.views import figures
from service.views.positions import Views
from service.views.records import PICTURED, VIEWS, PositionViews, ViewOptions
from service.wire import media, views

PATH = "/encodings/{id}/positions"
NAMES = ("queries", "keys", "width", "heads", "causal", "model", "offset", "view", "zoom")
SIZE = 64
THREADED = 1 << 18
"""Numbers from which binary formats are written on a thread."""

DESCRIPTION = """
The position tables of an encoding, and the scores it gives to content without differences. Queries and keys stand at
`offset`, `offset` + 1, ...

| view | shape | |
|---|---|---|
| `bias` | heads, queries, keys | scores when every query and key is 0: what is added whatever the content |
| `similarity` | heads, queries, keys | scores when every token is the same vector, all ones |
| `weights` | heads, queries, keys | the softmax of `similarity`; only where it is asked for |
| `vectors` | queries, width | what is added to the embeddings, for the encodings that add something to them |
| `frequencies` | pairs | radians per position, with wavelengths and bands, for the encodings that rotate |
| `tables` | | everything that the scores are computed from beside content |

**Answer.** By `Accept`: JSON, npz (arrays `bias`, `tables/theta`, ...), safetensors, or one view as a PNG picture: the
one that `view` names, else the first of `bias` and `similarity` that is not 0 throughout. Scores are those before the
mask and the softmax. Scalar parameters of the encoding are given by name, `theta=500000` or `rope.theta=500000`.
"""


def _query(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_PARAMETERS = [
    _query("queries", "How many; by default as many as keys.", type="integer", minimum=1, default=64),
    _query("keys", "How many; by default as many as queries.", type="integer", minimum=1, default=64),
    _query("width", "Of the embeddings (identity only).", type="integer", minimum=1, default=64),
    _query("heads", "Must divide the width (identity only); by default 4, or what fits.", type="integer", minimum=1),
    _query("causal", "Keys after the query are hidden. By default the encoding's own.", type="boolean"),
    _query("model", "By default `identity`, or else the first that has the encoding.", type="string"),
    _query("offset", "The position of the first query and of the first key.", type="number", default=0),
    {
        **_query("view", "Which to return; a picture shows one.", type="array", items={"enum": list(VIEWS)}),
        "style": "form",
        "explode": False,
    },
    _query("zoom", "Pixels to each point of a picture.", type="integer", enum=list(query.ZOOMS), default=1),
    {
        **_query("parameters", "Scalar parameters of the encoding.", type="object", additionalProperties=True),
        "style": "form",
        "explode": True,
        "examples": {"none": {"summary": "the defaults", "value": {}}},
    },
]
_CONTENT = {
    media.JSON: {"schema": catalogue_schemas.POSITIONS},
    **{kind: {"schema": BINARY} for kind in (*media.BINARY, media.PNG)},
}
Name = Annotated[str, Path(description="An id or an alias.", examples=["rope"])]


@dataclass(frozen=True, slots=True)
class Asked:
    """A query string. `bare` maps pointers to parameters by their full names to the names that came."""

    options: ViewOptions
    zoom: int
    bare: Mapping[str, str]


def parse(id: str, raw: bytes, catalogue: Catalogue) -> Asked:
    """Raises NotFound for an unknown encoding; InvalidInput, UnknownName with the nearest names."""
    given: dict[str, list[str]] = {}
    others: list[tuple[str, str]] = []
    for name, value in query.pairs(raw):
        if name in NAMES:
            given.setdefault(name, []).append(value)
        else:
            others.append((name, value))
    wanted = query.one(given, "model", query.nonempty)
    model, encoding = _find(catalogue, id, wanted)
    scalars: dict[str, str] = {}
    bare: dict[str, str] = {}
    for name, value in others:
        parameter = _parameter(model, encoding, name)
        if parameter in scalars:
            query.twice(name)
        scalars[parameter] = value
        bare[f"query:{parameter}"] = f"query:{name}"
    count = query.one(given, "queries", query.count), query.one(given, "keys", query.count)
    queries = next((number for number in count if number is not None), SIZE)
    options = ViewOptions(
        encoding=encoding.id,
        model=model.name,
        queries=queries,
        keys=queries if count[1] is None else count[1],
        width=query.one(given, "width", query.count),
        heads=query.one(given, "heads", query.count),
        causal=query.one(given, "causal", query.flag),
        offset=query.one(given, "offset", query.number) or 0.0,
        scalars=scalars,
        views=query.several(given, "view"),
    )
    return Asked(options, query.one(given, "zoom", query.zoom) or 1, bare)


def _find(catalogue: Catalogue, id: str, model: str | None) -> tuple[Model, Encoding]:
    try:
        return catalogue.find(id, model)
    except UnknownName as error:
        if error.pointer is not None:  # the model is unknown, and that is in the query string
            raise
        raise NotFound(error.detail, nearest=error.extra["nearest"], allowed=error.extra["allowed"]) from None


def _parameter(model: Model, encoding: Encoding, name: str) -> str:
    """The full name of a scalar parameter of this encoding, which may have come without the encoding's."""
    at = f"query:{name[:80]}"
    prefix, _, own = name.rpartition(".")
    if prefix and (other := model.encoding(prefix, pointer=at)) is not encoding:
        raise InvalidInput(
            f"{name[:80]} is a parameter of {other.id}, but this is about {encoding.id}; leave it out", pointer=at
        )
    parameter = encoding.parameter(own)
    if parameter is None:
        known = [f"{prefix}.{one.name}" if prefix else one.name for one in encoding.parameters if one.kind != "array"]
        raise UnknownName("query parameter", name, known if prefix else [*NAMES, *known], pointer=at)
    if parameter.kind == "array":
        raise InvalidInput(
            f"{encoding.id}.{own} is an array, for which a query string has no room; POST /attention takes it",
            pointer=at,
        )
    return f"{encoding.id}.{own}"


class Positions:
    """Answers one question about positions in the format that is asked for."""

    def __init__(self, shown: Views, lifecycle: Lifecycle, settings: Settings) -> None:
        self.views = shown
        self.lifecycle = lifecycle
        self.settings = settings

    async def answer(self, scope: Scope, receive: Receive, id: str) -> Response:
        exchange = Exchange.of(scope)
        deadline = Deadline.after(self.settings.deadline_seconds)
        self.lifecycle.check_open()
        asked = parse(id, scope["query_string"], self.views.scoring.catalogue)
        accepted = media.negotiate(header(scope, b"accept"))
        picture = accepted == media.PNG
        _check_views(asked.options.views, picture)
        if not picture:
            query.check_zoom(asked.zoom, accepted)
        timings = Timings(decode=time.perf_counter() - exchange.began)
        try:
            with Leaving(receive):
                result = await self.views.show(asked.options, timings, deadline, picture=picture)
        except ServiceError as error:
            error.pointer = asked.bare.get(error.pointer or "", error.pointer)
            raise
        computed = time.perf_counter()
        if picture:
            pieces = [await asyncio.to_thread(lambda: figures.png(figures.of_positions(result), asked.zoom))]
        else:
            pieces = await self._encode(accepted, result)
        timings.serialize = time.perf_counter() - computed
        exchange.timings = timings
        exchange.nonfinite = (result.encoding,) if result.nonfinite_cells else ()
        return Pieces(accepted, pieces)

    async def _encode(self, kind: str, result: PositionViews) -> list[Any]:
        if kind == media.JSON:
            limit = self.settings.json_cells
            if result.cells > limit:
                raise NotAcceptable(
                    f"the answer has {result.cells:,} numbers, too large for JSON (ATTENTION_JSON_CELLS is {limit:,}): "
                    f"ask for it with Accept: {' or '.join((*media.BINARY, media.PNG))}, or for one view",
                    pointer="header:Accept",
                    limit=limit,
                    allowed=[*media.BINARY, media.PNG],
                )
            return await download.in_turns(views.encode(kind, result))
        if result.cells > THREADED:
            return download.joined_pieces(await asyncio.to_thread(list, views.encode(kind, result)))
        return download.joined_pieces(views.encode(kind, result))


def _check_views(names: tuple[str, ...], picture: bool) -> None:
    if picture and len(names) > 1:
        raise InvalidInput(
            f"a picture shows one view, but {', '.join(names)[:200]} were asked for; send one", pointer="query:view"
        )
    if picture and names == ("tables",):
        raise InvalidInput(
            f"tables have no picture; {', '.join(PICTURED)} have", pointer="query:view", allowed=list(PICTURED)
        )


def router(views: Views, lifecycle: Lifecycle, settings: Settings, responses: dict[int | str, Any]) -> APIRouter:
    routes = APIRouter(tags=["catalogue"], responses=responses)
    positions = Positions(views, lifecycle, settings)

    @routes.get(
        PATH,
        summary="What position alone contributes",
        description=DESCRIPTION,
        response_class=Response,
        responses={200: {"description": "The views.", "content": _CONTENT}},
        openapi_extra={"parameters": _PARAMETERS},
    )
    async def show(request: Request, id: Name) -> Response:
        return await positions.answer(request.scope, request.receive, id)

    return routes
