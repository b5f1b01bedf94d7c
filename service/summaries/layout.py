"""Where queries and keys are, and which tokens they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Float32, Float64, Int64, Num, Shaped

EXACT = 2.0**24
"""float32 holds every whole number up to this."""


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
    def queries(self) -> int:
        return len(self.query_positions)

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

    def rows(self, rows: slice | Int64[np.ndarray, " chosen"]) -> Layout:
        """That of some of the queries."""
        tokens = None if self.query_tokens is None else self.query_tokens[:, rows]
        return replace(self, query_positions=self.query_positions[rows], query_tokens=tokens)

    def item(self, item: slice) -> Layout:
        """That of some of the batch."""
        if self.key_tokens is None or self.query_tokens is None or len(self.key_tokens) == 1:
            return self
        return replace(self, query_tokens=self.query_tokens[item], key_tokens=self.key_tokens[item])

    def with_tokens(
        self, query_tokens: Shaped[np.ndarray, "*batch queries"], key_tokens: Shaped[np.ndarray, "*batch keys"]
    ) -> Layout:
        """`query_tokens` and `key_tokens` are numbers or text, equal for equal tokens."""
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

    @cached_property
    def _single(self) -> tuple[Num[np.ndarray, " queries"], Num[np.ndarray, " keys"]]:
        """The positions, as float32 where their differences are exact in it: a third of the time."""
        start = min(float(self.query_positions.min()), float(self.key_positions.min()))
        moved = self.query_positions - start, self.key_positions - start
        if all((one <= EXACT).all() and (one == np.rint(one)).all() for one in moved):
            return moved[0].astype(np.float32), moved[1].astype(np.float32)
        return moved

    def distances(self) -> Float32[np.ndarray, "queries keys"]:
        """|query position - key position|, subtracted before it is rounded."""
        queries, keys = self._single
        difference: Num[np.ndarray, "queries keys"] = np.subtract.outer(queries, keys)
        np.abs(difference, out=difference)
        return difference.astype(np.float32, copy=False)

    def feeds(self, inputs: frozenset[str]) -> dict[str, np.ndarray]:
        """Those inputs of the graph that follow from the layout."""
        first = np.arange(self.queries) * self.keys
        feeds: dict[str, np.ndarray] = {
            "query_places": self.places,
            "own_cells": first + np.maximum(self.places, 0),
            "previous_cells": first + np.maximum(self.places - 1, 0),
        }
        if "distances" in inputs:
            feeds["distances"] = self.distances()
        return feeds | self.token_feeds()

    def token_feeds(self) -> dict[str, np.ndarray]:
        """Those that follow from the tokens; none where they are not known."""
        if self.query_tokens is None or self.key_tokens is None:
            return {}
        before = np.full((len(self.key_tokens), 1), -1)
        return {
            "query_tokens": self.query_tokens,
            "key_tokens": self.key_tokens,
            "tokens_before": np.concatenate([before, self.key_tokens[:, :-1]], axis=1),
        }

    def runs(self) -> Iterator[slice]:
        """The rows split where places do not go up by one: a diagonal of each part is one distance. Rows that have no
        place are on no diagonal, and fit anywhere.
        """
        placed = np.flatnonzero(self.places >= 0)
        breaks = placed[1:][np.diff(self.places[placed] - placed) != 0]
        edges = [0, *(int(at) for at in breaks), self.queries]
        yield from (slice(start, stop) for start, stop in pairwise(edges))
