"""Memory that inputs and outputs are bound to: a device's, and the host's that the device copies from and to."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from math import prod
from typing import Any, Protocol

import numpy as np

logger = logging.getLogger(__name__)

ALIGNMENT = 256
"""Of everything that is bound, in bytes: what CUDA's own allocations have."""


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Memory(Protocol):
    """A device's memory, by addresses. Used by one thread at a time. Raises RuntimeError where a call fails."""

    @property
    def device(self) -> str:
        """onnxruntime's name of it, `cuda`."""

    def allocate(self, size: int) -> int:
        """The address of so many bytes on the device."""

    def free(self, address: int) -> None: ...

    def upload(self, array: np.ndarray, address: int) -> None:
        """Begins to copy a C-contiguous array there. It must stay as it is until `wait` returns."""

    def wait(self) -> None:
        """Until all that was begun is done."""

    def download(self, address: int, array: np.ndarray) -> None:
        """Copies from there into a C-contiguous array, and returns when that is done."""

    def allocate_host(self, size: int) -> int:
        """The address of so many bytes on the host from and to which the device copies fastest."""

    def free_host(self, address: int) -> None: ...


class HostMemory:
    """The host's own memory in the place of a device's: binding works on the CPU as well, where it gains nothing."""

    device = "cpu"

    def __init__(self) -> None:
        self._blocks: dict[int, np.ndarray] = {}

    def allocate(self, size: int) -> int:
        block = np.empty(size + ALIGNMENT, np.uint8)
        address = aligned(block.ctypes.data)
        self._blocks[address] = block
        return address

    def free(self, address: int) -> None:
        del self._blocks[address]

    def upload(self, array: np.ndarray, address: int) -> None:
        view(address, array.nbytes)[:] = array.reshape(-1).view(np.uint8)

    def wait(self) -> None:
        """Nothing is ever left to be done."""

    def download(self, address: int, array: np.ndarray) -> None:
        array.reshape(-1).view(np.uint8)[:] = view(address, array.nbytes)

    def allocate_host(self, size: int) -> int:
        return self.allocate(size)

    def free_host(self, address: int) -> None:
        self.free(address)


class Lease:
    """A piece of host memory that is somebody's for as long as an array of it, or a part of one, exists."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,), "data": (address, False)}


def view(address: int, size: int) -> np.ndarray:
    """These bytes of the host, as long as they are there."""
    return np.asarray(Lease(address, size))


class Pool:
    """Arrays in a memory's host part, at most `capacity` bytes of it: what is above that is ordinary memory.

    Page-locked memory is slow to allocate and scarce, so it is used again once nobody holds the array any more. Blocks
    are powers of 2. Arrays may be made and dropped by any thread.
    """

    def __init__(self, memory: Memory, capacity: int) -> None:
        self._memory = memory
        self._capacity = capacity
        self._lock = threading.Lock()
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        # Filled by whichever thread drops an array, also amid a call of this one: it must need no lock.
        self._returned: deque[tuple[int, int]] = deque()
        self.bytes = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array of whatever was there."""
        kind = np.dtype(dtype)
        size = prod(shape) * kind.itemsize
        block = max(4096, 1 << (size - 1).bit_length())
        with self._lock:
            address = self._take(block)
        if address is None:
            return np.empty(shape, kind)
        lease = Lease(address, size)
        weakref.finalize(lease, self._returned.append, (block, address)).atexit = False
        array: np.ndarray = np.asarray(lease).view(kind).reshape(shape)
        return array

    def give_back(self) -> None:
        """Frees the blocks that nobody holds."""
        with self._lock:
            self._collect()
            for size, addresses in self._free.items():
                while addresses:
                    self._memory.free_host(addresses.pop())
                    self.bytes -= size

    def _collect(self) -> None:
        while self._returned:
            size, address = self._returned.popleft()
            self._free[size].append(address)

    def _take(self, block: int) -> int | None:
        self._collect()
        if self._free[block]:
            return self._free[block].pop()
        for size, addresses in self._free.items():
            while addresses and self.bytes + block > self._capacity:
                self._memory.free_host(addresses.pop())
                self.bytes -= size
        if self.bytes + block > self._capacity:
            return None
        try:
            address = self._memory.allocate_host(block)
        except RuntimeError as error:  # the system has no more of it, and ordinary memory serves as well
            logger.warning("%d bytes of host memory are not page-locked: %s", block, error)
            return None
        self.bytes += block
        return address


class Slab:
    """One piece of a device's memory for all that a run needs. It grows to the largest run, and then moves."""

    def __init__(self, memory: Memory, moves: Callable[[], None]) -> None:
        """`moves` is called before the memory at the old address goes."""
        self._memory = memory
        self._moves = moves
        self.address = 0
        self.size = 0

    def reserve(self, size: int) -> int:
        """The address of at least so many bytes. What was there before is lost."""
        if size > self.size:
            self._moves()
            if self.address:
                self._memory.free(self.address)
                self.address = self.size = 0
            grown = max(1 << 20, 1 << (size - 1).bit_length())
            self.address, self.size = self._memory.allocate(grown), grown
        return self.address


class Resident:
    """Arrays that do not change and come again, kept on the device: position tables, causal masks. Up to `capacity`
    bytes. One that comes for the first time may be one request's own, and its memory would be had for nothing.
    """

    REMEMBERED = 1024
    """Arrays that came once, lately."""

    def __init__(self, memory: Memory, capacity: int) -> None:
        self._memory = memory
        self._capacity = capacity
        self._held: dict[int, tuple[weakref.ref[np.ndarray], int, int]] = {}
        self._used: set[int] = set()
        self._once: OrderedDict[int, weakref.ref[np.ndarray]] = OrderedDict()
        self.bytes = 0

    def begin(self) -> None:
        """A run begins: what the last one used may go."""
        self._used.clear()

    def address(self, array: np.ndarray) -> int | None:
        """Where the array is on the device until the next run begins, copied there now if need be; None where it has
        not come before, or there is no room.

        An array is known by being the same object, and must be read-only.
        """
        held = self._held.pop(id(array), None)
        if held is not None and held[0]() is not array:
            self._drop(held)  # another array had this id
            held = None
        if held is None:
            if not self._came_before(array):
                return None
            size = aligned(array.nbytes)
            if not self._make_room(size):
                return None
            held = weakref.ref(array), self._memory.allocate(size), size
            self.bytes += size
            self._memory.upload(array, held[1])
        self._held[id(array)] = held
        self._used.add(id(array))
        return held[1]

    def _came_before(self, array: np.ndarray) -> bool:
        known = self._once.pop(id(array), None)
        if known is not None and known() is array:
            return True
        self._once[id(array)] = weakref.ref(array)
        if len(self._once) > self.REMEMBERED:
            self._once.popitem(last=False)
        return False

    def _make_room(self, size: int) -> bool:
        """Whether there is room now. First goes what nobody has any more, then what was not used for longest."""
        if self.bytes + size <= self._capacity:
            return True
        dead = [name for name, (array, _, _) in self._held.items() if array() is None]
        for name in dict.fromkeys((*dead, *self._held)):
            if self.bytes + size <= self._capacity:
                return True
            if name not in self._used:
                self._drop(self._held.pop(name))
        return self.bytes + size <= self._capacity

    def _drop(self, held: tuple[weakref.ref[np.ndarray], int, int]) -> None:
        self._memory.free(held[1])
        self.bytes -= held[2]
