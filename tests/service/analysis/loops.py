"""The definitions of every metric as loops in float64, for one head: what the service's numbers are held against."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Float64
from scipy.special import rel_entr
from scipy.stats import wasserstein_distance

Row = Float64[np.ndarray, " keys"]
Matrix = Float64[np.ndarray, "queries keys"]
Seen = Bool[np.ndarray, "queries keys"]

TOLERANCE = 1e-5


def counted(weights: Matrix, seen: Seen, padding: Sequence[bool], tolerance: float = TOLERANCE) -> list[int]:
    """The rows that may be read as distributions."""
    rows = []
    for i in range(len(weights)):
        row = weights[i][seen[i]]
        if not padding[i] and row.size and np.isfinite(row).all() and abs(math.fsum(row) - 1) <= tolerance:
            rows.append(i)
    return rows


def summary(
    weights: Matrix,
    seen: Seen,
    padding: Sequence[bool],
    positions: Row,
    tokens: Sequence[object],
    tolerance: float = TOLERANCE,
) -> dict[str, list[float]]:
    """The rows that each metric is the mean of, for self-attention in order; those of uniform attention under
    `uniform.<name>`.
    """
    found: dict[str, list[float]] = {}
    even = seen / np.maximum(seen.sum(1, keepdims=True), 1)
    for i in counted(weights, seen, padding, tolerance):
        for kind, matrix in (("", weights), ("uniform.", even)):
            for name, value in _row(matrix, seen, positions, tokens, i):
                found.setdefault(kind + name, []).append(value)
    return found


def _row(weights: Matrix, seen: Seen, positions: Row, tokens: Sequence[object], i: int) -> Iterator[tuple[str, float]]:
    keys = range(len(positions))
    p, n = [float(weights[i, j]) if seen[i, j] else 0.0 for j in keys], int(seen[i].sum())
    entropy = math.fsum(-x * math.log(x) for x in p if x > 0)
    yield "entropy", entropy
    yield "effective_keys", math.exp(entropy)
    yield "max_weight", max(p)
    if i >= 1:
        yield "previous_token", p[i - 1]
        yield "self_token", p[i]
        yield "first_token", p[0]
    for name, which in (
        ("duplicate_token", [j for j in keys if seen[i, j] and j < i and tokens[j] == tokens[i]]),
        ("induction", [j for j in keys if seen[i, j] and 1 <= j <= i and tokens[j - 1] == tokens[i]]),
    ):
        if which:
            yield name, math.fsum(p[j] for j in which)
    if n == 1:
        return
    yield "entropy_norm", entropy / math.log(n)
    yield "mean_distance", math.fsum(p[j] * abs(positions[i] - positions[j]) for j in keys)
    within = [math.fsum(p[j] for j in keys if abs(i - j) <= w) for w in keys]
    yield "half_mass_distance", next(w for w in keys if within[w] >= 0.5 - TOLERANCE)
    for w in (1, 4, 16, 64):
        yield f"local_mass_{w}", within[min(w, len(within) - 1)]
    yield "alpha_0", p[0]
    for k in (1, 4):
        if i >= k:
            yield f"sink_mass_{k}", math.fsum(p[:k])


def profile(weights: Matrix, seen: Seen, padding: Sequence[bool]) -> dict[int, float]:
    """Mean weight by distance, over the rows that see two keys or more."""
    rows = [i for i in counted(weights, seen, padding) if seen[i].sum() >= 2]
    found: dict[int, float] = {}
    for i in rows:
        for j in np.flatnonzero(seen[i]):
            found[i - int(j)] = found.get(i - int(j), 0.0) + float(weights[i, j]) / len(rows)
    return found


def comparison(
    a: Matrix,
    b: Matrix,
    scores: tuple[Matrix, Matrix],
    seen: Seen,
    padding: Sequence[bool],
    top: int,
    tolerance: float = TOLERANCE,
) -> dict[str, list[float]]:
    """The rows that each metric of two matrices is the mean of; `a` is the reference."""
    both = sorted(set(counted(a, seen, padding, tolerance)) & set(counted(b, seen, padding, tolerance)))
    found: dict[str, list[float]] = {}
    for i in both:
        where = np.flatnonzero(seen[i])
        if len(where) < 2:
            continue
        x, y = np.where(seen[i], a[i], 0), np.where(seen[i], b[i], 0)
        x, y = x / x.sum(), y / y.sum()
        s, t = (one[i][where] - one[i][where].mean() for one in scores)
        first, second = (sorted(where, key=lambda j, row=row: (-row[j], j)) for row in (x, y))  # type: ignore[misc]
        row = {
            "jsd": float((rel_entr(x, (x + y) / 2) + rel_entr(y, (x + y) / 2)).sum()) / (2 * math.log(2)),
            "tv": math.fsum(abs(x - y)) / 2,
            "w1": float(wasserstein_distance(range(len(x)), range(len(y)), x, y)),
            "argmax_agree": float(first[0] == second[0]),
            "topk_overlap": len({*first[:top]} & {*second[:top]}) / min(top, len(where)),
            "logit_rmse": math.sqrt(((s - t) ** 2).mean()),
        }
        if min(np.abs(s).max(), np.abs(t).max()) > 1e-3:
            row["logit_r"] = float(np.corrcoef(s, t)[0, 1])
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return found


def frobenius(a: Matrix, b: Matrix, seen: Seen, padding: Sequence[bool]) -> float:
    both = set(counted(a, seen, padding)) & set(counted(b, seen, padding))
    rows = [i for i in both if seen[i].sum() >= 2]
    x, y = (np.where(seen, one, 0)[rows] for one in (a, b))
    return float(np.linalg.norm(x - y) / np.linalg.norm(x))
