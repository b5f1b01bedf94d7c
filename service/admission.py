"""What comes in, checked against the model and the limits: shapes, heads, positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Float64

from service.catalogue import Model
from service.encoding import Encoding
from service.errors import InvalidInput, PayloadTooLarge
from service.positions import Positions
from service.records import AttentionInput
from service.words import counted


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest request that is taken.

    `cells`: batch * heads * queries * keys, over all outputs of all encodings; each is 4 bytes of memory.
    `summaries`: heads that are summarised, of all results and all of a batch.
    `parameters`: numbers in one default parameter array.
    `position`: the largest, either side of 0; beyond it float64 angles are no longer right in float32.
    `text`: bytes of a text, before it becomes tokens.
    """

    tokens: int = 131_072
    width: int = 8_192
    heads: int = 1_024
    batch: int = 4_096
    cells: int = 1 << 27
    parameters: int = 1 << 24
    summaries: int = 1 << 14
    position: float = 1e9
    text: int = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """A request's arrays as the model takes them. `keys` is `queries`, the same object, in self-attention.

    `batch` is None where the request has no batch axis; the arrays have one always. `key_heads` is None where every
    query head has a key head of its own; else `keys` have that many heads, and the model takes `whole_keys` of them.
    """

    queries: Float32[np.ndarray, "batch queries *features"]
    keys: Float32[np.ndarray, "batch keys *features"]
    batch: int | None
    heads: int
    head_dim: int
    query_positions: Positions
    key_positions: Positions
    key_heads: int | None = None

    @property
    def rows(self) -> int:
        return self.batch or 1

    @property
    def cells(self) -> int:
        """Of one output."""
        return self.rows * self.heads * len(self.query_positions) * len(self.key_positions)


def whole_keys(
    keys: Float32[np.ndarray, "batch keys *features"], group: int
) -> Float32[np.ndarray, "batch keys *features"]:
    """Key head j in the place of each query head j*group .. j*group + group-1, as transformers' repeat_kv has it."""
    return keys if group == 1 else np.repeat(keys, group, axis=2)


def admit(
    input: AttentionInput, model: Model, heads: int | None, limits: Limits, key_heads: int | None = None
) -> Admitted:
    """Raises InvalidInput or PayloadTooLarge, naming what came and what is allowed.

    Positions default to 0 .. tokens - 1, of queries and of keys each on their own: queries sent apart are not taken for
    the last of the keys.
    """
    if key_heads is not None:
        _check_grouped(input, model)
    queries, keys, batch = _arrays(input, limits, grouped=key_heads is not None)
    heads, head_dim = _heads(model, heads, queries.shape[-1], limits)
    if key_heads is not None:
        _check_key_heads(keys, heads, head_dim, key_heads, limits)
    if model.width is None:
        alike = keys is queries
        queries = queries.reshape(*queries.shape[:2], heads, head_dim)
        keys = queries if alike else keys.reshape(*keys.shape[:2], key_heads or heads, head_dim)
    query_positions, key_positions = _positions(input, queries.shape[1], keys.shape[1], limits)
    if input.tokens is not None and len(input.tokens) != keys.shape[1]:
        what = "token" if input.embeddings is not None else "key"
        names = counted(len(input.tokens), "name")
        raise InvalidInput(
            f"{names} came under tokens for {counted(keys.shape[1], what)}; name each one or none",
            pointer="/tokens",
        )
    return Admitted(queries, keys, batch, heads, head_dim, query_positions, key_positions, key_heads)


Stack = Float32[np.ndarray, "batch tokens width"]


def _arrays(input: AttentionInput, limits: Limits, grouped: bool) -> tuple[Stack, Stack, int | None]:
    if input.embeddings is not None:
        if input.queries is not None or input.keys is not None:
            raise InvalidInput("send either embeddings or queries and keys, not both", pointer="/embeddings")
        stack = _stack("embeddings", input.embeddings, limits)
        return stack, stack, None if input.embeddings.ndim == 2 else len(stack)
    if input.queries is None or input.keys is None:
        sent = "only queries" if input.queries is not None else "only keys" if input.keys is not None else "neither"
        raise InvalidInput(f"send embeddings, or both queries and keys; {sent} came", pointer="")
    queries, keys = _stack("queries", input.queries, limits), _stack("keys", input.keys, limits)
    if input.queries.ndim != input.keys.ndim or len(queries) != len(keys):
        raise InvalidInput(
            f"queries {list(input.queries.shape)} and keys {list(input.keys.shape)} must have the same batch",
            pointer="/keys",
        )
    if queries.shape[-1] != keys.shape[-1] and not grouped:
        raise InvalidInput(
            f"queries are {queries.shape[-1]} wide, but keys are {keys.shape[-1]} wide; both must have the same width, "
            "unless key_heads says how many heads the keys have",
            pointer="/keys",
        )
    return queries, keys, None if input.queries.ndim == 2 else len(queries)


def _stack(name: str, array: np.ndarray, limits: Limits) -> Stack:
    if array.ndim not in (2, 3):
        raise InvalidInput(
            f"{name} must be [tokens, width] or [batch, tokens, width], but have shape {list(array.shape)}",
            pointer=f"/{name}",
        )
    if 0 in array.shape:
        raise InvalidInput(f"{name} are empty: their shape is {list(array.shape)}", pointer=f"/{name}")
    stack = np.ascontiguousarray(array if array.ndim == 3 else array[None], dtype=np.float32)
    fixes = {
        "batch": "send several requests",
        "tokens": "send fewer, or a part of the rows as queries against a part of the keys",
        "width": "send narrower embeddings",
    }
    for axis, size in zip(("batch", "tokens", "width"), stack.shape, strict=True):
        limit = getattr(limits, axis)
        if size > limit:
            what = (
                f"a batch of {size:,}"
                if axis == "batch"
                else f"{axis} {size:,}"
                if axis == "width"
                else f"{size:,} tokens"
            )
            raise PayloadTooLarge(
                f"{name} have {what}; the limit is {limit:,}: {fixes[axis]}", pointer=f"/{name}", limit=limit
            )
    return stack


def _heads(model: Model, heads: int | None, width: int, limits: Limits) -> tuple[int, int]:
    """Heads and head_dim."""
    if model.width is not None and model.heads is not None and model.head_dim is not None:
        if width != model.width:
            raise InvalidInput(f"model {model.name!r} takes embeddings of width {model.width}, but width {width} came")
        if heads is not None and heads != model.heads:
            raise InvalidInput(
                f"model {model.name!r} has {model.heads} heads, so heads={heads} cannot be asked for; leave heads out",
                pointer="query:heads",
            )
        return model.heads, model.head_dim
    heads = 1 if heads is None else heads
    if heads < 1 or width % heads:
        allowed = [divisor for divisor in _divisors(width) if divisor <= limits.heads]
        raise InvalidInput(
            f"width {width} cannot be split into {heads} heads; heads may be {_listed(allowed)}",
            pointer="query:heads",
            allowed=allowed,
        )
    if heads > limits.heads:
        raise PayloadTooLarge(
            f"{heads:,} heads were asked for; the limit is {limits.heads:,}: ask for fewer",
            pointer="query:heads",
            limit=limits.heads,
        )
    return heads, width // heads


def _check_grouped(input: AttentionInput, model: Model) -> None:
    """Whether keys may have heads of their own number at all."""
    if model.width is not None:
        raise InvalidInput(
            f"model {model.name!r} makes its own keys, so key_heads cannot be asked for; leave key_heads out",
            pointer="query:key_heads",
        )
    if input.embeddings is not None:
        raise InvalidInput(
            "key_heads needs queries and keys of different width, but embeddings came, which are both; send queries "
            "[queries, heads x head_dim] and keys [keys, key_heads x head_dim], or leave key_heads out",
            pointer="query:key_heads",
        )


def _check_key_heads(keys: Stack, heads: int, head_dim: int, key_heads: int, limits: Limits) -> None:
    if key_heads < 1 or heads % key_heads:
        allowed = _divisors(heads)
        raise InvalidInput(
            f"{heads} query heads cannot share {key_heads} key heads evenly; under heads={heads}, key_heads may be "
            f"{_listed(allowed)}",
            pointer="query:key_heads",
            allowed=allowed,
        )
    width = key_heads * head_dim
    if keys.shape[-1] != width:
        raise InvalidInput(
            f"keys are {keys.shape[-1]} wide, but {key_heads} key heads of head_dim {head_dim}, which is that of the "
            f"queries, are {width} wide",
            pointer="/keys",
        )
    numbers = keys.size * (heads // key_heads)
    if numbers > limits.cells:
        raise PayloadTooLarge(
            f"keys {list(keys.shape)}, repeated for {heads // key_heads} query heads each, are {numbers:,} numbers; "
            f"the limit is {limits.cells:,}: send fewer keys, or fewer heads at once",
            pointer="/keys",
            limit=limits.cells,
        )


def _positions(input: AttentionInput, queries: int, keys: int, limits: Limits) -> tuple[Positions, Positions]:
    both = input.positions
    if both is not None:
        if input.embeddings is None:
            raise InvalidInput(
                "positions are those of embeddings; with queries and keys, send query_positions and key_positions",
                pointer="/positions",
            )
        if input.query_positions is not None or input.key_positions is not None:
            raise InvalidInput(
                "send either positions (of queries and keys alike) or query_positions and key_positions, not both",
                pointer="/positions",
            )
        positions = _checked("positions", both, keys, "token", limits)
        return positions, positions
    return (
        Positions.first(queries)
        if input.query_positions is None
        else _checked("query_positions", input.query_positions, queries, "query", limits),
        Positions.first(keys)
        if input.key_positions is None
        else _checked("key_positions", input.key_positions, keys, "key", limits),
    )


def _checked(name: str, values: Float64[np.ndarray, " tokens"], count: int, what: str, limits: Limits) -> Positions:
    if values.ndim != 1:
        raise InvalidInput(
            f"{name} must be one list of {count} numbers for the whole batch, but have shape {list(values.shape)}",
            pointer=f"/{name}",
        )
    if len(values) != count:
        came = counted(len(values), name.removesuffix("s"))
        raise InvalidInput(f"{came} came for {counted(count, what)}; send one for each", pointer=f"/{name}")
    positions = Positions.of(values)
    if not max(-positions.smallest, positions.largest) <= limits.position:  # so that NaN is refused too
        index = int(np.argmax(~(np.abs(positions.values) <= limits.position)))
        raise InvalidInput(
            f"{name}[{index}] is {values[index]:g}; allowed: {-limits.position:,.0f} to {limits.position:,.0f}",
            pointer=f"/{name}/{index}",
            limit=limits.position,
        )
    return positions


def check(encoding: Encoding, admitted: Admitted, causal: bool, model: Model) -> None:
    """Whether this encoding can serve what was admitted. Raises InvalidInput saying why not and what to do."""
    if encoding.causal == "required" and not causal:
        raise InvalidInput(
            f"{encoding.id} is defined for causal attention only; add causal=true or leave {encoding.id} out",
            pointer="query:causal",
        )
    heads, head_dim = admitted.heads, admitted.head_dim
    width = model.width or heads * head_dim
    if encoding.even_head_dim and head_dim % 2:
        fitting = [divisor for divisor in _divisors(width) if (width // divisor) % 2 == 0]
        others = ", ".join(other.id for other in model.encodings.values() if not other.even_head_dim)
        fix = (
            f"heads may be {_listed(fitting)}"
            if fitting
            else "the width is odd, so no number of heads helps: append a column of zeros to the embeddings"
        )
        raise InvalidInput(
            f"{encoding.id} needs an even head_dim, but width {width} / heads {heads} = {head_dim} is odd; {fix}"
            + (f" (or ask for {others}, which take any)" if others else ""),
            pointer="query:heads" if fitting else "/embeddings",
        )
    if encoding.even_width and width % 2:
        raise InvalidInput(
            f"{encoding.id} needs an even width, but width {width} came; append a column of zeros to the embeddings",
            pointer="/embeddings",
        )
    named = [("query_positions", admitted.query_positions), ("key_positions", admitted.key_positions)]
    if admitted.query_positions is admitted.key_positions:
        named = [("positions", admitted.query_positions)]
    for name, positions in named:
        _check_positions(encoding, name, positions)


def _check_positions(encoding: Encoding, name: str, positions: Positions) -> None:
    rules = encoding.positions
    index = positions.fractional() if rules.integer else None
    if index is not None:
        raise InvalidInput(
            f"{encoding.id} takes whole positions only, but {name}[{index}] is {positions.values[index]:g}; round it",
            pointer=f"/{name}/{index}",
        )
    if rules.minimum is not None and positions.smallest < rules.minimum:
        index = int(np.argmin(positions.values))
        raise InvalidInput(
            f"{encoding.id} takes positions from {rules.minimum:g} on, but {name}[{index}] is {positions.smallest:g}; "
            "shift all positions",
            pointer=f"/{name}/{index}",
            minimum=rules.minimum,
        )
    if rules.maximum is not None and positions.largest > rules.maximum:
        index = int(np.argmax(positions.values))
        raise InvalidInput(
            f"{encoding.id} takes positions up to {rules.maximum:g}, but {name}[{index}] is {positions.largest:g}; "
            "send smaller positions or fewer tokens",
            pointer=f"/{name}/{index}",
            limit=rules.maximum,
        )


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _listed(numbers: Sequence[int]) -> str:
    shown = [str(number) for number in numbers[:24]]
    return ", ".join(shown) + (", ..." if len(numbers) > 24 else "")
