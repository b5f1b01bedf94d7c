"""What every format says of a result: its head in JSON, its arrays by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import orjson
from jaxtyping import Num

from service.finite import nonfinite
from service.records import EncodingResult, ScoringResult, Timings, TopK

METADATA = "metadata"
"""The array (npz) or header entry (safetensors) that holds what JSON says beside the numbers."""

Result = Num[np.ndarray, "..."]
M = TypeVar("M", EncodingResult, TopK)


def head(result: ScoringResult) -> dict[str, Any]:
    """What stands before the results."""
    document: dict[str, Any] = {"model": result.model, "shape": _shape(result), "causal": result.causal}
    if result.tokens is not None:
        document["tokens"] = list(result.tokens)
    if result.skipped:
        document["skipped"] = dict(result.skipped)
    return document


def _shape(result: ScoringResult) -> dict[str, Any]:
    """Of what is returned."""
    rows, head = result.rows, result.head
    sizes = {
        "batch": result.batch,
        "heads": result.heads if head is None else len(head),
        "key_heads": result.key_heads,
        "queries": result.queries if rows is None else len(rows),
        "keys": result.keys,
        "head_dim": result.head_dim,
        "rows": rows,
        "head": head,
        "top_k": result.top_k,
        "mask": result.mask,
    }
    return {name: size for name, size in sizes.items() if size is not None}


def result_head(one: EncodingResult) -> dict[str, Any]:
    """What stands before one encoding's arrays."""
    return {
        "encoding": one.encoding,
        "label": one.label,
        "name": one.name,
        "parameters": dict(one.parameters),
        "conventions": dict(one.conventions),
        **({} if one.summary is None else {"summary": one.summary}),
    }


def timings(spent: Timings) -> dict[str, float | int]:
    """Milliseconds. Serialising is not over when this is written: `Server-Timing` has it."""
    stages = {f"{stage}_ms": round(getattr(spent, stage) * 1e3, 3) for stage in Timings.STAGES if stage != "serialize"}
    return {**stages, "batch_jobs": spent.batch_jobs}


_TIMINGS = ",".join(f'"{stage}_ms":%.3f' for stage in Timings.STAGES if stage != "serialize") + ',"batch_jobs":%d'


def timings_text(spent: Timings) -> str:
    """The same as JSON, written faster."""
    decode, queue, batch_assembly, compute, postprocess, _ = spent.stages
    milliseconds = 1e3 * decode, 1e3 * queue, 1e3 * batch_assembly, 1e3 * compute, 1e3 * postprocess
    return "{" + _TIMINGS % (*milliseconds, spent.batch_jobs) + "}"


def metadata(result: ScoringResult, dtype: str) -> bytes:
    """JSON: all that the binary formats say beside their arrays."""
    return orjson.dumps(
        {
            **head(result),
            "dtype": dtype,
            "results": [{**result_head(one), "nonfinite_cells": one.nonfinite_cells} for one in result.results],
            **({} if result.comparison is None else {"comparison": result.comparison}),
            "timings": orjson.Fragment(timings_text(result.timings)),
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def arrays(result: ScoringResult) -> Iterator[tuple[str, Result]]:
    """`rope/weights`, `rope/scores`, `rope/terms/<term>`, `rope/output`: those that were asked for, C-contiguous.
    The first three are under `rope/top_k` where only the largest keys were, beside `rope/top_k/indices`. Of the summary
    `rope/summary/distance_profile/<array>`."""
    for one in result.results:
        for name, array in _arrays(one):
            yield f"{one.name}/{name}", np.ascontiguousarray(array)


def _arrays(one: EncodingResult) -> Iterator[tuple[str, Result]]:
    if one.top_k is not None:
        yield "top_k/indices", one.top_k.indices
        yield from ((f"top_k/{name}", array) for name, array in _matrices(one.top_k))
    yield from _matrices(one)
    if one.output is not None:
        yield "output", one.output
    for name, array in (one.profile or {}).items():
        yield f"summary/distance_profile/{name}", array


def _matrices(one: EncodingResult | TopK) -> Iterator[tuple[str, Result]]:
    if one.weights is not None:
        yield "weights", one.weights
    if one.scores is not None:
        yield "scores", one.scores
    for term, array in (one.terms or {}).items():
        yield f"terms/{term}", array


def cells(result: ScoringResult) -> int:
    """How many numbers the answer holds."""
    return sum(array.size for one in result.results for _, array in _arrays(one))


def halved(result: ScoringResult) -> ScoringResult:
    """The same in float16. What is too large for it becomes infinite, and is counted as such."""
    return replace(result, results=[_halved(one) for one in result.results])


def _halved(one: EncodingResult) -> EncodingResult:
    top_k = None if one.top_k is None else _halved_matrices(one.top_k)
    smaller = replace(_halved_matrices(one), output=_half(one.output), top_k=top_k)
    arrays = [array for _, array in _arrays(smaller)]
    if all(array is before for array, (_, before) in zip(arrays, _arrays(one), strict=True)):
        return one
    arrays = [array for _, array in _arrays(replace(smaller, profile=None))]
    smaller.nonfinite_cells = nonfinite(arrays)
    return smaller


def _halved_matrices(one: M) -> M:
    terms = None if one.terms is None else {term: _half(array) for term, array in one.terms.items()}
    return replace(one, weights=_half(one.weights), scores=_half(one.scores), terms=terms)


def _half(array: Any) -> Any:
    """Most come so from the device: NumPy takes fifty times as long for what is too small for float16's full
    precision, as most weights of long sequences are."""
    if array is None or array.dtype == np.float16:
        return array
    with np.errstate(over="ignore"):
        return array.astype(np.float16)
