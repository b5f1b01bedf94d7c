"""What the frameworks refuse by themselves, told like every other failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import NoReturn

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
    raise InvalidInput(
        f"{source} {'.'.join(map(str, rest))}: {first['msg']}", pointer=f"{source}:{'.'.join(map(str, rest))}"
    )
