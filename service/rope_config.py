"""A checkpoint's rotary configuration, as its config.json gives it, in the words of this service: which encoding each
layer type has, and with which parameters. Frequencies are not computed here: the exported graphs do that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.errors import InvalidInput
from service.rope_keys import Found, Keys, Remark, Scope, shown
from service.rope_language import Language
from service.rope_layer import Layer, Rotation
from service.rope_models import DEFAULT_SETTINGS, LAYER_TYPES, STILL
from service.rope_names import FRACTION, KNOWN, ONLY_SETTINGS, REASONS, SETTINGS, TEXT, THETA, TYPE, looks_rotary

__all__ = ["Remark", "RopeConfig", "Rotation"]

NOWHERE = Scope((), {})


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """A configuration that was read. `used`: key -> the parameters that it gave; `ignored`: the keys that have nothing
    to do with positions."""

    model_type: str | None
    rotations: tuple[Rotation, ...]
    used: Mapping[str, str]
    remarks: tuple[Remark, ...]
    ignored: tuple[str, ...] = ()

    @classmethod
    def read(cls, document: Any, head_dim: int | None = None) -> RopeConfig:
        """From a whole config.json, or from its `rope_scaling` or `rope_parameters` alone. Where several readings are
        possible, transformers' is taken. `head_dim` takes the place of what the configuration says.

        Raises InvalidInput for what cannot be read, and for what is needed and missing; UnknownName for a rope type.
        """
        if not isinstance(document, dict):
            raise InvalidInput(
                f"the body is {shown(document)}; it must be a config.json, or its rope_scaling or rope_parameters",
                pointer="",
            )
        keys = Keys()
        language = Language(keys, *_language_part(keys, document), head_dim)
        layers = _layers(language)
        if not layers:
            raise InvalidInput("each layer type is null: none of them turns", pointer=language.top.pointer)
        rotations = tuple(layer.read() for layer in layers)
        encodings = " and ".join(dict.fromkeys(rotation.encoding for rotation in rotations))
        return cls(language.model_type, rotations, keys.used, tuple(keys.remarks(encodings)), tuple(keys.ignored))


def _language_part(keys: Keys, document: dict[str, Any]) -> tuple[Scope, bool]:
    """The settings of the language model, and whether they are a part of a larger model's."""
    top, inside = keys.open((), document), False
    while inner := next((name for name in TEXT if isinstance(top.values.get(name), dict)), None):
        told = [name for name in top.values if name in KNOWN or name in REASONS or looks_rotary(name)]
        keys.explain_all((top,), told, f"stands outside {inner}, which is the language model")
        top, inside = keys.open((*top.path, inner), top.values[inner]), True
    return top, inside


def _layers(language: Language) -> list[Layer]:
    keys, top, model_type = language.keys, language.top, language.model_type or ""
    rope = _settings(language)

    def layer(name: str | None, settings: Scope, thetas: tuple[str, ...] = THETA, theta: float | None = None) -> Layer:
        return Layer(language, name, settings, thetas, theta)

    if names := _nested(rope, top):
        keys.layered = True
        return [layer(name, scope) for name, scope in _open_nested(keys, rope, names, rope is top)]
    old = LAYER_TYPES.get(model_type)
    if old is not None and rope is not top:
        keys.layered = True
        return [
            layer("full_attention", rope, (old.full,)),
            layer("sliding_attention", rope if old.both else NOWHERE, (old.sliding,), old.sliding_theta),
        ]
    default = DEFAULT_SETTINGS.get(model_type)
    if rope.values or default is None:
        return [layer(None, rope)]
    # A scope that was not opened: what it holds counts as nobody's key.
    supposed = Scope((SETTINGS[0],), default)
    keys.remark("default", top.key(SETTINGS[0]), f"transformers' default for {model_type} was taken: {default}")
    names = _nested(supposed, top)
    keys.layered = bool(names)
    return [layer(name, Scope((SETTINGS[0], name), default[name])) for name in names] or [layer(None, supposed)]


def _settings(language: Language) -> Scope:
    """The object with the rope settings: one of the configuration's, or the configuration itself, or an empty one."""
    keys, top = language.keys, language.top
    found = keys.find((top,), SETTINGS)
    if found:
        first, *others = found
        for other in others:
            keys.pass_over(other, first)
        if not isinstance(first.value, dict):
            first.refuse("an object or null")
        if first.value:
            return keys.settings(keys.open(first.path, first.value))
        keys.use(first.path, "encoding")
        return NOWHERE
    values = top.values
    if "rope_type" in values or ("type" in values and "model_type" not in values):
        return keys.settings(top)
    if any(name in values for name in ONLY_SETTINGS) or _nested(top, top):
        return keys.settings(top)
    still = STILL.get(language.model_type or "")
    if still is not None and not keys.find((top,), THETA):
        raise InvalidInput(
            f"{language.model_type} does not rotate its queries and keys, so there is nothing to resolve; its "
            f"positions are those of encoding={still}, or nearest to them",
            pointer=top.key_pointer("model_type"),
        )
    null = next((name for name in SETTINGS if name in values), None)
    if null is not None:
        keys.use((*top.path, null), "encoding")
    elif language.model_type not in DEFAULT_SETTINGS:
        keys.remark("default", top.key(SETTINGS[0]), f"absent, as is {SETTINGS[1]}: plain RoPE was taken")
    return NOWHERE


def _nested(rope: Scope, top: Scope) -> list[str]:
    """The layer types that have settings of their own, by name."""
    values = rope.values
    if any(name in values for name in TYPE):
        return []
    listed = top.values.get("layer_types")
    listed = listed if isinstance(listed, list) else []
    settings = {*TYPE, *THETA, *FRACTION, *ONLY_SETTINGS}
    names = [
        name
        for name, value in values.items()
        if isinstance(value, dict) and (name in listed or not settings.isdisjoint(value))
    ]
    return [name for name in values if name in names or (names and values[name] is None and "attention" in name)]


def _open_nested(keys: Keys, rope: Scope, names: list[str], alone: bool) -> list[tuple[str, Scope]]:
    opened = []
    for name, value in rope.values.items():
        path = (*rope.path, name)
        if name in names and value is not None:
            opened.append((name, keys.settings(keys.open(path, value))))
        elif name in names:
            keys.explain(Found(path, value), "null: these layers do not turn; they are encoding=none", "note")
        elif not alone:
            keys.explain(Found(path, value), "stands beside the layer types, where transformers does not look")
    return opened
