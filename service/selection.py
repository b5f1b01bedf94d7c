"""Which rows, heads and keys an answer is of: indices and slices as in Python, and the largest keys of each row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, Shaped, UInt32, UInt64

from service.errors import InvalidInput

Indices = Int64[np.ndarray, " chosen"]
Part = int | tuple[int | None, int | None, int | None]

MAX_PARTS = 1024
BLOCK = 1 << 18
"""Numbers ranked at a time, so that what ranks them stays in the processor's cache."""
FEW = 1 << 15
"""Up to so many numbers are ranked all together; of more, those that cannot be among the largest are left out first."""
GROUP = 16
"""Of so many numbers only the largest is ranked to find out which may be left out."""
HIDDEN = -1
"""Where a row sees fewer keys than were asked for. Its weight, score and terms are 0."""

_INDEX = re.compile(r"-?[0-9]{1,9}")
_SLICE = re.compile(r"(-?[0-9]{1,9})?:(-?[0-9]{1,9})?(?::(-?[0-9]{1,9})?)?")
_LAST = np.uint64(0xFFFF_FFFF)


@dataclass(frozen=True, slots=True)
class Selection:
    """What a query parameter picks of the queries or heads, whose number is not known yet: `-1`, `0:16`, `3,5,-4:`."""

    name: Literal["rows", "head"]
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, name: Literal["rows", "head"], parts: Sequence[str]) -> Selection:
        """Raises InvalidInput for what is neither an index nor a slice."""
        if len(parts) > MAX_PARTS:
            raise InvalidInput(
                f"{name} has {len(parts)} parts, at most {MAX_PARTS} are read; slices such as 0:16 name many at once",
                pointer=f"query:{name}",
                limit=MAX_PARTS,
            )
        return cls(name, tuple(_part(name, part) for part in parts))

    def indices(self, count: int) -> Indices | None:
        """In the order named, each once; None for all in their own order. Raises InvalidInput where one is not there,
        or a slice is empty.
        """
        chosen: list[Indices] = []
        left = np.ones(count, bool)
        for part in self.parts:
            found = self._index(part, count) if isinstance(part, int) else self._slice(part, count)
            found = found[left[found]]
            left[found] = False
            chosen.append(found)
        indices = np.concatenate(chosen)
        return None if len(indices) == count and (np.diff(indices) == 1).all() else indices

    def _index(self, index: int, count: int) -> Indices:
        if not -count <= index < count:
            raise InvalidInput(
                f"{self.name}={index} is not there: {self._all(count)}",
                pointer=f"query:{self.name}",
                minimum=-count,
                maximum=count - 1,
            )
        return np.array([index % count])

    def _slice(self, part: tuple[int | None, int | None, int | None], count: int) -> Indices:
        found = range(count)[slice(*part)]
        if not found:
            start, stop, step = ("" if bound is None else bound for bound in part)
            shown = f"{start}:{stop}" + (f":{step}" if step != "" else "")
            raise InvalidInput(
                f"{self.name}={shown} selects nothing: {self._all(count)}",
                pointer=f"query:{self.name}",
                minimum=-count,
                maximum=count - 1,
            )
        return np.arange(found.start, found.stop, found.step)

    def _all(self, count: int) -> str:
        if count == 1:
            return f"there is 1 {'query' if self.name == 'rows' else 'head'}, 0 (or -1)"
        return (
            f"there are {count} {'queries' if self.name == 'rows' else 'heads'}, 0 to {count - 1} (or -{count} to -1)"
        )


def _part(name: str, text: str) -> Part:
    if _INDEX.fullmatch(text):
        return int(text)
    found = _SLICE.fullmatch(text)
    if found is None:
        raise InvalidInput(
            f"{name}={text[:80]} is neither an index nor a slice; as in Python: {name}=-1, {name}=0:16, {name}=3,5",
            pointer=f"query:{name}",
        )
    start, stop, step = (None if bound is None else int(bound) for bound in found.groups())
    if step == 0:
        raise InvalidInput(f"{name}={text[:80]} has the step 0; leave it out for 1", pointer=f"query:{name}")
    return start, stop, step


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What of its input an answer is of, None being all. `queries` are those of the whole input."""

    queries: int
    rows: Indices | None = None
    head: Indices | None = None
    top_k: int | None = None


def choose(
    rows: Selection | None, head: Selection | None, top_k: int | None, *, queries: int, heads: int, keys: int
) -> Choice:
    """Raises InvalidInput for what is not there."""
    if top_k is not None and top_k > keys:
        raise InvalidInput(
            f"top_k={top_k} asks for more keys than the {keys} there are; it may be 1 to {keys}",
            pointer="query:top_k",
            limit=keys,
        )
    return Choice(
        queries,
        None if rows is None else rows.indices(queries),
        None if head is None else head.indices(heads),
        top_k,
    )


def index(indices: Indices) -> Indices | slice:
    """The same as a slice where they follow each other: it makes views."""
    if (np.diff(indices) == 1).all():
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices


def pick(
    choice: Choice,
    outputs: Mapping[str, np.ndarray],
    visible: Bool[np.ndarray, "#batch #heads #queries keys"] | None,
) -> tuple[Mapping[str, np.ndarray], Int32[np.ndarray, "batch heads queries k"] | None]:
    """Of a run's outputs the heads that were chosen and, in place of all keys, the k largest, and which keys these are.

    All but `output` [batch, queries, heads, head_dim] are [batch, heads, queries, keys].
    """
    if choice.head is not None:
        head = index(choice.head)
        outputs = {name: array[:, :, head] if name == "output" else array[:, head] for name, array in outputs.items()}
        if visible is not None and visible.shape[1] > 1:
            visible = visible[:, head]
    if choice.top_k is None:
        return outputs, None
    keys = largest(outputs["weights"], visible, choice.top_k)
    return {name: array if name == "output" else at(array, keys) for name, array in outputs.items()}, keys


def largest(
    weights: Float32[np.ndarray, "batch heads queries keys"],
    visible: Bool[np.ndarray, "#batch #heads #queries keys"] | None,
    k: int,
) -> Int32[np.ndarray, "batch heads queries {k}"]:
    """The keys of the k largest weights of each row, largest first, of equal ones the first; `HIDDEN` in the place of
    those that the row does not see. NaN is less than any weight.
    """
    found = np.empty((*weights.shape[:-1], k), np.int32)
    _rank(weights, visible, found)
    return found


def _rank(weights: np.ndarray, visible: np.ndarray | None, found: np.ndarray) -> None:
    axis = next((axis for axis, size in enumerate(weights.shape[:-1]) if size > 1), None)
    if weights.size <= BLOCK or axis is None:
        _rank_block(weights, visible, found)
        return
    size = weights.shape[axis]
    step = max(1, BLOCK * size // weights.size)
    for start in range(0, size, step):
        part = (slice(None),) * axis + (slice(start, start + step),)
        seen = visible if visible is None or visible.shape[axis] == 1 else visible[part]
        _rank(weights[part], seen, found[part])


def _rank_block(weights: np.ndarray, visible: np.ndarray | None, found: np.ndarray) -> None:
    """Weights that are not negative are ordered like their bits; one more, and a key that is seen, even with a weight
    of 0, comes before any that is not. The bits below them say which of equal ones is first."""
    k = found.shape[-1]
    bits = np.where(weights > 0, weights, np.float32(0)).view(np.uint32)
    bits += np.uint32(1)
    if visible is not None:
        bits *= visible
    bits = bits.reshape(-1, weights.shape[-1])
    keys = np.arange(bits.shape[-1], dtype=np.uint64)
    if bits.size > FEW and bits.shape[-1] > 4 * k:
        bits, keys = _candidates(bits, k)
    order = bits.astype(np.uint64) << np.uint64(32)
    order |= _LAST - keys
    if order.shape[-1] > k:
        order = np.partition(order, -k, axis=-1)[:, -k:]
    order = np.sort(order, axis=-1)[:, ::-1]
    ranked = np.where(order > _LAST, (_LAST - (order & _LAST)).astype(np.int64), HIDDEN)
    found[...] = ranked.reshape(found.shape)


def _candidates(
    bits: UInt32[np.ndarray, "rows keys"], k: int
) -> tuple[UInt32[np.ndarray, "rows candidates"], UInt64[np.ndarray, "rows candidates"]]:
    """All but 0 that may be among the k largest of their row, and their keys; filled up with 0."""
    # No row has fewer than k as large as the kth largest of the largest of groups, which are quicker to rank.
    count, size = len(bits), bits.shape[-1]
    groups = size // max(1, min(GROUP, size // (4 * k)))
    whole = size // groups * groups
    most = bits[:, :whole].reshape(count, -1, groups).max(axis=1)
    if whole < size:
        most = np.concatenate([most, bits[:, whole:]], axis=-1)
    least = np.maximum(np.partition(most, -k, axis=-1)[:, -k, None], 1)
    rows, keys = np.divmod(np.flatnonzero(bits >= least), size)
    counts = np.bincount(rows, minlength=len(bits))
    places = rows, np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
    shape = len(bits), max(k, counts.max())
    candidates, names = np.zeros(shape, np.uint32), np.zeros(shape, np.uint64)
    candidates[places], names[places] = bits[rows, keys], keys
    return candidates, names


def at(values: Shaped[np.ndarray, "*lead keys"], keys: Int32[np.ndarray, "*lead k"]) -> Shaped[np.ndarray, "*lead k"]:
    """The values of these keys, 0 in the place of `HIDDEN`."""
    picked = np.take_along_axis(values, np.maximum(keys, 0), axis=-1)
    picked[keys == HIDDEN] = 0
    return picked
