"""A checkpoint's rotary settings as an encoding: `service.rope_config`'s reading of config.json, the one there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from models.checkpoints.errors import CheckpointError
from models.checkpoints.layer import Positional, Value
from models.checkpoints.source import Config
from models.encodings import ENCODINGS
from models.encodings.card import Card, Order, Parameter
from models.modifiers import SCALE, SOFTCAP
from service.errors import ServiceError
from service.rope_config import RopeConfig


@dataclass(frozen=True)
class Rotating:
    """A rotary encoding with the checkpoint's parameters, and the modifiers that stand in the same configuration."""

    positional: Positional
    scale: float | None
    softcap: float | None


def rotary(config: Config, head_dim: int, layer_type: str | None = None) -> Rotating:
    """The rotation of one layer type (`full_attention`), or of all layers. Raises CheckpointError."""
    try:
        read = RopeConfig.read(dict(config.values), head_dim)
    except ServiceError as error:
        raise CheckpointError(f"the rotary settings of {config.name} cannot be read: {error.detail}") from error
    rotations = {rotation.layer_type: rotation for rotation in read.rotations}
    rotation = rotations.get(layer_type) or rotations.get(None)
    if rotation is None:
        raise CheckpointError(
            f"the rotary settings of {config.name} are for {', '.join(map(str, rotations))}, but this layer is "
            f"{layer_type or 'of no named type'}"
        )
    encoding = next(encoding for encoding in ENCODINGS if encoding.card.id == rotation.encoding)
    known = {parameter.name: parameter for parameter in (*encoding.card.parameters, SCALE, SOFTCAP)}
    values = {name: parsed(known[name], text) for name, text in rotation.scalars.items()}
    for order in encoding.card.orders:
        _check_order(order, encoding.card, values, config.name)
    modifiers: dict[str, float | None] = {}
    for name in (SCALE.name, SOFTCAP.name):
        value = values.pop(name, None)
        assert value is None or isinstance(value, float)
        modifiers[name] = value
    return Rotating(Positional(encoding, values), modifiers[SCALE.name], modifiers[SOFTCAP.name])


def _check_order(order: Order, card: Card, values: Mapping[str, Value], name: str) -> None:
    defaults = {parameter.name: parameter.default for parameter in card.parameters}
    less, more = (values.get(one, defaults[one]) for one in (order.less, order.more))
    assert isinstance(less, int | float)
    assert isinstance(more, int | float)
    if less > more or (less == more and order.strict):
        raise CheckpointError(
            f"{order.more} in the rotary settings of {name} is {more:g}; {card.id} needs "
            f"{'more than' if order.strict else 'at least'} {order.less}, which is {less:g}"
        )


def parsed(parameter: Parameter, text: str) -> Value:
    """A parameter's value as a query string writes it."""
    match parameter.kind:
        case "number":
            return float(text)
        case "integer":
            return int(float(text))
        case "flag":
            return text == "true"
        case "numbers":
            return [float(part) for part in text.split(",")]
        case _:
            return text
