"""`GET /encodings`, `/encodings/{id}`, `/models`: what can be asked for."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request

from service.catalogue import Catalogue
from service.errors import NotFound, UnknownName
from service.routes import catalogue_schemas as told
from service.routes.answers import Json
from service.routes.query import check_names
from service.routes.schemas import answer

Model = Annotated[str | None, Query(description="Only this model.", examples=["identity"])]
Name = Annotated[str, Path(description="An id or an alias.", examples=["rope"])]


def router(catalogue: Catalogue, responses: dict[int | str, Any]) -> APIRouter:
    routes = APIRouter(tags=["catalogue"], default_response_class=Json, responses=responses)

    @routes.get("/encodings", summary="The encodings that are served", responses=answer(told.ENCODINGS))
    async def encodings(request: Request, model: Model = None) -> Json:
        """A line for each: its id, its aliases, its parameters and terms, the models that have it."""
        check_names(request.scope["query_string"], ("model",))
        return Json({"encodings": catalogue.describe_encodings(model)})

    @routes.get("/encodings/{id}", summary="One encoding", responses=answer(told.ENCODING))
    async def encoding(request: Request, id: Name, model: Model = None) -> Json:
        """Its formula, its paper, its conventions, its parameters with their ranges, its terms."""
        check_names(request.scope["query_string"], ("model",))
        try:
            return Json(catalogue.describe_encoding(id, model))
        except UnknownName as error:
            if error.pointer is not None:
                raise
            raise NotFound(error.detail, nearest=error.extra["nearest"], allowed=error.extra["allowed"]) from None

    @routes.get("/models", summary="The models that are served", responses=answer(told.MODELS))
    async def models(request: Request) -> Json:
        """Each with its encodings, the one it is served under by default, and its sizes where they are fixed."""
        check_names(request.scope["query_string"], ())
        return Json({"models": catalogue.describe_models()})

    return routes
