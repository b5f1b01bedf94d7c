"""Who may see whom: the request's mask, causality and a layer's window, as booleans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Num

from service.cache import Cache
from service.errors import InvalidInput
from service.positions import Positions

AXES = ("batch", "heads", "queries", "keys")
Visible = Bool[np.ndarray, "#batch #heads queries keys"]


def read_mask(
    mask: Num[np.ndarray, "..."], batch: int | None, heads: int, queries: int, keys: int
) -> Bool[np.ndarray, "#batch #heads #queries #keys"]:
    """The mask with all four axes, any of size 1 where it is the same along that axis; True where a key may be seen.

    `batch` is None for a request without a batch axis. The shapes, the first that fits:
    [keys]; with a batch [batch, keys]; [queries, keys]; [batch, queries, keys]; [batch, heads, queries, keys].
    In the last two any axis may be 1. So where a batch is as large as the number of queries, a mask of two axes is
    [batch, keys] (padding), and [1, queries, keys] says the other.

    Raises InvalidInput for another shape, and for values other than 0 and 1.
    """
    rows = batch or 1
    full = (rows, heads, queries, keys)
    shape = mask.shape
    axes = mask_axes(shape, batch, heads, queries, keys)
    if axes is None:
        allowed = [f"[keys] = [{keys}]", f"[queries, keys] = [{queries}, {keys}]"]
        if batch is not None:
            allowed.append(f"[batch, keys] = [{batch}, {keys}]")
        allowed.append(f"[batch, queries, keys] = [{rows}, {queries}, {keys}]")
        allowed.append(f"[batch, heads, queries, keys] = {list(full)}")
        raise InvalidInput(
            f"the mask has shape {list(shape)}; allowed: {', '.join(allowed)} (an axis of the last two may be 1)",
            pointer="/mask",
        )
    if mask.dtype != np.bool_:
        allowed_values = (mask == 0) | (mask == 1)
        if not allowed_values.all():
            index = np.unravel_index(int(np.argmin(allowed_values)), shape)
            raise InvalidInput(
                f"mask{list(map(int, index))} is {mask[index]}; a mask holds true or 1 where a key may be seen, "
                "false or 0 where it may not (not additive biases)",
                pointer="/mask/" + "/".join(str(int(i)) for i in index),
            )
        mask = mask.astype(np.bool_)
    sizes = dict(zip(axes, shape, strict=True))
    return mask.reshape(tuple(sizes.get(axis, 1) for axis in AXES))


def mask_axes(shape: tuple[int, ...], batch: int | None, heads: int, queries: int, keys: int) -> tuple[str, ...] | None:
    """What the axes of a mask of this shape are, of `AXES`; None where it is none."""
    rows = batch or 1
    if shape == (keys,):
        return ("keys",)
    if batch is not None and shape == (batch, keys):
        return ("batch", "keys")
    if shape == (queries, keys):
        return ("queries", "keys")
    if len(shape) == 3 and _fits(shape, (rows, queries, keys)):
        return ("batch", "queries", "keys")
    if len(shape) == 4 and _fits(shape, (rows, heads, queries, keys)):
        return AXES
    return None


def _fits(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    return all(size in (1, whole) for size, whole in zip(shape, full, strict=True))


@dataclass(frozen=True, slots=True)
class Window:
    """The keys that a layer sees: at most `before` positions before the query and `after` after it."""

    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Sight:
    """What a query sees by positions alone: keys no later than itself where it is causal, within the window if any."""

    causal: bool
    window: Window | None = None

    @property
    def everything(self) -> bool:
        return not self.causal and self.window is None

    def mask(self, queries: Float64[np.ndarray, " queries"], keys: Float64[np.ndarray, " keys"]) -> Visible | None:
        """[1, 1, queries, keys], read-only; None where every key is visible."""
        if self.everything:
            return None
        m, n = queries[None, None, :, None], keys[None, None, None, :]
        seen = np.ones((1, 1, len(queries), len(keys)), bool) if not self.causal else n <= m
        if self.window is not None:
            r = m - n
            seen &= (r <= self.window.before) & (-r <= self.window.after)
        return _or_none(seen)


class SightMasks:
    """What is seen, for positions used lately; up to `capacity` bytes are kept."""

    def __init__(self, capacity: int = 16 << 20) -> None:
        self._cache: Cache[tuple[Sight, str, str], tuple[Visible | None]] = Cache(capacity)

    def sweep(self) -> None:
        """Drops what has not been asked for since this was last called."""
        self._cache.sweep()

    def get(self, sight: Sight, queries: Positions, keys: Positions) -> Visible | None:
        """[1, 1, queries, keys], read-only; None where every key is visible."""
        key = (sight, queries.digest, keys.digest)
        found = self._cache.get(key)
        if found is None:
            found = (sight.mask(queries.values, keys.values),)
            self._cache.put(key, found, 64 if found[0] is None else found[0].nbytes)
        return found[0]


def combine(
    mask: Bool[np.ndarray, "#batch #heads #queries #keys"] | None, seen: Visible | None, queries: int, keys: int
) -> Visible | None:
    """Both at once; None where nothing is masked."""
    if mask is None:
        return seen
    if seen is not None:
        return _or_none(mask & seen)
    if mask.all():
        return None
    return np.ascontiguousarray(np.broadcast_to(mask, (*mask.shape[:2], queries, keys)))


def _or_none(visible: Visible) -> Visible | None:
    if visible.all():
        return None
    visible.flags.writeable = False
    return visible
