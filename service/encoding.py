"""One encoding as its two exported files describe it. docs/architecture.md says what each field means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from service.engine.job import Graph
from service.masks import Window

FORMAT = 1

# The sizes of a request that a parameter's shape may name; any other name is a size of the encoding's own.
REQUEST_SIZES = ("heads", "head_dim", "width", "positions")

Scalar = bool | int | float | str
Axis = int | str


@dataclass(frozen=True, slots=True)
class Term:
    """One additive part of the score; `term.<name>` is its output."""

    name: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Size:
    """What an axis of an array parameter may be: `multiple * i + offset` from `minimum` to `maximum`."""

    default: int | None = None
    minimum: int = 1
    maximum: int | None = None
    multiple: int = 1
    offset: int = 0

    def allows(self, size: int) -> bool:
        within = size >= self.minimum and (self.maximum is None or size <= self.maximum)
        return within and (size - self.offset) % self.multiple == 0

    def __str__(self) -> str:
        text = f"at least {self.minimum}" if self.maximum is None else f"{self.minimum} to {self.maximum}"
        if self.multiple > 1:
            text += f", a multiple of {self.multiple}" + (f" plus {self.offset}" if self.offset else "")
        return text


@dataclass(frozen=True, slots=True)
class Initial:
    """How the default of an array parameter is drawn."""

    distribution: Literal["normal", "uniform", "xavier_uniform", "zeros", "ones"]
    mean: float = 0.0
    deviation: float = 1.0
    low: float = -1.0
    high: float = 1.0
    seed: int = 0

    def __str__(self) -> str:
        match self.distribution:
            case "normal":
                return f"normal({self.mean:g}, {self.deviation:g}), seed {self.seed}"
            case "uniform":
                return f"uniform({self.low:g}, {self.high:g}), seed {self.seed}"
            case "xavier_uniform":
                return f"xavier_uniform, seed {self.seed}"
            case constant:
                return constant


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an encoding, an input of its positions graph.

    A number without a default and an array without `initial` are optional: absent, they are fed as NaN and as zeros.
    """

    name: str
    kind: Literal["number", "integer", "flag", "choice", "numbers", "array"]
    description: str = ""
    default: Scalar | tuple[float, ...] | None = None
    minimum: int | float | None = None
    maximum: int | float | None = None
    choices: tuple[str, ...] = ()
    shape: tuple[Axis, ...] = ()
    sizes: Mapping[str, Size] = field(default_factory=dict)
    initial: Initial | None = None

    def __post_init__(self) -> None:
        """Raises ValueError where the parts do not fit together."""
        if self.kind == "choice" and self.default not in self.choices:
            raise ValueError(f"parameter {self.name!r}: the default {self.default!r} is none of {list(self.choices)}")
        wanted: dict[str, type | tuple[type, ...]] = {"number": (int, float), "integer": int, "flag": bool}
        optional = self.kind == "number" and self.default is None
        if self.kind in wanted and not optional and not isinstance(self.default, wanted[self.kind]):
            raise ValueError(f"parameter {self.name!r}: {self.default!r} is no default of kind {self.kind!r}")
        if self.kind == "array" and not self.shape:
            raise ValueError(f"parameter {self.name!r}: an array needs a `shape`")
        for axis in self.shape:
            if isinstance(axis, str) and axis not in REQUEST_SIZES and axis not in self.sizes:
                raise ValueError(f"parameter {self.name!r}: nothing says how large the axis {axis!r} is")
        if self.kind in ("number", "integer") and isinstance(self.default, int | float):
            low, high = self.minimum, self.maximum
            if (low is not None and self.default < low) or (high is not None and self.default > high):
                raise ValueError(f"parameter {self.name!r}: the default {self.default} is outside {low} to {high}")


@dataclass(frozen=True, slots=True)
class Order:
    """Two number parameters of which `less` must be less than `more`, or where not `strict` at most as much."""

    less: str
    more: str
    strict: bool = True


@dataclass(frozen=True, slots=True)
class PositionRules:
    """Which positions an encoding takes. `rows_of` names the array parameter that holds one row for each position."""

    integer: bool = False
    minimum: float | None = None
    maximum: float | None = None
    rows_of: str | None = None


@dataclass(frozen=True, slots=True)
class Paper:
    title: str
    authors: str = ""
    year: int | None = None
    arxiv: str | None = None


@dataclass(frozen=True, slots=True)
class PositionsGraph:
    """A positions graph on disk. All of `inputs` must be fed; what it computes depends on those in `reads` alone.

    Its outputs: `tables` (`table.<name>`), and `expected` (`expected.<parameter>`), how many entries a list must have.
    """

    path: Path
    digest: str
    inputs: tuple[str, ...]
    reads: frozenset[str]
    tables: tuple[str, ...]
    expected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Encoding:
    """One encoding of one model. `document` is the metadata as it was read, for whoever describes it.

    `heads`, `head_dim` and `width` are numbers for projected models and None for identity.
    """

    id: str
    model: str
    title: str
    outputs: tuple[str, ...]
    queries: tuple[Axis, ...]
    tables: Mapping[str, tuple[Axis, ...]]
    graph: Graph
    positions_graph: PositionsGraph
    document: Mapping[str, Any]
    summary: str = ""
    aliases: tuple[str, ...] = ()
    paper: Paper | None = None
    conventions: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[Term, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    orders: tuple[Order, ...] = ()
    fixed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of the arrays that other models take as parameters and that are part of this one."""
    switches: tuple[str, ...] = ()
    """Switches of the scores graph, each on where the parameter of its name is given."""
    positions: PositionRules = PositionRules()
    causal: Literal["either", "required"] = "either"
    default_causal: bool = False
    even_head_dim: bool = False
    even_width: bool = False
    heads: int | None = None
    head_dim: int | None = None
    width: int | None = None
    window: Window | None = None
    """What the layer sees at all; None: everything."""
    default: bool = False
    """Whether the model is served under this encoding unless the request names another."""

    @property
    def name(self) -> str:
        """The public name of the graph, `<model>.<encoding>`."""
        return self.graph.name

    @property
    def term_outputs(self) -> tuple[str, ...]:
        return tuple(f"term.{term.name}" for term in self.terms)

    def parameter(self, name: str) -> Parameter | None:
        return next((parameter for parameter in self.parameters if parameter.name == name), None)

    def brief(self) -> dict[str, Any]:
        """One line of `GET /encodings`."""
        return {
            "id": self.id,
            "title": self.title,
            "aliases": list(self.aliases),
            "summary": self.summary,
            "causal": self.causal,
            "even_head_dim": self.even_head_dim,
            "even_width": self.even_width,
            "parameters": [parameter.name for parameter in self.parameters],
            "terms": [term.name for term in self.terms],
        }

    def description(self) -> dict[str, Any]:
        """All of `GET /encodings/{id}`: the card, without what only the service reads."""
        inside = ("format", "graph", "encoding", "tables", "queries", "default")
        return {"id": self.id, **{name: value for name, value in self.document.items() if name not in inside}}
