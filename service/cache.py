"""A least-recently-used cache bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Cache(Generic[Key, Value]):
    """Keeps the values used last whose sizes sum to at most `capacity` bytes. Safe to use from several threads."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._used: set[Key] = set()
        """Since the last sweep."""
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self.misses += 1
                return None
            self.hits += 1
            self._entries.move_to_end(key)
            self._used.add(key)
            return entry[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Keeps `value`; one larger than the whole cache is not kept, and drops nothing."""
        if size > self.capacity:
            return
        with self._lock:
            if key in self._entries:
                self.bytes -= self._entries.pop(key)[1]
            self._entries[key] = (value, size)
            self._used.add(key)
            self.bytes += size
            while self.bytes > self.capacity:
                gone, (_, freed) = self._entries.popitem(last=False)
                self._used.discard(gone)
                self.bytes -= freed

    def sweep(self) -> None:
        """Drops what has neither come nor been asked for since the last sweep."""
        with self._lock:
            for key in [key for key in self._entries if key not in self._used]:
                self.bytes -= self._entries.pop(key)[1]
            self._used.clear()

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._used.clear()
            self.bytes = 0
