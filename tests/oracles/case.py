"""One random question to an encoding, and the domain that an oracle can answer it in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float64

Embeddings = Float64[np.ndarray, "batch tokens heads head_dim"]
Places = Float64[np.ndarray, " tokens"]
Style = Literal["from 0", "offset", "gaps", "scattered", "negative", "fractional"]
EVERYWHERE: tuple[Style, ...] = ("from 0", "offset", "gaps", "scattered", "negative", "fractional")


@dataclass(frozen=True)
class Case:
    """What is asked.

    Embeddings and arrays hold float32 values in float64, so that the served graph and the oracle see the same numbers.
    """

    encoding: str
    queries: Embeddings
    keys: Embeddings
    m: Places
    n: Places
    causal: bool
    visible: Bool[np.ndarray, "#batch #heads queries keys"]
    parameters: Mapping[str, Any]

    @property
    def heads(self) -> int:
        return int(self.queries.shape[2])

    @property
    def head_dim(self) -> int:
        return int(self.queries.shape[3])

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    def number(self, name: str) -> float:
        return float(self.parameters[name])

    def array(self, name: str) -> Float64[np.ndarray, "..."]:
        array: np.ndarray = self.parameters[name]
        return array

    def given(self, name: str) -> Any:
        """An optional parameter, None where the case does not give it."""
        return self.parameters.get(name)

    def with_parameters(self, **parameters: Any) -> Case:
        return replace(self, parameters={**self.parameters, **parameters})


Draw = Callable[[np.random.Generator, "Sizes"], Any]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a case, for parameters whose shape or range depends on them."""

    heads: int
    head_dim: int
    furthest: float
    """the largest position"""

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


@dataclass(frozen=True)
class Domain:
    """The cases that an oracle can answer; a library's module is made for fewer than the formula is.

    Scattered positions are out of order, and some occur twice. Odd widths are left out where the encoding takes none.

    `parameters` replaces the draw of a parameter: a constant, or a function of a generator and the sizes. An optional
    parameter that it does not name is not given.
    """

    description: str
    self_attention: bool = False
    positions: tuple[Style, ...] = EVERYWHERE
    causal: bool | None = None
    longest: int = 12
    heads: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    head_dims: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 16, 32, 64)
    parameters: Mapping[str, Any] = field(default_factory=dict)


def draw(about: Mapping[str, Any], domain: Domain, seed: int) -> Case:
    """A random case of an encoding, described by its exported metadata, inside an oracle's domain."""
    rng = np.random.default_rng([seed, *about["encoding"].encode()])
    odd = (1,) if about["even_head_dim"] else ()
    heads = int(rng.choice(domain.heads))
    if about["even_width"] and heads % 2:
        odd = (1,)
    head_dim = int(rng.choice([d for d in domain.head_dims if d % 2 not in odd]))
    batch = int(rng.integers(1, 3))
    keys = int(rng.integers(1, domain.longest + 1))
    queries = keys if domain.self_attention else int(rng.integers(1, domain.longest + 1))
    n = _positions(rng, about, domain, keys)
    m = n if domain.self_attention else _positions(rng, about, domain, queries)
    causal = bool(rng.random() < 0.5) if domain.causal is None else domain.causal
    causal = causal or about["causal"] == "required"
    x_n = _float32(rng.normal(size=(batch, keys, heads, head_dim)))
    x_m = x_n if domain.self_attention else _float32(rng.normal(size=(batch, queries, heads, head_dim)))
    visible = (n[None, :] <= m[:, None]) if causal else np.ones((queries, keys), bool)
    visible = visible[None, None]
    if rng.random() < 0.5:
        hidden = rng.random((batch, int(rng.choice((1, heads))), queries, keys)) < 0.2
        if domain.self_attention:
            hidden &= ~np.eye(keys, dtype=bool)  # libraries answer a row that sees nothing each in its own way
        visible = visible & ~hidden
    sizes = Sizes(heads, head_dim, max(m.max(), n.max()))
    parameters = {p["name"]: _parameter(rng, p, sizes, domain.parameters.get(p["name"])) for p in about["parameters"]}
    return Case(about["encoding"], x_m, x_n, m, n, causal, visible, parameters)


def _positions(rng: np.random.Generator, about: Mapping[str, Any], domain: Domain, tokens: int) -> Places:
    rule = about["positions"]
    allowed = [
        style
        for style in domain.positions
        if not (style == "fractional" and rule["integer"]) and not (style == "negative" and rule["minimum"] is not None)
    ]
    start = float(rng.integers(0, 200))
    steps = np.arange(tokens, dtype=np.float64)
    match rng.choice(allowed):
        case "offset":
            return start + steps
        case "gaps":
            return np.sort(rng.choice(300, tokens, replace=False)).astype(np.float64)
        case "scattered":
            return rng.integers(0, 60, tokens).astype(np.float64)
        case "negative":
            return steps - start
        case "fractional":
            return np.sort(rng.uniform(0, 30, tokens))
        case _:
            return steps


def _parameter(rng: np.random.Generator, about: Mapping[str, Any], sizes: Sizes, instead: Any) -> Any:
    if callable(instead):
        value = instead(rng, sizes)
        return _float32(value) if about["kind"] == "array" and value is not None else value
    if instead is not None:
        return instead
    if about["default"] is None and about["initial"] is None:
        return None
    match about["kind"]:
        case "flag":
            return bool(rng.random() < 0.5)
        case "choice":
            return str(rng.choice(about["choices"]))
        case "array":
            return _float32(0.5 * rng.normal(size=[_size(rng, axis, about, sizes) for axis in about["shape"]]))
        case "number" | "integer":
            value = _near(rng, about)
            return int(value) if about["kind"] == "integer" else value
        case kind:
            raise ValueError(f"{about['name']}: give the domain a draw for a parameter of kind {kind}")


def _near(rng: np.random.Generator, about: Mapping[str, Any]) -> float:
    """The default half the time, else a value within a factor of ten of it that the card allows."""
    default = about["default"]
    if rng.random() < 0.5:
        return float(default)
    low, high = max(default / 10, about["minimum"]), min(default * 10, about["maximum"])
    return float(np.exp(rng.uniform(np.log(low), np.log(high)))) if low > 0 else float(rng.uniform(low, high))


def _size(rng: np.random.Generator, axis: int | str, about: Mapping[str, Any], sizes: Sizes) -> int:
    if isinstance(axis, int):
        return axis
    if axis == "positions":
        return int(max(sizes.furthest, 0)) + 1 + int(rng.integers(0, 3))
    if axis in about["sizes"]:
        size = about["sizes"][axis]
        if sizes.width <= 64 and rng.random() < 0.1:
            return int(size["default"])
        least = -(-(size["minimum"] - size["offset"]) // size["multiple"])
        return int(size["multiple"] * (least + rng.integers(0, 10)) + size["offset"])
    return int(getattr(sizes, axis))


def _float32(values: Any) -> Float64[np.ndarray, "..."]:
    return np.asarray(values).astype(np.float32).astype(np.float64)


def sometimes(draw: Draw) -> Draw:
    """An optional parameter: given in a quarter of the cases."""
    return lambda rng, sizes: draw(rng, sizes) if rng.random() < 0.25 else None


def log_uniform(low: float, high: float) -> Draw:
    """A number whose logarithm is uniform."""
    return lambda rng, sizes: float(np.exp(rng.uniform(np.log(low), np.log(high))))


def share(*fractions: float) -> Draw:
    """One of these values."""
    return lambda rng, sizes: float(rng.choice(fractions))


# What every encoding may carry besides.
MODIFIERS: Mapping[str, Draw] = {
    "scale": sometimes(log_uniform(0.05, 2)),
    "softcap": sometimes(log_uniform(1, 50)),
    "sinks": sometimes(lambda rng, sizes: rng.normal(size=sizes.heads)),
}


def anything(
    parameters: Mapping[str, Any] | None = None, but: str = "future keys, either mask", **changes: Any
) -> Domain:
    """What a formula covers: every case there is."""
    return Domain(
        f"any queries, keys, positions and modifiers; {but}", parameters={**MODIFIERS, **(parameters or {})}, **changes
    )
