"""From jobs to one run's inputs, and from its outputs back to jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool

from service.engine.job import Job


def assemble(jobs: Sequence[Job]) -> dict[str, np.ndarray]:
    """The inputs of one run of these jobs, all of one `BatchKey`. Each array is copied once, those of a single job
    never.
    """
    first = jobs[0]
    feeds = dict(first.tables.arrays)
    if len(jobs) == 1:
        feeds["queries"], feeds["keys"] = first.queries, first.keys
    else:
        feeds["queries"] = np.concatenate([job.queries for job in jobs])
        alike = all(job.keys is job.queries for job in jobs)
        feeds["keys"] = feeds["queries"] if alike else np.concatenate([job.keys for job in jobs])
    if first.visible is not None:
        feeds["visible"] = _visible(jobs)
    return feeds


def _visible(jobs: Sequence[Job]) -> Bool[np.ndarray, "#batch #heads queries keys"]:
    masks = [job.visible for job in jobs if job.visible is not None]
    first = masks[0]
    if len(masks) == 1 or (len(first) == 1 and all(mask is first for mask in masks)):
        return first
    rows = sum(len(job.queries) for job in jobs)
    together = np.empty((rows, max(mask.shape[1] for mask in masks), *first.shape[2:]), dtype=bool)
    start = 0
    for job, mask in zip(jobs, masks, strict=True):
        together[start : start + len(job.queries)] = mask
        start += len(job.queries)
    return together


def cut(outputs: Mapping[str, np.ndarray], jobs: Sequence[Job]) -> list[dict[str, np.ndarray]]:
    """Each job's part of the outputs, as views."""
    if len(jobs) == 1:
        return [dict(outputs)]
    rows = sum(len(job.queries) for job in jobs)
    for name, array in outputs.items():
        if len(array) != rows:
            raise ValueError(f"output {name!r} has {len(array)} rows, but the batch had {rows}")
    parts, start = [], 0
    for job in jobs:
        end = start + len(job.queries)
        parts.append({name: array[start:end] for name, array in outputs.items()})
        start = end
    return parts
