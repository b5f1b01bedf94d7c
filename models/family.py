"""A family of exports: projections, sizes and default encoding under one name."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from models.encodings.card import Parameter
from models.projections import Identity, Projections


@dataclass(frozen=True)
class Family:
    """What is served under one name. `sizes` (heads, head_dim, width) is None where the request decides; `fixed` holds,
    for each encoding id, the parameters that are part of the model and so not inputs of the graph, `defaults` values
    other than the card's of those that are inputs.
    """

    name: str
    projections: Projections
    sizes: tuple[int, int, int] | None = None
    default_causal: bool = False
    default_encoding: str = "rope"
    fixed: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    defaults: Mapping[str, Mapping[str, float | int | bool | str | list[float]]] = field(default_factory=dict)
    conventions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Lines that take the place of a card's, or stand beside them, for each encoding id."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further metadata: weights digest, origin."""


IDENTITY = Family("identity", Identity())


def seed_of(encoding: str, parameter: str) -> int:
    """The seed of a learned parameter's default: a function of its full name, so that adding an encoding changes no
    other's default.
    """
    return zlib.crc32(f"{encoding}.{parameter}".encode())


def sample_of(parameter: Parameter, heads: int, head_dim: int, positions: int, generator: torch.Generator) -> Tensor:
    """A value of the parameter for tracing and for parity: for arrays noise large enough that a mistake shows.

    An optional number is absent, which is NaN.
    """
    if parameter.kind == "array":
        sizes = {"heads": heads, "head_dim": head_dim, "width": heads * head_dim}
        sizes |= {name: size.default for name, size in parameter.sizes.items()} | {"positions": positions}
        shape = [sizes[size] if isinstance(size, str) else size for size in parameter.shape]
        return 0.4 * torch.randn(shape, generator=generator)
    if parameter.kind == "numbers":
        return torch.linspace(1.0, 4.0, max(1, head_dim // 2), dtype=torch.float64)
    if parameter.kind == "choice":
        return torch.tensor(parameter.choices.index(str(parameter.default)))
    dtype = {"number": torch.float64, "integer": torch.int64, "flag": torch.bool}[parameter.kind]
    if parameter.default is None:
        return torch.tensor(float("nan"), dtype=dtype)
    return torch.tensor(parameter.default, dtype=dtype)
