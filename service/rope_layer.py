"""The rotary settings of one layer type, read as parameters of an encoding served here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from service.errors import InvalidInput, UnknownName
from service.rope_keys import Found, Scope, shown
from service.rope_language import Language, read_head_dim
from service.rope_models import LATENT_STILL
from service.rope_names import (
    FRACTION,
    INTERLEAVED,
    LATENT,
    LENGTH,
    LONGROPE_MSCALES,
    MSCALES,
    ORIGINAL,
    ROTARY_DIM,
    THETA,
    TYPE,
    TYPES,
)

DEFAULT_THETA = 10_000.0
PHI3 = ("phi3", "phi3_v", "phi3small", "phi4_multimodal", "phimoe")
"""Models whose `yarn` is LongRoPE, by its first name."""

LLAMA = "as published: Llama 3.1 has 8 and Llama 3.2 has 32 with a ratio of 16"

Value = float | int | bool | str | list[float]


@dataclass(frozen=True, slots=True)
class Rotation:
    """What turns the queries and keys of one layer type; `layer_type` is None where all layers share it. `scalars` are
    the parameters as a query string writes them, `pointers` the places of the configuration that gave them."""

    layer_type: str | None
    encoding: str
    head_dim: int
    scalars: Mapping[str, str]
    pointers: Mapping[str, str]


class Layer:
    """Reads one layer type, once. `rope` are its settings; they are `language.top` where only settings were sent.
    `thetas` are the keys of `language.top` that hold the base, `theta` is their default where it is not the model's.
    """

    def __init__(
        self, language: Language, layer_type: str | None, rope: Scope, thetas: tuple[str, ...], theta: float | None
    ) -> None:
        self.keys = language.keys
        self.language = language
        self.layer_type = layer_type
        self.top = language.top
        self.rope = rope
        self.model = language.model
        self.thetas = thetas
        self.theta = theta
        self.rope_first = (rope,) if rope is self.top else (rope, self.top)
        self.top_first = self.rope_first[::-1]
        self.scalars: dict[str, str] = {}
        self.pointers: dict[str, str] = {}

    def read(self) -> Rotation:
        encoding = self._encoding()
        self.head_dim = read_head_dim(self.language, self.layer_type)
        readers: Mapping[str, Callable[[], None]] = {
            "rope": self._plain,
            "rope-linear": self._linear,
            "rope-ntk": self._ntk,
            "rope-dynamic": self._dynamic,
            "rope-yarn": self._yarn,
            "rope-longrope": self._longrope,
            "rope-llama3": self._llama3,
            "rope-proportional": self._proportional,
        }
        readers[encoding]()
        self._base()
        if encoding != "rope-proportional":
            self._fraction()
        self._layout(encoding)
        self._modifiers(encoding)
        return Rotation(self.layer_type, encoding, self.head_dim, self.scalars, self.pointers)

    def _encoding(self) -> str:
        found = self.keys.take("encoding", (self.rope,), *TYPE)
        if found is None:
            if self.rope.values:
                self.keys.absent(self.rope, TYPE[0], "default, which is plain RoPE, was taken")
            return TYPES["default"]
        if not isinstance(found.value, str):
            found.refuse("a string")
        kind = found.value.strip().lower()
        if kind not in TYPES:
            raise UnknownName(found.key, found.value, TYPES, pointer=found.pointer)
        if kind == "yarn" and self.language.model_type in PHI3:
            return TYPES["longrope"]
        if kind == "dynamic" and self._find("alpha"):
            return TYPES["ntk"]  # Hunyuan: a fixed alpha makes the base static
        return TYPES[kind]

    # One reader for each encoding

    def _plain(self) -> None:
        self._explain_lengths("plain RoPE does not depend on the length that the model was trained at")

    def _linear(self) -> None:
        self._give_needed("factor")
        self._explain_lengths("linear scaling does not depend on the length that the model was trained at")

    def _ntk(self) -> None:
        alpha = self.keys.take("factor", (self.rope,), "alpha")
        if alpha is None:
            self._give_needed("factor")
            note = "read as the NTK-aware base b s^(D/(D-2)); what vLLM calls ntk is another formula"
            self.keys.remark("note", self.rope.key(TYPE[0]), note)
        else:
            self._give("factor", alpha.number(), alpha)
            self.keys.explain_all((self.rope,), ("factor",), f"{alpha.key} takes its place")
        self._explain_lengths("this scaling does not depend on the length that the model was trained at")

    def _dynamic(self) -> None:
        self._give_needed("factor")
        length = self.keys.take("original_length", self.top_first, *LENGTH)
        if length is not None:
            self.keys.explain_all(
                self.rope_first, ORIGINAL, f"transformers scales beyond {length.key}, not beyond this"
            )
        else:
            length = self.keys.take("original_length", self.rope_first, *ORIGINAL)
            if length is None:
                self._missing(LENGTH[0])
            self.keys.absent(self.top, LENGTH[0], f"{length.key} = {shown(length.value)} was taken")
        self._give("original_length", length.number(), length)

    def _yarn(self) -> None:
        self._scaled_lengths()
        self._or_default("beta_fast", 32.0)
        self._or_default("beta_slow", 1.0)
        truncate = self.keys.take("truncate", (self.rope,), "truncate")
        if truncate is None:
            self.keys.absent(self.rope, "truncate", "true was taken")
        elif not truncate.value and self.layer_type is not None:
            self.keys.remark("note", truncate.key, "transformers 5.24 does not read truncate inside a layer type")
        self._give("truncate", True if truncate is None else truncate.flag(), truncate)

        if self._attention_factor(MSCALES):
            return
        scales = [self._find(name) for name in MSCALES]
        if all(found.number() for found in scales if found is not None) and None not in scales:
            for name, found in zip(MSCALES, scales, strict=True):
                assert found is not None
                self.keys.use(found.path, name)
                self._give(name, found.number(), found)
            self.keys.absent(self.rope, "attention_factor", "derived from factor, mscale and mscale_all_dim")
        else:
            reason = "counts only where neither mscale nor mscale_all_dim is missing or 0, in transformers"
            self.keys.explain_all((self.rope,), MSCALES, reason)
            self.keys.absent(self.rope, "attention_factor", "0.1 ln(factor) + 1 was taken")

    def _longrope(self) -> None:
        for name in ("short_factor", "long_factor"):
            found = self.keys.take(name, (self.rope,), name)
            if found is None:
                self._missing(name)
            self._give(name, found.numbers(), found)
        self._scaled_lengths()
        if self._attention_factor(LONGROPE_MSCALES):
            return
        scales = [self._find(name) for name in LONGROPE_MSCALES]
        first, second = scales
        if first is not None and second is not None and first.value == second.value:
            for found in (first, second):
                self.keys.use(found.path, "attention_factor")
                self._give("attention_factor", found.number(), found)
        else:
            self.keys.explain_all((self.rope,), LONGROPE_MSCALES, "one attention_factor serves any length here")
            self.keys.absent(self.rope, "attention_factor", "sqrt(1 + ln(factor) / ln(original length)) was taken")

    def _llama3(self) -> None:
        self._scaled_lengths(free=True)
        self._or_default("low_freq_factor", 1.0)
        self._or_default("high_freq_factor", 4.0)

    def _proportional(self) -> None:
        found = self.keys.take("proportion", self.rope_first, *FRACTION)
        if found is None:
            self.keys.absent(self.rope, FRACTION[0], "1 was taken, under which every pair turns")
        share = 1.0 if found is None else found.number()
        if 0 <= share <= 1:  # else its range is told later
            share = share_of(int(share * self.head_dim // 2), self.head_dim / 2, share)
        self._give("proportion", share, found)
        self._or_default("factor", 1.0)
        self._explain_lengths("this scaling does not depend on the length that the model was trained at")

    # Lengths

    def _scaled_lengths(self, *, free: bool = False) -> None:
        """`factor` and `original_length`; either may follow from the other and max_position_embeddings. `free`: a
        factor that is given need not be the ratio of the lengths."""
        order = self.top_first if self.layer_type is None else self.rope_first
        original = self.keys.take("original_length", order, *ORIGINAL)
        if original is None:
            original = self.keys.take("original_length", self.top_first, *LENGTH)
            if original is None:
                self._missing(ORIGINAL[0])
            self.keys.absent(self.rope, ORIGINAL[0], f"{original.key} = {shown(original.value)} was taken")
        trained = original.number()
        if trained < 1:
            original.refuse("at least 1")
        self._give("original_length", trained, original)

        factor = self.keys.take("factor", (self.rope,), "factor")
        if factor is not None:
            self._give("factor", factor.number(), factor)
            self._compare_lengths(factor.number(), original, free)
            return
        longest = self.keys.take("factor", self.top_first, *LENGTH)
        if longest is None:
            self._missing("factor")
        self.keys.use(original.path, "factor")
        ratio = longest.number() / trained
        told = f"{longest.key} / {original.key} = {shown(longest.value)} / {shown(original.value)}"
        self.keys.absent(self.rope, "factor", f"{told} = {shown(ratio)} was taken")
        if ratio < 1:
            self.keys.remark("contradiction", longest.key, f"{told} is less than 1; 1 was taken as the factor")
        self._give("factor", max(1.0, ratio), longest)

    def _compare_lengths(self, factor: float, original: Found, free: bool) -> None:
        for longest in self.keys.find(self.top_first, LENGTH):
            if longest.path == original.path:
                continue
            ratio = longest.number() / original.number()
            if math.isclose(ratio, factor, rel_tol=1e-9):
                self.keys.explain(longest, f"is factor x {original.key}, as it should be; only these two are used")
            elif ratio == 1:
                self.keys.explain(
                    longest, f"equals {original.key}: it was not raised by factor, which counts all the same"
                )
            else:
                self.keys.explain(
                    longest,
                    f"{longest.key} / {original.key} = {shown(longest.value)} / {shown(original.value)} = {ratio:.6g}, "
                    f"but factor = {shown(factor)}, which counts" + (f"; {LLAMA}" if free else ""),
                    "note" if free else "contradiction",
                )

    def _explain_lengths(self, message: str) -> None:
        self.keys.explain_all(self.rope_first, (*LENGTH, *ORIGINAL), message)

    def _attention_factor(self, others: tuple[str, ...]) -> bool:
        """Whether it is given; then it takes the place of `others`."""
        given = self.keys.take("attention_factor", (self.rope,), "attention_factor")
        if given is not None:
            self._give("attention_factor", given.number(), given)
            self.keys.explain_all((self.rope,), others, f"{given.key} takes its place")
        return given is not None

    # What every rotary encoding has

    def _base(self) -> None:
        found = self.keys.find((self.rope,), THETA)
        if self.rope is not self.top:
            found += self.keys.find((self.top,), self.thetas)
        chosen = self.keys.choose("theta", found)
        if chosen is not None:
            theta = chosen.number()
        else:
            theta = self.theta or (self.model.theta if self.model is not None else DEFAULT_THETA)
            whose = f", {self.language.whose}" if self.model is not None else ""
            at = self.top if self.layer_type is None or not self.rope.values else self.rope
            self.keys.absent(at, self.thetas[0], f"{shown(theta)} was taken{whose}")
        ratio = self.keys.take("theta", (self.top,), "rope_ratio")
        self._give("theta", theta if ratio is None else theta * ratio.number(), chosen or ratio)

    def _fraction(self) -> None:
        if self.language.latent:
            self.keys.explain_all(self.rope_first, (*FRACTION, ROTARY_DIM), f"{LATENT[0]} says which components turn")
            self._give("rotary_fraction", 1.0)
            return
        found = self.keys.take("rotary_fraction", self.rope_first, *FRACTION)
        if found is not None:
            share = found.number()
            self.keys.explain_all((self.top,), (ROTARY_DIM,), f"{found.key} takes its place")
        elif (found := self.keys.take("rotary_fraction", (self.top,), ROTARY_DIM)) is not None:
            share = found.number() / self.head_dim
        else:
            share = self.model.rotary_fraction if self.model is not None else 1.0
            whose = f", {self.language.whose}" if self.model is not None else ""
            self.keys.absent(self.top, FRACTION[0], f"{shown(share)} was taken{whose}")
        if 0 <= share <= 1:  # else its range is told later
            share = self._even_share(share, found)
        self._give("rotary_fraction", share, found)

    def _even_share(self, share: float, found: Found | None) -> float:
        """The share under which as many components turn as in transformers, which rounds down; an even number."""
        exact = share * self.head_dim
        turning = int(exact)
        if turning % 2:
            nearest = math.floor(exact + 1e-9)  # 6/94 of 94 is 5.999999999999999
            here = turning - 1 if nearest % 2 else nearest
            if found is None or found.path[-1] != ROTARY_DIM:
                self.keys.remark(
                    "contradiction",
                    self.top.key(FRACTION[0]) if found is None else found.key,
                    f"{exact} of {self.head_dim} components would turn, but they turn in pairs: {here} do here, while "
                    f"transformers spreads the frequencies over {turning}",
                )
            turning = here
        return share_of(turning // 2, self.head_dim / 2, share)

    def _layout(self, encoding: str) -> None:
        """Which components form a pair: few configurations say it, and otherwise the model type has to."""
        told = self.keys.take("layout", (self.top,), *INTERLEAVED)
        if told is not None:
            self._give("layout", "interleaved" if told.flag() else "half", told)
            return
        self._give("layout", "half" if self.model is None else self.model.layout)
        name = self.language.model_type
        at = Found((*self.top.path, "model_type"), name)
        if self.model is not None:
            self.keys.use(at.path, "layout")
            return
        advice = (
            f"half was taken, as in Llama; for pairs of components (2i, 2i+1) ask for {encoding}.layout=interleaved"
        )
        if name is None:
            self.keys.remark("default", at.key, f"absent, so the layout is not known: {advice}")
        else:
            self.keys.explain(at, f"{shown(name)} is not known here, nor its layout: {advice}", "default")

    def _modifiers(self, encoding: str) -> None:
        """What else changes the scores of some models, and any encoding here can carry."""
        cap = self.keys.take("softcap", (self.top,), "attn_logit_softcapping")
        if cap is not None:
            self._give("softcap", cap.number(), cap)
        scalar = self.keys.take("scale", (self.top,), "query_pre_attn_scalar")
        if scalar is not None:
            if scalar.number() <= 0:
                scalar.refuse("positive")
            self._give("scale", scalar.number() ** -0.5, scalar)
        elif (multiplier := self.keys.take("scale", (self.top,), "attention_multiplier")) is not None:
            self._give("scale", multiplier.number(), multiplier)
        else:
            self._latent_scale(encoding)

    def _latent_scale(self, encoding: str) -> None:
        """1/sqrt of the whole head, and the square of YaRN's magnitude under mscale_all_dim, as in DeepSeek."""
        default = LATENT_STILL.get(self.language.model_type or "")
        still = self.keys.take("scale", (self.top,), "qk_nope_head_dim") if self.language.latent else None
        squared = self._squared_magnitude(encoding)
        if still is not None:
            if still.number() < 0:
                still.refuse("at least 0")
            width = still.number() + self.head_dim
        elif default is not None:
            self.keys.absent(self.top, "qk_nope_head_dim", f"{default} was taken, {self.language.whose}")
            width = default + self.head_dim
        else:
            if squared != 1 and self.model is None:
                self._tell_scale(squared, self.head_dim, f"whose whole heads have {self.head_dim} components, ask for")
            return
        scale = width**-0.5 * squared
        if squared != 1:
            self.keys.use((*self.rope.path, MSCALES[1]), "scale")
            self._tell_scale(squared, width, "such as this one, the query has")
        self._give("scale", scale, still)

    def _squared_magnitude(self, encoding: str) -> float:
        """By which such models multiply their softmax scale."""
        all_dim = self._find(MSCALES[1])
        if encoding == "rope" or all_dim is None or not all_dim.number() or "factor" not in self.scalars:
            return 1.0
        magnitude = 1 + 0.1 * all_dim.number() * math.log(max(1.0, float(self.scalars["factor"])))
        return magnitude * magnitude

    def _tell_scale(self, squared: float, width: float, whose: str) -> None:
        scale = width**-0.5 * squared
        self.keys.remark(
            "note",
            self.rope.key(MSCALES[1]),
            "DeepSeek's attention in transformers multiplies its softmax scale by "
            f"(0.1 mscale_all_dim ln(factor) + 1)^2 = {squared!r}, "
            f"beside attention_factor: for models {whose} scale={scale!r}, which is this / "
            f"sqrt({shown(width)})",
        )

    # Helpers

    def _find(self, name: str) -> Found | None:
        return next(iter(self.keys.find((self.rope,), (name,))), None)

    def _give(self, name: str, value: Value, found: Found | None = None) -> None:
        """One parameter, and whom to blame for it."""
        self.scalars[name] = written(value)
        if found is not None:
            self.pointers[name] = found.pointer

    def _give_needed(self, name: str) -> None:
        found = self.keys.take(name, (self.rope,), name)
        if found is None:
            self._missing(name)
        self._give(name, found.number(), found)

    def _or_default(self, name: str, default: float) -> None:
        found = self.keys.take(name, (self.rope,), name)
        if found is None:
            self.keys.absent(self.rope, name, f"{shown(default)} was taken")
        self._give(name, default if found is None else found.number(), found)

    def _missing(self, name: str) -> NoReturn:
        raise InvalidInput(
            f"{'.'.join(self.rope.path) or 'the configuration'} has no {name}, without which this rope type cannot be "
            "computed",
            pointer=self.rope.pointer,
        )


def share_of(count: int, whole: float, near: float) -> float:
    """The share of `whole` under which `count` turn: `near` if it is one, which the graphs take a hair more kindly."""
    return near if math.floor(near * whole + 1e-6) == count else count / whole


def written(value: Value) -> str:
    """As a query string has it."""
    if isinstance(value, list):
        return ",".join(map(written, value))
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).removesuffix(".0")
