"""What papers say that position alone is: to be drawn over what it is found to be.

An encoding without a formula of its own here has none; nothing else depends on which encodings these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np
from jaxtyping import Complex128, Float64, Int64

from service.scoring import PositionTables

TURNED = 1e-5
"""How far from its magnitude a turned component may be in float32."""

ALIBI = (
    "the paper's slopes, -|d| 2^(-8h/H) for head h = 1 .. H (for other numbers of heads than powers of 2 its released "
    "code's); the paper is causal, and to the other side it is the same by symmetry"
)
T5 = (
    "the distances at which another bucket begins, so that the curve may step there and nowhere else; how far it steps "
    "is learned, and freshly initialised unless the request brings a table"
)
ROPE = (
    "an upper bound of the curve, not a prediction (RoFormer, 3.4.3): c a^2 2x^2 (sum over j = 1 .. D/2 of |S_j(d)|, "
    "less D/2), S_j(d) = sum over i < j of e^(i d theta_i), for components that are all x; the curve lies at or below "
    "it and oscillates. relative is the paper's own quantity, (2/D) sum |S_j(d)|; that it decays says nothing of the "
    "curve"
)


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """`kind`: `formula`, what the curve is; `upper bound`, what it stays below; `steps`, where it may change."""

    name: str
    kind: str
    label: str
    values: Float64[np.ndarray, "heads distances"] | None = None
    relative: Float64[np.ndarray, " distances"] | None = None
    distances: Int64[np.ndarray, " steps"] | None = None

    def json(self) -> dict[str, Any]:
        arrays = {"values": self.values, "relative": self.relative, "distances": self.distances}
        given = {name: _single(array) for name, array in arrays.items() if array is not None}
        return {"name": self.name, "kind": self.kind, "label": self.label, **given}


def references(
    encoding: str, found: PositionTables, distances: Float64[np.ndarray, " distances"], component: float
) -> list[Reference]:
    """For S(d) - S(0) of tokens whose components are all `component`, under the model that splits them into heads."""
    if "softcap" in found.parameters:
        return []  # caps what these are of
    if encoding == "alibi":
        return [Reference("ALiBi slopes", "formula", ALIBI, values=-slopes(found.heads)[:, None] * np.abs(distances))]
    if encoding == "t5":
        buckets, furthest = int(found.parameters["bias"]["shape"][0]), float(np.abs(distances).max(initial=0))
        directed = buckets if found.causal else buckets // 2
        steps = bucket_steps(directed, int(found.parameters["max_distance"]), furthest)
        return [Reference("T5 buckets", "steps", T5, distances=_both_sides(steps, found.causal, distances))]
    bound = _bound(found, distances, component)
    return [] if bound is None else [bound]


def slopes(heads: int) -> Float64[np.ndarray, " heads"]:
    """Those of the largest power of 2 up to `heads`; then every other one of twice as many."""
    power = 1 << int(log2(heads))
    first = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    rest = [2.0 ** (-8 * h / (2 * power)) for h in range(1, 2 * power, 2)]
    return np.array((first + rest)[:heads])


def bucket_steps(directed: int, max_distance: int, furthest: float) -> Int64[np.ndarray, " steps"]:
    """The least whole distance of each of a direction's buckets but the first, up to `furthest`.

    Half of them hold one distance each; of the other n, bucket t begins where
    log(d / exact) / log(max_distance / exact) reaches t / n: in whole numbers, where d^n exact^t >= max^t exact^n.
    """
    exact = directed // 2
    most, n = max(max_distance, exact + 1), directed - exact
    steps = list(range(1, exact + 1))
    for t in range(1, n):
        low, high = steps[-1], most  # bucket t begins by `most` at the latest
        while low < high:
            middle = (low + high) // 2
            if middle**n * exact**t >= most**t * exact**n:
                high = middle
            else:
                low = middle + 1
        steps.append(low)
    return np.array([step for step in dict.fromkeys(steps) if step <= furthest], np.int64)


def _both_sides(
    steps: Int64[np.ndarray, " steps"], causal: bool, distances: Float64[np.ndarray, " distances"]
) -> Int64[np.ndarray, " both"]:
    if causal:
        return steps
    both: Int64[np.ndarray, " both"] = np.concatenate([-steps[::-1], steps])
    inside: Int64[np.ndarray, " both"] = both[(both >= distances.min(initial=0)) & (both <= distances.max(initial=0))]
    return inside


def _bound(found: PositionTables, distances: Float64[np.ndarray, " distances"], component: float) -> Reference | None:
    """For what turns pairs of components and does nothing else to them."""
    theta = _turning(found.tables)
    if theta is None:
        return None
    partial: Complex128[np.ndarray, "pairs distances"] = np.cumsum(np.exp(1j * theta[:, None] * distances), axis=0)
    sums = np.abs(partial).sum(0)
    factor = float(found.tables["scale"]) * float(found.tables["attention_factor"]) ** 2 * 2 * component**2
    values = np.tile(factor * (sums - len(theta)), (found.heads, 1))
    return Reference("RoPE bound", "upper bound", ROPE, values=values, relative=sums / len(theta))


def _turning(tables: Mapping[str, np.ndarray]) -> Float64[np.ndarray, " pairs"] | None:
    """Radians per position of each pair; None for an encoding that turns no pairs, or also stretches them."""
    names = ("theta", "partner", "attention_factor", "query_cos", "query_sin", "key_cos", "key_sin")
    if not all(name in tables for name in names):
        return None
    partner = tables["partner"]
    components = np.arange(len(partner))
    turned, first = partner != components, components < partner
    if not first.any():
        return None
    for side in ("query", "key"):
        cosines, sines = (tables[f"{side}_{of}"][:, turned].astype(np.float64) for of in ("cos", "sin"))
        if not np.allclose(np.hypot(cosines, sines), tables["attention_factor"], rtol=TURNED, atol=0):
            return None
    theta: Float64[np.ndarray, " pairs"] = tables["theta"][first].astype(np.float64)
    return theta


def _single(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, dtype=np.float32 if array.dtype.kind == "f" else None)
