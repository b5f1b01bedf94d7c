"""Numbers of the rows of a matrix, put together from those of its blocks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from service.blocks import Block
from service.summaries.rows import DIAGONALS


class Sheet:
    """Arrays [batch, heads, queries] by name; sums over rows [batch, heads, ...] are added up.

    A sheet of what is the same for all of the batch, or for all heads, has 1 of them.
    """

    def __init__(self, batch: int, heads: int, queries: int) -> None:
        self._shape = (batch, heads, queries)
        self._whole = Block(slice(0, batch), slice(0, queries))
        self.arrays: dict[str, np.ndarray] = {}

    def has(self, block: Block) -> bool:
        """Whether this block has rows of its own: not where it is the same for the whole batch, but for the first."""
        return self._shape[0] > 1 or block.batch.start == 0

    def put(self, numbers: Mapping[str, np.ndarray], block: Block) -> None:
        batch = block.batch if self._shape[0] > 1 else slice(0, 1)
        if not self.arrays and Block(batch, block.queries) == self._whole:
            self.arrays = dict(numbers)
            return
        for name, array in numbers.items():
            if name in DIAGONALS:
                if name not in self.arrays:
                    self.arrays[name] = np.zeros((*self._shape[:2], array.shape[-1]))
                self.arrays[name][batch] += array
            else:
                if name not in self.arrays:
                    self.arrays[name] = np.empty(self._shape, array.dtype)
                self.arrays[name][batch, :, block.queries] = array
