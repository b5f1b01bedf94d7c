"""`gguf`'s reader, without the vocabulary: its lists of 100,000 words would take longer than the layer."""

from __future__ import annotations

from typing import Any, Literal

import gguf
import numpy as np
from gguf.constants import GGUFValueType

WORDS = 1024  # lists of strings longer than this are passed over


class Reader(gguf.GGUFReader):
    """Long lists of strings have no contents here; everything else is gguf's."""

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[np.ndarray[Any, Any]], list[int], list[GGUFValueType]]:
        if raw_type == GGUFValueType.ARRAY:
            kind, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
            if kind[0] == GGUFValueType.STRING and count[0] > WORDS:
                size = 12 + self._strings(orig_offs + 12, int(count[0]))
                return size, [kind, count], [], [GGUFValueType.ARRAY, GGUFValueType.STRING]
        return super()._get_field_parts(orig_offs, raw_type)

    def strings(self, key: str) -> list[str]:
        """A list of strings, however long."""
        field = self.fields[key]
        if field.data:
            return [str(one) for one in field.contents()]
        kind, count = field.parts[-2:]
        assert kind[0] == GGUFValueType.STRING
        offset = field.offset + sum(int(part.nbytes) for part in field.parts)
        data = np.asarray(self.data).data
        found = []
        for _ in range(int(count[0])):
            length = int.from_bytes(data[offset : offset + 8], self._order)
            found.append(bytes(data[offset + 8 : offset + 8 + length]).decode("utf-8"))
            offset += 8 + length
        return found

    @property
    def _order(self) -> Literal["big", "little"]:
        return "big" if self.endianess == gguf.GGUFEndian.BIG else "little"

    def _strings(self, start: int, count: int) -> int:
        """How many bytes so many strings take, each after its length."""
        data, offset = np.asarray(self.data).data, start
        order = self._order
        for _ in range(count):
            offset += 8 + int.from_bytes(data[offset : offset + 8], order)
        return offset - start
