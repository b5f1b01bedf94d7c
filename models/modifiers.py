"""What any encoding may carry besides: another scale, a cap on the scores, attention sinks.

Each is a parameter of every encoding. The last two are off unless given, and then cost nothing: their `Where` on a
switch is resolved when a session is built.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from models.encodings.card import Parameter
from models.encodings.encoding import Scores

SCALE = Parameter(
    "scale",
    "number",
    "factor on q.k in place of the encoding's own (a query_pre_attn_scalar of 256 is 256^-0.5 = 0.0625)",
    minimum=-1e6,
    maximum=1e6,
)
SOFTCAP = Parameter(
    "softcap",
    "number",
    "scores become cap tanh(score / cap), before the mask (Gemma 2, arXiv 2408.00118);"
    " terms then sum to the score before the cap",
    minimum=1e-3,
    maximum=1e9,
)
SINKS = Parameter(
    "sinks",
    "array",
    "one logit for each head that takes part in the softmax but has no key, so that rows sum to less than 1"
    " (gpt-oss, arXiv 2508.10925)",
    shape=("heads",),
)
MODIFIERS = (SCALE, SOFTCAP, SINKS)
SWITCHES = (SOFTCAP.name, SINKS.name)


def softcapped(scores: Scores, cap: Float[Tensor, ""], switch: Bool[Tensor, ""]) -> Scores:
    """cap tanh(scores / cap) where the switch is on."""
    return torch.where(switch, cap * torch.tanh(scores / cap), scores)


def masked_softmax(
    scores: Scores, visible: Bool[Tensor, "..."], sinks: Float[Tensor, " heads"], switch: Bool[Tensor, ""]
) -> Scores:
    """Softmax over the visible keys (and each head's sink, where the switch is on): exactly 0 elsewhere.

    A query that sees nothing has no softmax, 0/0; the last `where` makes its row all 0.
    """
    masked = torch.where(visible, scores, float("-inf"))
    sink = sinks[:, None, None].expand(scores.shape[0], -1, scores.shape[2], 1)
    with_sink = torch.softmax(torch.cat([masked, sink], dim=-1), dim=-1)[..., :-1]
    return torch.where(visible, torch.where(switch, with_sink, torch.softmax(masked, dim=-1)), 0.0)
