"""RoPE whose frequencies are changed for longer texts. Hugging Face has most of them, as `rope_type`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.oracles import rope
from tests.oracles.answer import Answer, Oracle
from tests.oracles.case import Case, Draw, anything, log_uniform, share, sometimes
from tests.oracles.rope import EVERYTHING, PARAMETERS, PARTIAL, WHOLE, Turning, geometric, pair_count


def linear(case: Case) -> Turning:
    """Position interpolation: m / s in place of m."""
    return Turning([theta / case.number("factor") for theta in geometric(case, case.number("theta"))])


def ntk(case: Case) -> Turning:
    """b' = b s^(D / (D - 2))"""
    return Turning(geometric(case, _stretched(case, case.number("factor"))))


def dynamic(case: Case) -> Turning:
    """b' = b (s n / L - (s - 1))^(D / (D - 2)) once the length n exceeds L."""
    s, trained = case.number("factor"), case.number("original_length")
    n = max(length(case), trained)
    return Turning(geometric(case, _stretched(case, s * n / trained - (s - 1))))


def yarn(case: Case) -> Turning:
    """Section 3.2 with the released code's ramp: linear in the pair's index between two ends."""
    s, b, trained, d = case.number("factor"), case.number("theta"), case.number("original_length"), 2 * pair_count(case)

    def index(turns: float) -> float:
        """The pair that makes this many turns within L: L b^(-2i/D) = 2 pi turns, solved for i."""
        return d * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(b))

    low, high = index(case.number("beta_fast")), index(case.number("beta_slow"))
    if case.parameters["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    if low == high:
        high += 0.001
    thetas = []
    for i, theta in enumerate(geometric(case, b)):
        interpolated = min(max((i - low) / (high - low), 0), 1)
        thetas.append((1 - interpolated) * theta + interpolated * theta / s)
    return Turning(thetas, _yarn_attention_factor(case))


def _yarn_attention_factor(case: Case) -> float:
    if case.given("attention_factor") is not None:
        return case.number("attention_factor")

    def a(mscale: float) -> float:
        return 0.1 * mscale * math.log(case.number("factor")) + 1

    if case.given("mscale") and case.given("mscale_all_dim"):
        return a(case.number("mscale")) / a(case.number("mscale_all_dim"))
    return a(1)


def llama3(case: Case) -> Turning:
    """By wavelength: kept below L / high, divided by s above L / low, blended between."""
    s, trained = case.number("factor"), case.number("original_length")
    low, high = case.number("low_freq_factor"), case.number("high_freq_factor")
    thetas = []
    for theta in geometric(case, case.number("theta")):
        wavelength = 2 * math.pi / theta
        if wavelength < trained / high:
            thetas.append(theta)
        elif wavelength > trained / low:
            thetas.append(theta / s)
        else:
            smooth = (trained / wavelength - low) / (high - low)
            thetas.append((1 - smooth) * theta / s + smooth * theta)
    return Turning(thetas)


def longrope(case: Case) -> Turning:
    """theta_i / lambda_i, lambda from the list for long texts once the length exceeds L; a = sqrt(1 + ln s / ln L)."""
    s, trained = case.number("factor"), case.number("original_length")
    factors = case.parameters["long_factor" if length(case) > trained else "short_factor"]
    thetas = geometric(case, case.number("theta"))
    each = factors if len(factors) == len(thetas) else [factors[0]] * len(thetas)
    given = case.given("attention_factor")
    a = math.sqrt(1 + math.log(s) / math.log(trained)) if given is None else float(given)
    return Turning([theta / factor for theta, factor in zip(thetas, each, strict=True)], a)


def proportional(case: Case) -> Turning:
    """b^(-2i / d_h) / s for the first share of the pairs of the whole head; the rest stand still."""
    turning = math.floor(case.number("proportion") * (case.head_dim // 2))
    return Turning(
        [case.number("theta") ** (-2 * i / case.head_dim) / case.number("factor") for i in range(turning)],
        components=case.head_dim,
    )


def length(case: Case) -> float:
    """The request's own: its largest position, plus one."""
    return float(max(case.m.max(), case.n.max())) + 1


def _stretched(case: Case, by: float) -> float:
    d = 2 * pair_count(case)
    return case.number("theta") * (by ** (d / (d - 2)) if d > 2 else 1)


def transformers(rope_type: str, *names: str, **renamed: str) -> Callable[[Case], Answer]:
    """PhiAttention under a `rope_type`, our parameters handed on by their own names or renamed."""

    def answer(case: Case) -> Answer:
        given = {name: case.given(ours) for name, ours in {**{n: n for n in names}, **renamed}.items()}
        if "original_max_position_embeddings" in given:
            given["original_max_position_embeddings"] = int(case.number("original_length"))
        more = {name: value for name, value in given.items() if value is not None}
        longest = int(case.number("original_length")) if rope_type == "dynamic" else 1 << 20
        return rope.phi(case, rope.rope_parameters(case, rope_type, **more), longest)

    return answer


def proportional_transformers(case: Case) -> Answer:
    """LlamaAttention, whose rotation spans the whole head."""
    return rope.llama(
        case,
        {
            "rope_type": "proportional",
            "rope_theta": case.number("theta"),
            "partial_rotary_factor": case.number("proportion"),
            "factor": case.number("factor"),
        },
    )


def interpolated(case: Case) -> Answer:
    """rotary-embedding-torch, `interpolate_factor`."""
    return rope.rotary_embedding_torch(case, interpolate_factor=case.number("factor"))


def x_interpolated(case: Case) -> Answer:
    """x-transformers, `interpolation_factor`."""
    return rope.x_transformers(case, interpolation_factor=case.number("factor"))


def rescaled(case: Case) -> Answer:
    """rotary-embedding-torch, `theta_rescale_factor`."""
    return rope.rotary_embedding_torch(case, theta_rescale_factor=case.number("factor"))


def x_rescaled(case: Case) -> Answer:
    """x-transformers, `base_rescale_factor`."""
    return rope.x_transformers(case, base_rescale_factor=case.number("factor"))


def _whole(low: float, high: float) -> Draw:
    return lambda rng, sizes: round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))


def _factors(low: float, high: float) -> Callable[[float], Draw]:
    """A list with an entry for each pair under this share of the head, or with one for all."""

    def of(share: float) -> Draw:
        def draw(rng: np.random.Generator, sizes: Any) -> list[float]:
            pairs = int(share * sizes.head_dim) // 2
            return [float(x) for x in rng.uniform(low, high, size=pairs if rng.random() < 0.7 else 1)]

        return draw

    return of


FACTOR: Mapping[str, Any] = {"factor": lambda rng, sizes: float(rng.choice((1.0, 2.0, 4.0, rng.uniform(1, 40))))}
# Lengths on both sides of the positions that the cases have.
LENGTH: Mapping[str, Any] = {"original_length": _whole(4, 400)}
SHORT: Mapping[str, Any] = {"original_length": _whole(4, 40)}
YARN: Mapping[str, Any] = {
    "original_length": _whole(16, 20000),
    "beta_fast": log_uniform(4, 64),
    "beta_slow": log_uniform(0.3, 3),
    "attention_factor": sometimes(log_uniform(0.5, 2)),
    "mscale": sometimes(log_uniform(0.5, 2)),
    "mscale_all_dim": sometimes(log_uniform(0.5, 2)),
}
LLAMA3: Mapping[str, Any] = {
    "original_length": _whole(16, 20000),
    "low_freq_factor": log_uniform(0.3, 2),
    "high_freq_factor": log_uniform(3, 20),
}
LISTS: Mapping[str, Any] = {"short_factor": _factors(0.8, 2), "long_factor": _factors(1, 30)}
LONGROPE: Mapping[str, Any] = {"attention_factor": sometimes(log_uniform(0.5, 2)), "rotary_fraction": 1.0} | {
    name: of(1.0) for name, of in LISTS.items()
}
HALF_LONGROPE: Mapping[str, Any] = {
    **LONGROPE,
    "rotary_fraction": 0.5,
    **{name: of(0.5) for name, of in LISTS.items()},
}
PROPORTION: Mapping[str, Any] = {
    "theta": PARAMETERS["theta"],
    "proportion": lambda rng, sizes: float(rng.choice((1.0, 0.5, 0.25, 0.0, rng.random()))),
}
FORMULA = "formula, pair by pair, complex numbers"


def _half(parameters: Mapping[str, Any], description: str = "half, part of each head") -> Any:
    return rope.library(description, parameters={**PARTIAL, **parameters, "layout": "half"}, head_dims=(16, 32, 64))


def _interleaved(parameters: Mapping[str, Any]) -> Any:
    return rope.library(
        "interleaved, part of each head",
        parameters={**PARTIAL, **parameters, "layout": "interleaved"},
        head_dims=(16, 32, 64),
    )


LINEAR = (
    Oracle(FORMULA, rope.formula(linear), anything({**PARAMETERS, **FACTOR}, EVERYTHING), 200),
    Oracle("transformers PhiAttention (linear)", transformers("linear", "factor"), _half(FACTOR), 60),
    Oracle("rotary-embedding-torch interpolate_factor", interpolated, _interleaved(FACTOR), 60),
    Oracle("x-transformers interpolation_factor", x_interpolated, _interleaved(FACTOR), 60),
)
NTK = (
    Oracle(FORMULA, rope.formula(ntk), anything({**PARAMETERS, **FACTOR}, EVERYTHING), 200),
    Oracle("rotary-embedding-torch theta_rescale_factor", rescaled, _interleaved(FACTOR), 60),
    Oracle("x-transformers base_rescale_factor", x_rescaled, _interleaved(FACTOR), 60),
)
DYNAMIC = (
    Oracle(FORMULA, rope.formula(dynamic), anything({**PARAMETERS, **FACTOR, **LENGTH}, EVERYTHING), 200),
    Oracle("transformers PhiAttention (dynamic)", transformers("dynamic", "factor"), _half({**FACTOR, **SHORT}), 60),
)
YARN_ORACLES = (
    Oracle(FORMULA, rope.formula(yarn), anything({**PARAMETERS, **FACTOR, **YARN}, EVERYTHING), 200),
    Oracle(
        "transformers PhiAttention (yarn)",
        transformers(
            "yarn",
            "factor",
            "beta_fast",
            "beta_slow",
            "attention_factor",
            "mscale",
            "mscale_all_dim",
            "truncate",
            original_max_position_embeddings="original_length",
        ),
        _half({**FACTOR, **YARN}),
        60,
    ),
)
LLAMA3_ORACLES = (
    Oracle(FORMULA, rope.formula(llama3), anything({**PARAMETERS, **FACTOR, **LLAMA3}, EVERYTHING), 200),
    Oracle(
        "transformers PhiAttention (llama3)",
        transformers(
            "llama3",
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            original_max_position_embeddings="original_length",
        ),
        _half({**FACTOR, **LLAMA3}),
        60,
    ),
)
LONGROPE_ORACLES = (
    Oracle(
        FORMULA,
        rope.formula(longrope),
        anything({**PARAMETERS, **FACTOR, **LENGTH, **LONGROPE}, "future keys, either mask, both layouts, whole heads"),
        120,
    ),
    Oracle(
        FORMULA + ", half of each head",
        rope.formula(longrope),
        anything(
            {**PARAMETERS, **FACTOR, **LENGTH, **HALF_LONGROPE},
            "future keys, either mask, both layouts, half of each head",
            head_dims=(4, 8, 16, 32),
        ),
        80,
    ),
    Oracle(
        "transformers PhiAttention (longrope)",
        transformers(
            "longrope",
            "factor",
            "short_factor",
            "long_factor",
            "attention_factor",
            original_max_position_embeddings="original_length",
        ),
        _half({**FACTOR, **SHORT, **HALF_LONGROPE}, "half, half of each head"),
        60,
    ),
)
PROPORTIONAL = (
    Oracle(
        FORMULA,
        rope.formula(proportional),
        anything({**PROPORTION, **FACTOR}, "future keys, either mask, both layouts, any share of the pairs"),
        200,
    ),
    Oracle(
        "transformers LlamaAttention (proportional)",
        proportional_transformers,
        rope.library(
            "half, any share of the pairs",
            parameters={**WHOLE, **PROPORTION, **FACTOR, "proportion": share(0.0, 0.25, 0.5, 1.0), "layout": "half"},
        ),
        60,
    ),
)
