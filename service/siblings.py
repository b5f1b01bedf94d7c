"""The processes behind one port: a new connection is served by the one that has the fewest."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import termios
from array import array
from collections.abc import Callable, Sequence

from service.telemetry import Telemetry

AT_ONCE = 16
"""Connections that are taken over in one turn of the event loop."""
MARK = b"c"
"""What a connection travels with: at least a byte, and the system counts bytes."""


def least(process: int, loads: Sequence[float], waiting: Callable[[int], int]) -> int:
    """Which process serves a connection that this one has accepted: itself, unless another has fewer.

    `loads` are the open connections of each, infinitely many of one that takes none; `waiting` says how many are on
    their way to one, which count as well. It is asked of as few as can be.
    """
    best, fewest = process, loads[process] + waiting(process)
    after = (range(process + 1, len(loads)), range(process))  # so that not all of them choose the same one
    for other in sorted((other for part in after for other in part), key=loads.__getitem__):
        if loads[other] >= fewest:
            break
        if (load := loads[other] + waiting(other)) < fewest:
            best, fewest = other, load
    return best


class Siblings:
    """Hands connections on, and takes over those of the others. Linux only. Made before the processes are forked.

    A process has a queue, a pair of sockets that all of them inherit. What waits in it is counted by the system alone,
    so no count is wrong where a process is killed amid a handover, and what a dead one has not taken is still there.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(telemetry.board.processes)]
        for pair in pairs:
            for end in pair:
                end.setblocking(False)
        self._into = [pair[0] for pair in pairs]
        self._out = [pair[1] for pair in pairs]
        self._number = array("i", [0])
        self._adopting: set[asyncio.Task[None]] = set()

    @property
    def descriptors(self) -> int:
        """How many files each process has open for this."""
        return len(self._into) + len(self._out)

    def hand_on(self, transport: asyncio.Transport) -> bool:
        """Whether another process serves this connection, of which nothing has been read: it is then for this one to
        let go of it; until it has, the other one's close does not reach the client. Where the other's queue is full,
        the connection stays.
        """
        process = self._telemetry.board.process
        other = least(process, self._telemetry.loads(), self._waiting)
        return other != process and self._send(other, transport.get_extra_info("socket").fileno())

    def begin(self, factory: Callable[[], asyncio.Protocol]) -> None:
        """Takes over what others hand on, each with a protocol of its own, on the running event loop. It counts as open
        from then on: such a protocol does not count it again.
        """
        asyncio.get_running_loop().add_reader(self._out[self._telemetry.board.process], self._take_over, factory)

    def leave(self) -> None:
        """Others hand nothing on to this process any more."""
        self._telemetry.leave()

    def end(self, factory: Callable[[], asyncio.Protocol]) -> None:
        """Takes over what waits, and nothing after it."""
        process = self._telemetry.board.process
        asyncio.get_running_loop().remove_reader(self._out[process])
        while self._waiting(process):
            self._take_over(factory)

    def forget(self, process: int) -> None:
        """That process is dead, and `telemetry` has forgotten it: what it has not taken is another's. Where there is no
        other, it waits for the one that takes its place.
        """
        while self._waiting(process) and (other := least(process, self._telemetry.loads(), self._waiting)) != process:
            found = _receive(self._out[process])
            if found is not None:
                with found:
                    self._send(other, found.fileno())

    def _take_over(self, factory: Callable[[], asyncio.Protocol]) -> None:
        loop, queue = asyncio.get_running_loop(), self._out[self._telemetry.board.process]
        for _ in range(AT_ONCE):
            self._telemetry.connected()  # before it has left the queue: else nobody would count it for a moment
            try:
                connection = _receive(queue)
            except BlockingIOError:
                connection = None
            if connection is None:
                self._telemetry.disconnected()
                return
            task = loop.create_task(self._adopt(connection, factory))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)

    async def _adopt(self, connection: socket.socket, factory: Callable[[], asyncio.Protocol]) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(factory, connection)
        except OSError:  # its client has left
            connection.close()
            self._telemetry.disconnected()

    def close(self) -> None:
        for end in (*self._into, *self._out):
            end.close()

    def _waiting(self, process: int) -> int:
        fcntl.ioctl(self._out[process], termios.FIONREAD, self._number)
        return self._number[0]

    def _send(self, process: int, connection: int) -> bool:
        try:
            socket.send_fds(self._into[process], [MARK], [connection])
        except OSError:  # it is full, or too many files of this user are on their way
            return False
        return True


def _receive(queue: socket.socket) -> socket.socket | None:
    """None where this process may have no more files: the connection is lost then. Raises BlockingIOError where the
    queue is empty.
    """
    _, found, _, _ = socket.recv_fds(queue, len(MARK), 1, socket.MSG_CMSG_CLOEXEC)
    return socket.socket(fileno=found[0]) if found else None
