"""Questions put to exported graphs by tests: with everything at its default unless said."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64

from tests.oracles.case import Case, Embeddings, Places
from tests.oracles.served import Served, served


def question(
    encoding: str,
    x: Embeddings,
    positions: Places | None = None,
    *,
    keys: Embeddings | None = None,
    key_positions: Places | None = None,
    causal: bool = False,
    to: Served | None = None,
    **parameters: Any,
) -> Case:
    """Self-attention of x at 0, 1, ... unless keys and positions are given; arrays that are not given are noise."""
    keys = x if keys is None else keys
    m = np.arange(x.shape[1], dtype=np.float64) if positions is None else np.asarray(positions, np.float64)
    n = np.arange(keys.shape[1], dtype=np.float64) if key_positions is None else np.asarray(key_positions, np.float64)
    n = m if key_positions is None and positions is not None and keys is x else n
    about = (to or served(encoding)).about
    causal = causal or about["causal"] == "required"
    visible = (n[None, :] <= m[:, None]) if causal else np.ones((len(m), len(n)), bool)
    case = Case(encoding, x, keys, m, n, causal, visible[None, None], {})
    defaults = {p["name"]: _default(p, case) for p in about["parameters"]}
    unknown = parameters.keys() - defaults.keys()
    if unknown:
        raise ValueError(f"{encoding} has no parameters {sorted(unknown)}")
    return case.with_parameters(**{**defaults, **parameters})


def noise(*shape: int, seed: int = 0) -> Float64[np.ndarray, "..."]:
    """Normal, of float32 values."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32).astype(np.float64)


def _default(about: dict[str, Any], case: Case) -> Any:
    if about["kind"] != "array" or about["initial"] is None:
        return about["default"]
    sizes = {"heads": case.heads, "head_dim": case.head_dim, "width": case.width}
    sizes["positions"] = int(max(case.m.max(), case.n.max())) + 1
    sizes |= {axis: size["default"] for axis, size in about["sizes"].items() if axis != "positions"}
    return 0.5 * noise(*(sizes[axis] if isinstance(axis, str) else axis for axis in about["shape"]), seed=1)
