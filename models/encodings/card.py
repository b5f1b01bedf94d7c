"""The card of an encoding: what a reader must know to use its numbers. It travels in the exported file's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["number", "numbers", "integer", "flag", "choice", "array"]


@dataclass(frozen=True)
class Paper:
    """Where the encoding was published. `arxiv` is an identifier, not an address."""

    title: str
    authors: str
    year: int
    arxiv: str | None = None


@dataclass(frozen=True)
class Size:
    """What one axis of a parameter array may measure: `multiple * i + offset`, between `minimum` and `maximum`."""

    default: int
    minimum: int
    maximum: int
    multiple: int = 1
    offset: int = 0


@dataclass(frozen=True)
class Initial:
    """How a learned parameter starts when the request brings none; its seed is set at export from its full name."""

    distribution: Literal["normal", "uniform", "xavier_uniform", "zeros", "ones"]
    mean: float = 0.0
    deviation: float = 1.0
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class Parameter:
    """One parameter of an encoding. `shape` names axes by the request's sizes (`heads`, `head_dim`, `width`,
    `positions`) or by `sizes`.
    """

    name: str
    kind: Kind
    description: str
    default: float | int | bool | str | list[float] | None = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    shape: tuple[int | str, ...] = ()
    sizes: Mapping[str, Size] = field(default_factory=dict)
    initial: Initial | None = None


@dataclass(frozen=True)
class Term:
    """One addend of the score, [batch, heads, queries, keys]."""

    name: str
    description: str


@dataclass(frozen=True)
class Order:
    """Two number parameters without which the formula means nothing unless `less` is less than `more`, or where not
    `strict` at most as much.
    """

    less: str
    more: str
    strict: bool = True


@dataclass(frozen=True)
class PositionRule:
    """Which positions an encoding takes. `rows_of` names the parameter table whose rows bound the largest position."""

    integer: bool = False
    minimum: float | None = None
    rows_of: str | None = None


@dataclass(frozen=True)
class Invariants:
    """What provably holds for the scores; each is a test.

    shift: unchanged when all positions move together. prefix: under a causal mask, unchanged for the first tokens
    when more are appended. permutation: permuting tokens and leaving positions permutes the scores. toeplitz: equal
    tokens give scores that depend on m - n alone. diagonal: S(m, m) is the plain scaled q.k. far_share: all far
    distances share one bias.
    """

    shift: bool = False
    prefix: bool = True
    permutation: bool = False
    toeplitz: bool = False
    diagonal: bool = False
    far_share: bool = False


@dataclass(frozen=True)
class Card:
    """Identity, formula, source, parameters and conventions of one encoding."""

    id: str
    title: str
    summary: str
    plain: str
    latex: str
    paper: Paper | None
    terms: tuple[Term, ...]
    conventions: Mapping[str, str]
    parameters: tuple[Parameter, ...] = ()
    orders: tuple[Order, ...] = ()
    aliases: tuple[str, ...] = ()
    positions: PositionRule = PositionRule()
    invariants: Invariants = Invariants()
    causal: Literal["either", "required"] = "either"
    even_head_dim: bool = False
    even_width: bool = False
    seed_article: str | None = None

    def metadata(self) -> dict[str, Any]:
        """The card as JSON-able metadata, in the exported files' spelling."""
        card = asdict(self)
        card["encoding"] = card.pop("id")
        if not self.orders:
            del card["orders"]
        card["formula"] = {"plain": card.pop("plain"), "latex": card.pop("latex")}
        return card
