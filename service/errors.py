"""Every failure a client can meet: one class each, carrying its HTTP status, its title and its reason in the metrics.

This is the only place with status codes. `reason` is a metric label, so the set of reasons is finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import ClassVar

LONGEST = 120
"""Characters of a pointer: names that a client made up are cut, here as in `detail`."""

Extra = str | int | float | bool | None | list[str] | list[int] | list[float]


class ServiceError(Exception):
    """Something the service refuses or fails to do. `detail` says what came, what is allowed and how to get there.

    `pointer` is a JSON pointer (or `query:<name>`, `header:<name>`) to the offending part; `extra` holds further
    members of the problem document (RFC 9457), such as `limit` or `allowed`.
    """

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    reason: ClassVar[str] = "internal"

    def __init__(self, detail: str, *, pointer: str | None = None, **extra: Extra) -> None:
        super().__init__(detail)
        self.detail = detail
        self.pointer = pointer if pointer is None or len(pointer) <= LONGEST else pointer[:LONGEST] + "..."
        self.extra: Mapping[str, Extra] = extra


class MalformedBody(ServiceError):
    """The bytes cannot be read as what they claim to be: truncated, not JSON, a pickled npy, a lying content type."""

    status, title, reason = 400, "The body cannot be read", "malformed"


class MalformedRequest(MalformedBody):
    """Bytes that are no HTTP request: a method that does not exist, a header that is none."""

    title = "The request cannot be read"


class Unauthorized(ServiceError):
    """No API key came, or one that is not known. `unknown` says which."""

    status, title, reason = 401, "An API key is needed", "unauthorized"

    def __init__(self, *, unknown: bool) -> None:
        came = "the API key that came is not one of those that are good now" if unknown else "no API key came"
        super().__init__(f"{came}; send one as `Authorization: Bearer KEY` or as `X-API-Key: KEY`")
        self.challenge = 'Bearer realm="attention"' + (', error="invalid_token"' if unknown else "")


class Forbidden(ServiceError):
    """What only clients on the same machine may do, asked from elsewhere."""

    status, title, reason = 403, "Not allowed from there", "forbidden"


class CrossOrigin(ServiceError):
    """What a page of another origin may not ask, by its preflight request."""

    status, title, reason = 403, "Not allowed for that page", "cross_origin"


class NotFound(ServiceError):
    """A path or a named resource that does not exist."""

    status, title, reason = 404, "Not found", "not_found"


class MethodNotAllowed(ServiceError):
    """The path exists, under another verb."""

    status, title, reason = 405, "Method not allowed", "method"

    def __init__(self, method: str, allowed: Iterable[str]) -> None:
        self.allowed = sorted(allowed)
        super().__init__(f"{method[:20]} is not allowed here; allowed: {', '.join(self.allowed)}", allowed=self.allowed)


class NotAcceptable(ServiceError):
    """None of the formats in `Accept` can be produced, or the answer is too large for the format asked for."""

    status, title, reason = 406, "No acceptable format", "not_acceptable"


class BodyTimeout(ServiceError):
    """The body did not arrive in time."""

    status, title, reason = 408, "The body did not arrive in time", "slow_body"


class HeadTimeout(BodyTimeout):
    """The first lines of a request, its head, did not arrive in time."""

    title = "The request did not arrive in time"


class PayloadTooLarge(ServiceError):
    """The body, or the work it asks for, is over a limit."""

    status, title, reason = 413, "Too large", "too_large"


class HeadTooLarge(ServiceError):
    """The first lines of a request, its head, have too many bytes or too many headers."""

    status, title, reason = 431, "The request's headers are too large", "head_too_large"


class UnsupportedMediaType(ServiceError):
    """A `Content-Type` that is not read here."""

    status, title, reason = 415, "Unsupported media type", "media_type"


class InvalidInput(ServiceError):
    """The body was read, but its content is not allowed: shapes, values, positions, masks."""

    status, title, reason = 422, "Invalid input", "invalid"


class UnknownName(InvalidInput):
    """A name that is not one of those on offer; the nearest ones are suggested, or those that are given."""

    title, reason = "Unknown name", "unknown_name"

    def __init__(
        self,
        kind: str,
        name: str,
        known: Iterable[str],
        *,
        pointer: str | None = None,
        nearest: Iterable[str] = (),
    ) -> None:
        self.kind, self.name, self.allowed = kind, name, list(known)
        allowed = self.allowed
        nearest = list(nearest) or get_close_matches(name.lower(), allowed, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
        shown = name if len(name) <= 80 else name[:80] + "..."
        listed = f"{' Known' if nearest else '; known'}: {', '.join(allowed)}"
        super().__init__(
            f"unknown {kind} {shown!r}{hint}{listed}",
            pointer=pointer,
            nearest=nearest,
            allowed=allowed,
        )


class ParameterOutOfRange(InvalidInput):
    """A parameter of an encoding outside its stated range."""

    title, reason = "Parameter out of range", "parameter"


class Overloaded(ServiceError):
    """The queue is full. Carries `retry_after` in seconds."""

    status, title, reason = 429, "The queue is full", "queue_full"

    def __init__(self, detail: str, *, retry_after: float = 1.0, **extra: Extra) -> None:
        super().__init__(detail)
        self.extra = {"retry_after": retry_after, **extra}
        self.retry_after = retry_after


class BodiesPending(Overloaded):
    """Bodies that have not come in full, or whose requests wait to be answered, take as much memory as they may."""

    title, reason = "Too many bodies at once", "bodies_pending"


class ClientClosedRequest(ServiceError):
    """The client left before its answer was ready; nobody reads this."""

    status, title, reason = 499, "Client closed request", "cancelled"


class ModelFailed(ServiceError):
    """onnxruntime raised while computing this request alone."""

    status, title, reason = 500, "The model failed", "model_failed"


class ModelGone(ModelFailed):
    """The files of a model were taken away, and the service has not looked at their folder since."""

    status, title, reason = 503, "Not ready", "not_ready"


class Unsupported(ServiceError):
    """A part of a protocol that is not offered here."""

    status, title, reason = 501, "Not offered", "unsupported"


class Draining(ServiceError):
    """The process is shutting down and takes no new work."""

    status, title, reason = 503, "Shutting down", "draining"


class NotReady(ServiceError):
    """No models, a failed warm-up, or an engine whose worker has died."""

    status, title, reason = 503, "Not ready", "not_ready"


class Crowded(ServiceError):
    """The process has as many connections as it takes."""

    status, title, reason = 503, "Too many connections", "connections"


class DeadlineExceeded(ServiceError):
    """The request waited longer than its deadline."""

    status, title, reason = 504, "Deadline exceeded", "deadline"


def failures() -> tuple[type[ServiceError], ...]:
    """Every class of failure, so that whoever counts them can begin at 0."""
    found, left = [], [ServiceError]
    while left:
        found.append(left.pop())
        left.extend(found[-1].__subclasses__())
    return tuple(found)
