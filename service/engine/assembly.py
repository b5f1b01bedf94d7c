"""From jobs to one run's inputs, and from its outputs back to jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from service.engine.appending import summed
from service.engine.job import Into, Job
from service.engine.pruning import whole

if TYPE_CHECKING:
    from jaxtyping import Bool

MATRIX = 4
"""Axes of the outputs [batch, heads, queries, keys]; numbers of rows have no keys."""
Empty = Callable[[tuple[int, ...], Any], np.ndarray]
"""Makes an array of this shape and dtype, whatever its numbers: `np.empty`, or one in memory that a device reads."""


def assemble(jobs: Sequence[Job], empty: Empty = np.empty) -> dict[str, np.ndarray]:
    """The inputs of one run of these jobs, all of one `BatchKey`. Each array is copied once, those of a single job
    that is not padded never.
    """
    first = jobs[0]
    feeds = dict(first.tables.arrays)
    padded = any(job.padded is not None for job in jobs)
    if len(jobs) == 1 and not padded:
        feeds["queries"], feeds["keys"] = first.queries, first.keys
    elif first.queries.size:
        queries, keys = first.lengths
        feeds["queries"] = _together([job.queries for job in jobs], queries, empty)
        alike = queries == keys and all(job.keys is job.queries for job in jobs)
        feeds["keys"] = feeds["queries"] if alike else _together([job.keys for job in jobs], keys, empty)
    if first.own is not None:
        feeds |= {name: _own(name, jobs, empty) for name in first.own}
    if first.masked:
        feeds["visible"] = _visible_of_padded(jobs, empty) if padded else _visible(jobs, empty)
    return feeds


def _together(arrays: Sequence[np.ndarray], length: int, empty: Empty) -> np.ndarray:
    """One below the other, each filled up with zeros to `length` tokens."""
    first = arrays[0]
    rows = sum(map(len, arrays))
    if all(array.shape[1] == length for array in arrays):
        if empty is np.empty:
            return np.concatenate(arrays)
        return np.concatenate(arrays, out=empty((rows, *first.shape[1:]), first.dtype))
    together = empty((rows, length, *first.shape[2:]), first.dtype)
    start = 0
    for array in arrays:
        end, tokens = start + len(array), array.shape[1]
        together[start:end, :tokens] = array
        together[start:end, tokens:] = 0
        start = end
    return together


def _own(name: str, jobs: Sequence[Job], empty: Empty) -> np.ndarray:
    """One below the other, each filled up with zeros."""
    owned = [(job.own or {})[name] for job in jobs]
    first, lengths = owned[0], dict(zip(("queries", "keys"), jobs[0].lengths, strict=True))
    sizes = zip(first.axes, first.array.shape, strict=True)
    _, *shape = (lengths.get(axis, size) for axis, size in sizes)
    if len(jobs) == 1 and list(first.array.shape[1:]) == shape:
        return first.array
    together = empty((sum(len(job.queries) for job in jobs), *shape), first.array.dtype)
    start = 0
    for job, (array, _) in zip(jobs, owned, strict=True):
        end, real = start + len(job.queries), array.shape[1:]
        if list(real) != shape:
            together[start:end] = 0
        together[(slice(start, end), *map(slice, real))] = array
        start = end
    return together


def _visible_of_padded(jobs: Sequence[Job], empty: Empty) -> Bool[np.ndarray, "#batch #heads #queries keys"]:
    """What is real and seen. A mask of the padded size that all share, as a causal one, is handed through."""
    first = jobs[0]
    queries, keys = lengths = first.lengths
    masks = [job.visible for job in jobs]
    mask = masks[0]
    if mask is not None and len(mask) == 1 and mask.shape[2:] == lengths and all(one is mask for one in masks):
        return mask
    rows = sum(len(job.queries) for job in jobs)
    # Where nothing but padding is hidden, one row stands for all.
    shown = 1 if all(one is None for one in masks) else queries
    heads = max((one.shape[1] for one in masks if one is not None), default=1)
    together = empty((rows, heads, shown, keys), bool)
    together[...] = False
    start = 0
    for job, mask in zip(jobs, masks, strict=True):
        end = start + len(job.queries)
        if mask is None:
            together[start:end, :, :, : job.keys.shape[1]] = True
        else:
            together[start:end, :, : mask.shape[2], : mask.shape[3]] = mask
        start = end
    return together


def _visible(jobs: Sequence[Job], empty: Empty) -> Bool[np.ndarray, "#batch #heads queries keys"]:
    masks = [job.visible for job in jobs if job.visible is not None]
    first = masks[0]
    if len(masks) == 1 or (len(first) == 1 and all(mask is first for mask in masks)):
        return first
    rows = sum(len(job.queries) for job in jobs)
    together = empty((rows, max(mask.shape[1] for mask in masks), *first.shape[2:]), bool)
    start = 0
    for job, mask in zip(jobs, masks, strict=True):
        together[start : start + len(job.queries)] = mask
        start += len(job.queries)
    return together


def cut(outputs: Mapping[str, np.ndarray], jobs: Sequence[Job]) -> list[dict[str, np.ndarray]]:
    """Each job's part of the outputs, without padding, as views."""
    if len(jobs) == 1:
        return [_real(outputs, jobs[0])]
    rows = sum(len(job.queries) for job in jobs)
    for name, array in outputs.items():
        if len(array) != rows:
            raise ValueError(f"output {name!r} has {len(array)} rows, but the batch had {rows}")
    parts, start = [], 0
    for job in jobs:
        end = start + len(job.queries)
        parts.append(_real({name: array[start:end] for name, array in outputs.items()}, job))
        start = end
    return parts


def _real(outputs: Mapping[str, np.ndarray], job: Job) -> dict[str, np.ndarray]:
    if job.padded is None:
        return dict(outputs)
    queries, keys = job.queries.shape[1], job.keys.shape[1]
    parts: dict[str, np.ndarray] = {}
    for name, array in outputs.items():
        if whole(name) == "output":
            parts[name] = array[:, :queries]
        elif summed(name):  # a diagonal is counted from the last row
            first = job.lengths[0] - queries
            parts[name] = array[:, :, first : first + queries + keys + 1]
        elif array.ndim == MATRIX:
            parts[name] = array[:, :, :queries, :keys]
        else:
            parts[name] = array[:, :, :queries]
    return parts


def placed(part: dict[str, np.ndarray], into: Into | None) -> dict[str, np.ndarray]:
    """A job's part of the outputs where it wants them: copied there unless they were written there. Raises ValueError
    where the shapes differ.
    """
    if into is None:
        return part
    for name, array in part.items():
        target = into.arrays[name]
        if array.shape != target.shape:
            raise ValueError(f"output {name!r} has the shape {array.shape}, not {target.shape}")
        if array is not target:
            target[...] = array
    return {name: into.arrays[name] for name in part}
