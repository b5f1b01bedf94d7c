"""Where queries and keys are, and which tokens they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Float64, Int64, Num


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the queries and keys are, and (optionally) which token each is.

    Distances are of positions. Everything that counts tokens (the previous one, windows, the first ones) goes by
    *places*: a query's is the index of the key at its position, -1 where there is none. `ordered` says whether key
    positions increase; if not, places mean nothing.
    """

    query_positions: Float64[np.ndarray, " queries"]
    key_positions: Float64[np.ndarray, " keys"]
    query_tokens: Int64[np.ndarray, "#batch queries"] | None = None
    key_tokens: Int64[np.ndarray, "#batch keys"] | None = None

    @classmethod
    def first(cls, tokens: int) -> Layout:
        """Self-attention at 0, 1, 2, ..."""
        positions = np.arange(tokens, dtype=np.float64)
        return cls(positions, positions)

    @property
    def keys(self) -> int:
        return len(self.key_positions)

    @cached_property
    def ordered(self) -> bool:
        return bool((np.diff(self.key_positions) > 0).all())

    @cached_property
    def places(self) -> Int64[np.ndarray, " queries"]:
        if not self.ordered:
            return np.full(len(self.query_positions), -1)
        found = np.searchsorted(self.key_positions, self.query_positions).clip(max=self.keys - 1)
        return np.where(self.key_positions[found] == self.query_positions, found, -1)

    def with_tokens(
        self, query_tokens: Num[np.ndarray, "*batch queries"], key_tokens: Num[np.ndarray, "*batch keys"]
    ) -> Layout:
        """`query_tokens` and `key_tokens` are any numbers, equal for equal tokens."""
        together = np.concatenate([query_tokens, key_tokens], axis=-1)
        numbers = np.unique(together, return_inverse=True)[1].reshape(-1, together.shape[-1])
        queries, keys = numbers[:, : query_tokens.shape[-1]], numbers[:, query_tokens.shape[-1] :]
        return Layout(self.query_positions, self.key_positions, queries, keys)

    def with_embeddings(
        self, queries: Float[np.ndarray, "batch queries *features"], keys: Float[np.ndarray, "batch keys *features"]
    ) -> Layout:
        """Tokens are equal where their embeddings are, bit for bit."""
        rows = [np.ascontiguousarray(x).reshape(*x.shape[:2], -1) for x in (queries, keys)]
        whole = [x.view(np.dtype((np.void, x.shape[-1] * x.itemsize)))[..., 0] for x in rows]
        together = np.concatenate(whole, axis=1)
        numbers = np.unique(together, return_inverse=True)[1].reshape(together.shape)
        return self.with_tokens(numbers[:, : queries.shape[1]], numbers[:, queries.shape[1] :])

    def feeds(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """The graph's inputs for rows `start` to `stop`."""
        feeds = {
            "query_positions": self.query_positions[start:stop],
            "key_positions": self.key_positions,
            "query_places": self.places[start:stop],
        }
        if self.query_tokens is not None and self.key_tokens is not None:
            first = np.full((len(self.key_tokens), 1), -1)
            feeds |= {
                "query_tokens": self.query_tokens[:, start:stop],
                "key_tokens": self.key_tokens,
                "tokens_before": np.concatenate([first, self.key_tokens[:, :-1]], axis=1),
            }
        return feeds

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Rows `start` to `stop` split where places do not go up by one: a diagonal of the rest is one distance."""
        places = self.places[start:stop]
        breaks = np.flatnonzero((np.diff(places) != 1) & ~((places[1:] < 0) & (places[:-1] < 0))) + 1
        edges = [start, *(start + int(at) for at in breaks), stop]
        yield from pairwise(edges)
