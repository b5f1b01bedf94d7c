"""Which requests are computed with more tokens than they have, so that they share runs, and with which tables.

What is padded is hidden from every query and cut off again, so matrices and the numbers of rows are those of the
request alone, but for what a graph adds up over rows or over hidden keys. It is told what is real:

- sums over diagonals (`distance_profile`, `profile_tv`) are of the rows that are `profiled`;
- `w1` adds up the mass that has to be moved past each key: what rounding leaves of it after the last one does not
  count where keys are not `real_keys`;
- tokens, for `duplicate_token` and `induction`, are the request's own, filled up.

There is no metric that cannot be padded: a request is left as it is for the reasons that `Padding` names, whatever is
asked of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from service.encoding import Encoding
from service.errors import ServiceError
from service.parameters import Given, Parameters, ResolvedParameters, Sizes
from service.positions import Positions
from service.tables import Needs


class Lengths(Protocol):
    """A policy that pads: `GpuPolicy`."""

    def padded(self, rows: int, heads: int, queries: int, keys: int, passed: Sequence[str]) -> tuple[int, int] | None:
        """How many queries and keys a job with these outputs, or of these matrices, is computed with; None where it
        stays as it is.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """What replaces a request's own lengths: the tables of so many tokens. `cells` are those of one output."""

    needs: Needs
    lengths: tuple[int, int]
    cells: int


class Padding:
    """Finds the requests that can be padded. What is padded must not change what is real, so

    - the encoding must promise that tokens which follow change nothing (its invariant `prefix`);
    - the positions must be consecutive: the padding continues them, and all that begin alike have the tables in common;
    - padded keys must come after every query, for some encodings look at all keys up to the query;
    - the encoding must take the positions of the padding, and have a row for each.
    """

    def __init__(self, lengths: Lengths, parameters: Parameters) -> None:
        self._lengths = lengths
        self._parameters = parameters

    def of(self, needs: Needs, given: Given, rows: int, outputs: Sequence[str]) -> Padded | None:
        """What this request is to be computed with, or None where it stays as it is."""
        if not needs.encoding.document.get("invariants", {}).get("prefix"):
            return None
        real = len(needs.queries), len(needs.keys)
        lengths = self._lengths.padded(rows, needs.heads, *real, outputs)
        if lengths is None or lengths == real:
            return None
        longer = filled(needs.queries, needs.keys, lengths)
        if longer is None:
            return None
        queries, keys = longer
        largest = max(queries.largest, keys.largest)
        maximum = needs.encoding.positions.maximum
        if maximum is not None and largest > maximum:
            return None
        parameters = self._parameters_up_to(largest, needs, given)
        if parameters is None:
            return None
        padded = Needs(needs.encoding, parameters, queries, keys, needs.causal, needs.heads, needs.head_dim)
        return Padded(padded, lengths, rows * needs.heads * lengths[0] * lengths[1])

    def _parameters_up_to(self, largest: float, needs: Needs, given: Given) -> ResolvedParameters | None:
        rows = _rows_of_positions(needs.encoding)
        if not rows:
            return needs.parameters
        if rows.intersection(given.arrays):
            return None  # a table that the request brought has no rows for tokens it does not have
        try:
            return self._parameters.resolve(needs.encoding, given, _sizes(needs, int(largest) + 1))
        except ServiceError:
            return None


def _sizes(needs: Needs, positions: int) -> Sizes:
    return Sizes(needs.heads, needs.head_dim, positions, needs.encoding.width)


def filled(queries: Positions, keys: Positions, lengths: tuple[int, int]) -> tuple[Positions, Positions] | None:
    """So many of each, of which these are the first; None where they are not consecutive, or where keys that are added
    would not come after every query.
    """
    if lengths[1] > len(keys) and queries.largest > keys.largest:
        return None
    longer = continued(queries, lengths[0]), continued(keys, lengths[1])
    return None if longer[0] is None or longer[1] is None else (longer[0], longer[1])


def continued(positions: Positions, count: int) -> Positions | None:
    """`count` consecutive positions of which these are the first; None where they are not consecutive."""
    values = positions.values
    if count == len(values):
        return positions
    longer = values[0] + np.arange(count)
    if not np.array_equal(longer[: len(values)], values):
        return None
    return Positions.first(count) if values[0] == 0 else Positions.of(longer)


def _rows_of_positions(encoding: Encoding) -> set[str]:
    """The parameters that have a row for each position."""
    rows = {parameter.name for parameter in encoding.parameters if "positions" in parameter.shape}
    return rows | ({encoding.positions.rows_of} if encoding.positions.rows_of is not None else set())
