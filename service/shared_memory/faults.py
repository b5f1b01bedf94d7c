"""Touching mapped memory that has gone: a client may shrink an object while it is in use here, and the system answers
the next access with SIGBUS, which ends a process."""

from __future__ import annotations

import ctypes
import mmap
import signal
import weakref
from dataclasses import dataclass
from functools import cache
from typing import Any

SA_SIGINFO, SA_NODEFER = 4, 0x40000000
FAILED = ctypes.c_void_p(-1).value


class _Action(ctypes.Structure):
    """`struct sigaction` of Linux's C libraries."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (1024 // (8 * ctypes.sizeof(ctypes.c_ulong)))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Info(ctypes.Structure):
    """The beginning of `siginfo_t`, as it is for SIGBUS."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("error", ctypes.c_int),
        ("code", ctypes.c_int),
        ("address", ctypes.c_void_p),
    )


_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(_Info), ctypes.c_void_p)


@dataclass(slots=True)
class Watched:
    """A mapping. `lost` is True once something of it was touched that had gone: what was there read as 0, and what was
    written there went nowhere."""

    start: int
    end: int
    lost: bool = False


class Faults:
    """Puts empty memory of this process in the place of watched memory that has gone, at the moment when it is touched.
    Every other SIGBUS does what it did before.

    The handler is Python, which no signal may interrupt just anywhere. This one does not: it comes only where watched
    memory is read or written, which loops over numbers do and nothing that holds a lock or half-made objects.
    """

    def __init__(self) -> None:
        self._watched: dict[int, Watched] = {}
        self._libc = ctypes.CDLL(None)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
        # ctypes keeps no reference of its own.
        self._handler = _Handler(self._touched)
        self._before = _Action()
        action = _Action(handler=ctypes.cast(self._handler, ctypes.c_void_p), flags=SA_SIGINFO | SA_NODEFER)
        self._sigaction(action, self._before)

    def watch(self, mapping: mmap.mmap) -> Watched:
        """From now on, as long as the mapping exists."""
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        watched = self._watched[start] = Watched(start, start + len(mapping))
        weakref.finalize(mapping, self._forget, start, watched).atexit = False
        return watched

    def _forget(self, start: int, watched: Watched) -> None:
        if self._watched.get(start) is watched:  # another may have got the address already
            del self._watched[start]

    def _sigaction(self, action: _Action, before: _Action | None) -> None:
        self._libc.sigaction(int(signal.SIGBUS), ctypes.byref(action), None if before is None else ctypes.byref(before))

    def _touched(self, number: int, info: Any, context: int | None) -> None:
        address = info.contents.address
        for watched in list(self._watched.values()):
            if watched.start <= address < watched.end:
                page = address - address % mmap.PAGESIZE
                watched.lost = True
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
                protection = mmap.PROT_READ | mmap.PROT_WRITE
                if self._libc.mmap(page, watched.end - page, protection, flags, -1, 0) != FAILED:
                    return
        self._sigaction(self._before, None)  # the access is repeated, and meets that


@cache
def faults() -> Faults:
    """Those of this process and of all that are forked from it from now on."""
    return Faults()
