"""What the frameworks refuse by themselves, told like every other failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NoReturn

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from service.errors import InvalidInput, MethodNotAllowed, NotFound, ServiceError


def install(app: FastAPI, paths: Iterable[str]) -> None:
    """Turns routing errors into the service's own, which the outermost middleware answers. It suggests `paths`."""
    app.add_exception_handler(HTTPException, _refused(tuple(paths)))
    app.add_exception_handler(RequestValidationError, _invalid)


def _refused(paths: tuple[str, ...]) -> Callable[[Request, Exception], NoReturn]:
    def refuse(request: Request, error: Exception) -> NoReturn:
        assert isinstance(error, HTTPException)
        path = request.scope["path"]
        match error.status_code:
            case NotFound.status:
                nearest = get_close_matches(path, paths, n=2, cutoff=0.6)
                hint = f"; did you mean {' or '.join(nearest)}?" if nearest else f"; there are {', '.join(paths)}"
                raise NotFound(f"there is no {path[:200]!r}{hint}", nearest=nearest)
            case MethodNotAllowed.status:
                allowed = (error.headers or {}).get("Allow", "")
                names = {name.strip() for name in allowed.split(",") if name.strip()}
                raise MethodNotAllowed(request.method, names | ({"HEAD"} if "GET" in names else set()))
            case _:
                raise ServiceError(f"unexpected {error.status_code}: {error.detail}")

    return refuse


def _invalid(request: Request, error: Exception) -> NoReturn:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    source, *rest = first["loc"]
    name = ".".join(map(str, rest))
    raise InvalidInput(f"{name}={str(first['input'])[:80]} {_wanted(first)}", pointer=f"{source}:{name}")


def _wanted(error: Mapping[str, Any]) -> str:
    """What one value is not, in the words of the query strings that are read here."""
    limits = error.get("ctx", {})
    match error["type"]:
        case "int_parsing" | "int_from_float" | "int_type" | "int_parsing_size":
            return "is not a whole number"
        case "greater_than_equal":
            return f"is too small: at least {limits['ge']:,}"
        case "less_than_equal":
            return f"is too large: at most {limits['le']:,}"
        case "multiple_of":
            return f"is not a multiple of {limits['multiple_of']}"
        case _:
            return f"is not taken: {error['msg']}"
