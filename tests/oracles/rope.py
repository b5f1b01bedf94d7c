"""RoPE (Su et al. 2021), in complex numbers."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rotary_embedding_torch import RotaryEmbedding
from transformers.models.gemma2.configuration_gemma2 import Gemma2Config
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention, Gemma2RotaryEmbedding
from transformers.models.gpt_neox.configuration_gpt_neox import GPTNeoXConfig
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention, GPTNeoXRotaryEmbedding
from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssRotaryEmbedding
from transformers.models.gptj.configuration_gptj import GPTJConfig
from transformers.models.gptj.modeling_gptj import GPTJAttention, create_sinusoidal_positions
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding
from transformers.models.phi.configuration_phi import PhiConfig
from transformers.models.phi.modeling_phi import PhiAttention, PhiRotaryEmbedding
from transformers.models.roformer.configuration_roformer import RoFormerConfig
from transformers.models.roformer.modeling_roformer import RoFormerSelfAttention, RoFormerSinusoidalPositionalEmbedding

from tests.oracles import hugging_face as hf
from tests.oracles.answer import Answer, Oracle, from_scores
from tests.oracles.case import Case, Domain, anything, log_uniform, share
from tests.oracles.loop import Pair, Vector, dot, loop
from tests.oracles.lucidrains import RotaryEmbedding as XRotaryEmbedding
from tests.oracles.lucidrains import apply_rotary_pos_emb

BANDS = ("fast", "medium", "slow", "unrotated")


@dataclass(frozen=True)
class Turning:
    """Radians per position of each pair that turns, and the factor `a` that some members put on q and k.

    Pairs are made of the first `components` of a head: twice as many as pairs turn, unless some pairs stand still.
    """

    theta: Sequence[float]
    a: float = 1.0
    components: int | None = None


def formula(turning: Callable[[Case], Turning]) -> Callable[[Case], Answer]:
    """S(m, n) = c [a^2 Re sum_i q_i conj(k_i) e^{i (m - n) theta_i} + what does not turn], by thirds of the pairs."""

    def answer(case: Case) -> Answer:
        how = turning(case)

        def terms(pair: Pair) -> dict[str, float]:
            count = len(how.theta)
            paired = 2 * count if how.components is None else how.components
            q, k = complex_pairs(pair.q, paired // 2, case), complex_pairs(pair.k, paired // 2, case)
            parts = [(q_i * k_i.conjugate()) for q_i, k_i in zip(q, k, strict=True)]
            sums = dict.fromkeys(BANDS, 0.0)
            for i, (part, theta) in enumerate(zip(parts, how.theta, strict=False)):
                turned = part * cmath.exp(1j * (pair.m - pair.n) * theta)
                sums[BANDS[3 * i // count]] += pair.c * how.a**2 * turned.real
            still = math.fsum(part.real for part in parts[count:])
            sums["unrotated"] = pair.c * (still + dot(pair.q[paired:], pair.k[paired:]))
            return sums

        return loop(terms)(case)

    return answer


def complex_pairs(x: Vector, count: int, case: Case) -> list[complex]:
    """Components (2i, 2i + 1), or (i, i + D/2), as one number."""
    if case.parameters["layout"] == "interleaved":
        return [complex(x[2 * i], x[2 * i + 1]) for i in range(count)]
    return [complex(x[i], x[i + count]) for i in range(count)]


def pair_count(case: Case) -> int:
    """D / 2, D the rotary fraction of the head, rounded down to an even number."""
    return int(case.number("rotary_fraction") * case.head_dim) // 2


def geometric(case: Case, base: float) -> list[float]:
    """b^(-2i/D), i = 0 .. D/2 - 1"""
    count = pair_count(case)
    return [base ** (-2 * i / (2 * count)) for i in range(count)]


def plain(case: Case) -> Turning:
    """theta_i = b^(-2i/D)"""
    return Turning(geometric(case, case.number("theta")))


def rope_parameters(case: Case, rope_type: str = "default", **more: Any) -> dict[str, Any]:
    """As Hugging Face configurations spell them."""
    return {
        "rope_type": rope_type,
        "rope_theta": case.number("theta"),
        "partial_rotary_factor": case.number("rotary_fraction"),
        **more,
    }


def llama(case: Case, parameters: Mapping[str, Any] | None = None) -> Answer:
    """LlamaAttention: half layout, whole heads."""
    config = LlamaConfig(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        num_key_value_heads=case.heads,
        head_dim=case.head_dim,
        rope_parameters=parameters or rope_parameters(case),
        attn_implementation="eager",
    )
    module = LlamaAttention(config, layer_idx=0).double().eval()
    hf.identity(module.q_proj, module.k_proj, module.v_proj, module.o_proj)
    x = hf.hidden(case)
    with torch.no_grad():
        places = LlamaRotaryEmbedding(config)(x, torch.from_numpy(case.n)[None])
        output, probabilities = module.double()(x, places, hf.additive(case))
    return hf.answer(case, probabilities, output)


def gemma2(case: Case) -> Answer:
    """Gemma2Attention: half layout, whole heads, a scale of its own and a softcap."""
    config = Gemma2Config(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        num_key_value_heads=case.heads,
        head_dim=case.head_dim,
        num_hidden_layers=1,
        layer_types=["full_attention"],
        query_pre_attn_scalar=round(case.number("scale") ** -2),
        attn_logit_softcapping=case.number("softcap"),
        rope_parameters=rope_parameters(case),
        attn_implementation="eager",
    )
    module = Gemma2Attention(config, layer_idx=0).eval()
    hf.identity(module.q_proj, module.k_proj, module.v_proj, module.o_proj)
    x = hf.hidden(case)
    with torch.no_grad():
        places = Gemma2RotaryEmbedding(config)(x, torch.from_numpy(case.n)[None])
        output, probabilities = module.double()(x, places, hf.additive(case))
    return hf.answer(case, probabilities, output)


def gpt_oss(case: Case) -> Answer:
    """GptOssAttention: half layout, whole heads, sinks."""
    config = GptOssConfig(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        num_key_value_heads=case.heads,
        head_dim=case.head_dim,
        num_hidden_layers=1,
        layer_types=["full_attention"],
        rope_parameters=rope_parameters(case),
        attn_implementation="eager",
    )
    module = GptOssAttention(config, layer_idx=0).eval()
    hf.identity(module.q_proj, module.k_proj, module.v_proj, module.o_proj)
    module.sinks.data = hf.tensor(case.array("sinks"))
    x = hf.hidden(case)
    with torch.no_grad():
        places = GptOssRotaryEmbedding(config)(x, torch.from_numpy(case.n)[None])
        output, probabilities = module.double()(x, places, hf.additive(case))
    return hf.answer(case, probabilities, output)


def phi(case: Case, parameters: Mapping[str, Any] | None = None, longest: int = 1 << 20) -> Answer:
    """PhiAttention: half layout, part of each head. A fresh embedding for each case, since some of them remember."""
    config = PhiConfig(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        max_position_embeddings=longest,
        rope_parameters=parameters or rope_parameters(case),
        attention_dropout=0.0,
        attn_implementation="eager",
    )
    module = PhiAttention(config, layer_idx=0).eval()
    hf.identity(module.q_proj, module.k_proj, module.v_proj, module.dense)
    x = hf.hidden(case)
    with torch.no_grad():
        places = PhiRotaryEmbedding(config)(x, torch.from_numpy(case.n)[None])
        output, probabilities = module.double()(x, places, hf.additive(case))
    return hf.answer(case, probabilities, output)


def gpt_neox(case: Case) -> Answer:
    """GPTNeoXAttention: half layout, part of each head."""
    config = GPTNeoXConfig(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        rope_parameters=rope_parameters(case),
        attention_dropout=0.0,
        attn_implementation="eager",
    )
    module = GPTNeoXAttention(config, layer_idx=0).eval()
    hf.identity_by_head(module.query_key_value, case.heads)
    hf.identity(module.dense)
    x = hf.hidden(case)
    with torch.no_grad():
        places = GPTNeoXRotaryEmbedding(config)(x, torch.from_numpy(case.n)[None])
        output, probabilities = module.double()(x, hf.additive(case), position_embeddings=places)
    return hf.answer(case, probabilities, output)


def gptj(case: Case) -> Answer:
    """GPTJAttention: interleaved, part of each head, theta 10000."""
    rotary = 2 * pair_count(case)
    config = GPTJConfig(
        n_embd=case.width,
        n_head=case.heads,
        rotary_dim=rotary,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        attn_implementation="eager",
    )
    module = GPTJAttention(config, layer_idx=0).eval()
    hf.identity(module.q_proj, module.k_proj, module.v_proj, module.out_proj)
    n = torch.from_numpy(case.n).long()
    sines, cosines = create_sinusoidal_positions(int(n.max()) + 1, rotary)[n].double()[None].chunk(2, dim=-1)
    with torch.no_grad():
        output, probabilities = module.double()(hf.hidden(case), (sines, cosines), hf.additive(case))
    return hf.answer(case, probabilities, output)


def roformer(case: Case) -> Answer:
    """RoFormerSelfAttention: interleaved, whole heads, theta 10000."""
    config = RoFormerConfig(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        attention_probs_dropout_prob=0.0,
        rotary_value=False,
        attn_implementation="eager",
    )
    module = RoFormerSelfAttention(config).eval()
    hf.identity(module.query, module.key, module.value)
    n = torch.from_numpy(case.n).long()
    table = RoFormerSinusoidalPositionalEmbedding(int(n.max()) + 1, case.head_dim)
    table.weight.data = table.create_weight()
    with torch.no_grad():
        output, probabilities = module.double()(
            hf.hidden(case), hf.additive(case), table(torch.Size(()), position_ids=n).double()
        )
    return hf.answer(case, probabilities, output)


def rotary_embedding_torch(case: Case, **more: Any) -> Answer:
    """RotaryEmbedding: interleaved, part of each head. Raw scores."""
    module = RotaryEmbedding(2 * pair_count(case), theta=case.number("theta"), cache_if_possible=False, **more).double()

    def rotated(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        turned: torch.Tensor = module.rotate_queries_or_keys(x.transpose(1, 2), offset=int(at[0]))
        return turned

    return _raw(case, rotated)


def x_transformers(case: Case, **more: Any) -> Answer:
    """RotaryEmbedding: interleaved, part of each head, any positions. Raw scores."""
    module = XRotaryEmbedding(2 * pair_count(case), base=case.number("theta"), **more).double()

    def rotated(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        angles, _ = module(at)
        turned: torch.Tensor = apply_rotary_pos_emb(x.transpose(1, 2), angles)
        return turned

    return _raw(case, rotated)


def _raw(case: Case, rotated: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Answer:
    with torch.no_grad():
        q = rotated(torch.from_numpy(case.queries), torch.from_numpy(case.m))
        k = rotated(torch.from_numpy(case.keys), torch.from_numpy(case.n))
        return from_scores(case, (q @ k.transpose(-1, -2) / math.sqrt(case.head_dim)).numpy())


PARAMETERS: Mapping[str, Any] = {
    "theta": log_uniform(10, 1e6),
    "rotary_fraction": lambda rng, sizes: float(rng.choice((1.0, 1.0, 0.5, 0.25, 0.0, rng.random()))),
}
WHOLE = {**PARAMETERS, "rotary_fraction": 1.0}
EVERYTHING = "future keys, either mask, both layouts, any share of the head"
PARTIAL = {**PARAMETERS, "rotary_fraction": share(0.25, 0.5, 1.0)}


def library(description: str, **changes: Any) -> Domain:
    """Self-attention near position 0, where a library's float32 angles are good to 1e-6."""
    return Domain(
        f"self-attention from position 0, either mask; {description}; float32 angles",
        self_attention=True,
        positions=("from 0",),
        longest=40,
        heads=(1, 2, 3, 4),
        **changes,
    )


ORACLES = (
    Oracle("formula, pair by pair, complex numbers", formula(plain), anything(PARAMETERS, EVERYTHING), 200),
    Oracle(
        "transformers LlamaAttention", llama, library("half, whole heads", parameters={**WHOLE, "layout": "half"}), 60
    ),
    Oracle(
        "transformers GPTNeoXAttention",
        gpt_neox,
        library("half, part of each head", parameters={**PARTIAL, "layout": "half"}, head_dims=(8, 16, 32, 64)),
        60,
    ),
    Oracle(
        "transformers PhiAttention",
        phi,
        library("half, part of each head", parameters={**PARTIAL, "layout": "half"}, head_dims=(8, 16, 32, 64)),
        60,
    ),
    Oracle(
        "transformers GPTJAttention",
        gptj,
        library(
            "interleaved, part of each head, theta 10000",
            parameters={**PARTIAL, "layout": "interleaved", "theta": 10000.0},
            head_dims=(8, 16, 32, 64),
        ),
        60,
    ),
    Oracle(
        "transformers RoFormerSelfAttention",
        roformer,
        library(
            "interleaved, whole heads, theta 10000",
            parameters={**WHOLE, "layout": "interleaved", "theta": 10000.0},
        ),
        60,
    ),
    Oracle(
        "transformers Gemma2Attention",
        gemma2,
        library(
            "half, whole heads, scale and softcap",
            parameters={
                **WHOLE,
                "layout": "half",
                "scale": lambda rng, sizes: int(rng.integers(4, 400)) ** -0.5,
                "softcap": log_uniform(2, 50),
            },
        ),
        60,
    ),
    Oracle(
        "transformers GptOssAttention",
        gpt_oss,
        library(
            "half, whole heads, sinks",
            parameters={**WHOLE, "layout": "half", "sinks": lambda rng, sizes: rng.normal(size=sizes.heads)},
        ),
        60,
    ),
    Oracle(
        "rotary-embedding-torch RotaryEmbedding",
        rotary_embedding_torch,
        library(
            "interleaved, part of each head", parameters={**PARTIAL, "layout": "interleaved"}, head_dims=(16, 32, 64)
        ),
        60,
    ),
    Oracle(
        "x-transformers RotaryEmbedding",
        x_transformers,
        library(
            "interleaved, part of each head", parameters={**PARTIAL, "layout": "interleaved"}, head_dims=(16, 32, 64)
        ),
        60,
    ),
)
