"""The language model of a configuration, as far as all its layers share it, and how wide its heads are."""

from __future__ import annotations

from dataclasses import dataclass

from service.errors import InvalidInput
from service.rope_keys import Found, Keys, Scope, shown
from service.rope_models import GLOBAL_HEAD_DIMS, ROPE_MODELS, RopeModel
from service.rope_names import GLOBAL_HEAD_DIM, HEAD_DIM, HEADS, HIDDEN, LATENT

LARGEST = 1 << 20
SIZES = (*HIDDEN, *HEADS)


@dataclass(frozen=True, slots=True)
class Language:
    """`inside`: whether this is a part of a larger model's configuration, from which transformers leaves out what
    equals its defaults. `asked_head_dim` takes the place of what the configuration says."""

    keys: Keys
    top: Scope
    inside: bool
    asked_head_dim: int | None

    @property
    def model_type(self) -> str | None:
        value = self.top.values.get("model_type")
        return value if isinstance(value, str) else None

    @property
    def model(self) -> RopeModel | None:
        return ROPE_MODELS.get(self.model_type or "")

    @property
    def latent(self) -> bool:
        """Whether the components that turn are kept apart from the rest of the head (DeepSeek's latent attention)."""
        return bool(self.keys.find((self.top,), LATENT))

    @property
    def whose(self) -> str:
        return f"transformers' default for {self.model_type}"


def read_head_dim(language: Language, layer_type: str | None) -> int:
    """Of the part that turns, where only a part is kept for it. Even. Raises InvalidInput where it is not known."""
    keys, top = language.keys, (language.top,)
    own = (*GLOBAL_HEAD_DIM, *HEAD_DIM) if layer_type == "full_attention" else HEAD_DIM
    if language.asked_head_dim is not None:
        return _asked(language, language.asked_head_dim, own)
    if language.latent:
        found = keys.take("head_dim, rotary_fraction", top, *LATENT)
        keys.explain_all(top, own, f"only the {LATENT[0]} components turn")
    else:
        found = _listed(language, layer_type)
        if found is None and (default := _global_default(language, layer_type)):
            return default
        found = found or keys.take("head_dim", top, *own)
    if found is not None:
        keys.explain_all(top, SIZES, f"{found.key} says what this would be used for")
        return _even(found.whole(LARGEST), found.pointer)
    model = language.model
    if model is not None and model.head_dim is not None:
        keys.absent(language.top, HEAD_DIM[0], f"{model.head_dim} was taken, {language.whose}")
        keys.explain_all(top, SIZES, f"head_dim does not follow from it in {language.model_type}")
        return model.head_dim
    return _divided(language)


def _asked(language: Language, asked: int, own: tuple[str, ...]) -> int:
    keys, top = language.keys, (language.top,)
    for other in keys.find(top, (*LATENT, *own)):
        if other.value == asked:
            keys.explain(other, "the query says the same")
        else:
            keys.explain(other, f"is {shown(other.value)}, but the query says {asked}", "contradiction")
    keys.explain_all(top, SIZES, "the query says head_dim")
    return asked


def _listed(language: Language, layer_type: str | None) -> Found | None:
    """From `per_layer_config`, which lists what is different in single layers (Gemma 4)."""
    listed, types = (language.top.values.get(name) for name in ("per_layer_config", "layer_types"))
    if not isinstance(listed, dict) or not isinstance(types, list):
        return None
    for index, own in listed.items():
        layer = int(index) if index.isdecimal() and len(index) < 6 else len(types)
        if layer < len(types) and types[layer] == layer_type and isinstance(own, dict) and "head_dim" in own:
            path = (*language.top.path, "per_layer_config")
            language.keys.use(path, "head_dim")
            return Found((*path, index, "head_dim"), own["head_dim"])
    return None


def _global_default(language: Language, layer_type: str | None) -> int | None:
    default = GLOBAL_HEAD_DIMS.get(language.model_type or "")
    if default is None or layer_type != "full_attention" or language.keys.find((language.top,), GLOBAL_HEAD_DIM):
        return None
    language.keys.absent(language.top, GLOBAL_HEAD_DIM[0], f"{default} was taken, {language.whose}")
    language.keys.explain_all((language.top,), SIZES, f"head_dim does not follow from it in {language.model_type}")
    return default


def _divided(language: Language) -> int:
    """hidden_size / num_attention_heads."""
    keys, top = language.keys, language.top
    hidden, heads = (keys.take("head_dim", (top,), *names) for names in (HIDDEN, HEADS))
    model = language.model if language.inside else None
    if model is None and (hidden is None or heads is None):
        raise InvalidInput(
            f"head_dim is not known: there is none of {', '.join((*LATENT, *HEAD_DIM))}, nor one of "
            f"{', '.join(HIDDEN)} with one of {', '.join(HEADS)}; add head_dim=... to the query",
            pointer=top.pointer,
        )
    sizes = []
    for found, name, default in (
        (hidden, HIDDEN[0], model.hidden_size if model is not None else 0),
        (heads, HEADS[0], model.heads if model is not None else 0),
    ):
        if found is None:
            keys.absent(top, name, f"{default} was taken, {language.whose}")
        sizes.append(default if found is None else found.whole(LARGEST))
    width, count = sizes
    at = next((found.pointer for found in (hidden, heads) if found is not None), top.pointer)
    if width % count:
        raise InvalidInput(
            f"head_dim would be {width} / {count}, which is no whole number; add head_dim=... to the query", pointer=at
        )
    return _even(width // count, at)


def _even(head_dim: int, pointer: str) -> int:
    if head_dim % 2:
        raise InvalidInput(f"head_dim is {head_dim}, but components turn in pairs: it must be even", pointer=pointer)
    return head_dim
