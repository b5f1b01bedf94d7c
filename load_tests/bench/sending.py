"""A server that does nothing but send: `python -m load_tests.bench.sending BYTES PORT PROCESSES`.

It answers each POST with so many bytes, from as many processes as the service has, each with a socket of its own on
the port. What it reaches is the most that any server of these answers can.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import cast

import uvloop

from service.server import NEAR


class Sending(asyncio.Protocol):
    """One connection; its requests come one after the other."""

    def __init__(self, answer: list[bytes]) -> None:
        self.answer = answer
        self.left = 0
        """Bytes of the request that have not come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self.left:
            head, _, _ = data.partition(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self.left = len(head) + 4 + int(length)
        self.left -= len(data)
        if not self.left:
            self.transport.writelines(self.answer)


async def serve(size: int, port: int) -> None:
    """Until the process is ended."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: {size}\r\n\r\n".encode()
    # Not zeros: all pages of those would be one, which stays in the cache.
    answer = [head, os.urandom(size)]
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NEAR)
    listener.bind(("127.0.0.1", port))
    server = await asyncio.get_running_loop().create_server(lambda: Sending(answer), sock=listener)
    await server.serve_forever()


def main(size: int, port: int, processes: int) -> None:
    for _ in range(processes - 1):
        if os.fork() == 0:
            break
    uvloop.run(serve(size, port))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
