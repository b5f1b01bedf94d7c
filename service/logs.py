"""What the service writes to its log: for people, or one JSON object a line."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import orjson
from rich.console import Console
from rich.logging import RichHandler

from service.exchange import Exchange, current

REQUESTS = "service.requests"
"""The logger of one line for each request."""
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC, ISO 8601), level, logger, message, the id of the request that it is about, and
    whatever else the record was given (`extra`).
    """

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request = current.get()
        if request is not None:
            document["request_id"] = request
        document.update({name: value for name, value in vars(record).items() if name not in _USUAL})
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(document, default=str).decode()


def install(level: str, form: str, console: Console) -> None:
    """Makes this the process's log. `form` is `text` or `json`."""
    handler: logging.Handler
    if form == "json":
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(JsonFormatter())
    else:
        handler = RichHandler(console=console, show_path=False)
        handler.setFormatter(logging.Formatter("%(message)s", "[%X]"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("uvicorn.error", "asyncio", "opentelemetry"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.getLogger("uvicorn.error").addFilter(_is_news)


class RequestLog:
    """Told of every request that is over, it writes one line."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger(REQUESTS)

    def __call__(self, exchange: Exchange, seconds: float) -> None:
        told = {
            "request_id": exchange.request_id,
            "method": exchange.method,
            "endpoint": exchange.endpoint,
            "status": exchange.status,
            "milliseconds": round(1e3 * seconds, 3),
            "encoding": exchange.encoding,
            "encodings": list(exchange.encodings),
            "tokens": exchange.tokens,
            "bytes_in": exchange.received,
            "bytes_out": exchange.sent,
            "reason": exchange.reason,
        }
        if exchange.timings is not None:
            stages = zip(exchange.timings.STAGES, exchange.timings.stages, strict=True)
            told.update({f"{stage}_ms": round(1e3 * spent, 3) for stage, spent in stages})
        told = {name: value for name, value in told.items() if value not in ("", None, [], 0)}
        text = f"{exchange.method} {exchange.endpoint} {exchange.encoding}".strip()
        line = f"{text} {exchange.status} in {1e3 * seconds:.2f} ms ({exchange.request_id})"
        self._logger.info(line, extra=told)


def _is_news(record: logging.LogRecord) -> bool:
    """A start that was given up has been explained already; uvicorn adds its traceback. What is no request is counted:
    a line for each would let anybody fill the log.
    """
    if record.getMessage() == "Invalid HTTP request received.":
        return False
    return not record.getMessage().rstrip().rpartition("\n")[2].startswith("service.errors.NotReady")
