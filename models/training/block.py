"""One transformer block over bytes, under any encoding: x + attention, then x + MLP, then the next byte's distribution.

    h = x + W_o attention(x),  h' = h + MLP(norm(h)),  p = softmax(W norm(h'))

Attention reads the embeddings as they are, so a vector of the table is just what the served graphs take.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

from models.attention import PositionTables
from models.encodings import ENCODINGS
from models.encodings.card import Initial, Parameter
from models.encodings.encoding import Encoding
from models.family import seed_of
from models.modifiers import MODIFIERS
from models.projections import Linear
from models.training.recipe import BYTES, DEFAULTS, FROM_ZERO, HEAD_DIM, HEADS, HIDDEN, ROWS, UNUSED, WIDTH

BY_ID: Mapping[str, Encoding] = {encoding.card.id: encoding for encoding in ENCODINGS}
SIZES = {"heads": HEADS, "head_dim": HEAD_DIM, "width": WIDTH}


class Block(nn.Module):
    """The weights that all encodings share, and the arrays that each has to itself (`positional`, by dotted name)."""

    def __init__(self, encodings: tuple[str, ...], seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embeddings = nn.Parameter(torch.randn(BYTES, WIDTH, generator=generator))
        self.attention = Linear(WIDTH, HEADS, HEAD_DIM)
        self.w_o = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)
        self.norm, self.last_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.head = nn.Linear(WIDTH, BYTES)
        for name, weight in self.named_parameters():
            if weight.ndim == 2 and name != "embeddings":
                bound = weight.shape[1] ** -0.5
                nn.init.uniform_(weight, -bound, bound, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)
        self.encodings = encodings
        # A name of a module's parameter may hold no dot.
        self.positional = nn.ParameterDict(
            {
                f"{encoding}/{parameter.name}": nn.Parameter(first(encoding, parameter))
                for encoding in encodings
                for parameter in BY_ID[encoding].card.parameters
                if parameter.kind == "array" and f"{encoding}.{parameter.name}" not in UNUSED
            }
        )

    def parameters_of(self, encoding: str, changed: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Every parameter of an encoding: trained arrays, and scalars as the recipe or the card has them."""
        values: dict[str, Tensor] = {}
        for parameter in (*BY_ID[encoding].card.parameters, *MODIFIERS):
            if f"{encoding}/{parameter.name}" in self.positional:
                values[parameter.name] = self.positional[f"{encoding}/{parameter.name}"]
            elif parameter.kind == "array":
                unused = first(encoding, parameter) if parameter.initial else torch.zeros(HEADS)
                values[parameter.name] = unused.to(self.embeddings.dtype)
            else:
                values[parameter.name] = scalar(parameter, DEFAULTS.get(encoding, {}).get(parameter.name))
        return values | dict(changed or {})

    def tables(self, encoding: str, length: int, changed: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """The position tables of 0 .. length - 1 under a causal mask; `changed` are parameters in place of its own."""
        parameters = self.parameters_of(encoding, changed)
        positions = torch.arange(length, dtype=torch.float64)
        dtype = self.embeddings.dtype
        half = PositionTables(self.attention, BY_ID[encoding], (HEADS, HEAD_DIM, WIDTH), dtype)
        at = half.at(positions, positions, torch.tensor(True), torch.empty(HEADS, HEAD_DIM), parameters["scale"])
        return BY_ID[encoding].tables(at, parameters)

    def attend(self, encoding: str, x: Float[Tensor, "batch tokens width"], tables: Mapping[str, Tensor]) -> Tensor:
        """What attention returns, [batch, tokens, heads, head_dim], where a query sees no later key."""
        scheme = BY_ID[encoding]
        q, k, v, tables = scheme.projected(self.attention, x, x, tables)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = scheme.scores(q, k, tables).masked_fill(later, float("-inf")).softmax(-1)
        return scheme.output(weights, v, tables).transpose(1, 2)

    def logits(
        self, x: Float[Tensor, "batch tokens width"], attended: Float[Tensor, "batch tokens heads head_dim"]
    ) -> Float[Tensor, "batch tokens bytes"]:
        """Of the next byte, from the embeddings and what attention returned of them."""
        h = x + self.w_o(attended.flatten(2))
        h = h + self.down(gelu(self.up(self.norm(h))))
        logits: Tensor = self.head(self.last_norm(h))
        return logits

    def loss(
        self,
        encoding: str,
        read: Int64[Tensor, "batch tokens"],
        following: Int64[Tensor, "batch tokens"],
        tables: Mapping[str, Tensor] | None = None,
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy of the bytes that follow, in nats."""
        x = self.embeddings[read]
        attended = self.attend(encoding, x, tables or self.tables(encoding, read.shape[1]))
        return cross_entropy(self.logits(x, attended).flatten(0, 1), following.flatten())


def first(encoding: str, parameter: Parameter) -> Tensor:
    """What training starts from: the card's own start, drawn from the seed that the exported default has, or zeros."""
    sizes = {**SIZES, **{name: size.default for name, size in parameter.sizes.items()}, **ROWS.get(encoding, {})}
    shape = [sizes[size] if isinstance(size, str) else size for size in parameter.shape]
    if f"{encoding}.{parameter.name}" in FROM_ZERO or parameter.initial is None:
        return torch.zeros(shape)
    return drawn(parameter.initial, shape, torch.Generator().manual_seed(seed_of(encoding, parameter.name)))


def drawn(initial: Initial, shape: list[int], generator: torch.Generator) -> Tensor:
    match initial.distribution:
        case "normal":
            return initial.mean + initial.deviation * torch.randn(shape, generator=generator)
        case "uniform":
            return initial.low + (initial.high - initial.low) * torch.rand(shape, generator=generator)
        case "xavier_uniform":
            return nn.init.xavier_uniform_(torch.empty(shape), generator=generator)
        case "zeros":
            return torch.zeros(shape)
        case "ones":
            return torch.ones(shape)


def scalar(parameter: Parameter, given: float | list[float] | None) -> Tensor:
    """A parameter that is no array, as the positions graph is fed with it; absent ones are NaN."""
    value = parameter.default if given is None else given
    if parameter.kind == "choice":
        return torch.tensor(parameter.choices.index(str(value)))
    dtype = {"integer": torch.int64, "flag": torch.bool}.get(parameter.kind, torch.float64)
    return torch.tensor(float("nan") if value is None else value, dtype=dtype)
