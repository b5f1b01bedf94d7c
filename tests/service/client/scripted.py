"""A small real HTTP server whose answers are written down beforehand."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """An answer, or with `status` 0 a connection that is closed without one."""

    status: int = 200
    content: bytes = b'{"status": "ready"}'
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})


def problem(status: int, **more: Any) -> Reply:
    """As the service tells of failures; `retry_after` becomes a header."""
    headers = {"Content-Type": "application/problem+json"}
    headers |= {"Retry-After": str(more.pop("retry_after"))} if "retry_after" in more else {}
    document = {"title": "A title", "status": status, "detail": "What went wrong", "request_id": "abc-1", **more}
    return Reply(status, json.dumps(document).encode(), headers)


@dataclass
class Server:
    url: str
    paths: list[str] = field(default_factory=list)
    """Of the requests that arrived."""


@contextmanager
def answering(*replies: Reply) -> Iterator[Server]:
    """Gives the replies one after the other, and the last one ever after."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer()

        def _answer(self) -> None:
            server.paths.append(self.path)
            reply = replies[min(len(server.paths), len(replies)) - 1]
            if not reply.status:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in {**reply.headers, "Content-Length": str(len(reply.content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.content)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{http.server_port}")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
