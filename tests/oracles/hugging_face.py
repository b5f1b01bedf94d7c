"""Hugging Face attention modules as oracles: identity projections, our parameters copied in, probabilities read out.

The traps (transformers 5): use the attention module, not the model, which normalises first; without
`attn_implementation="eager"` no probabilities come back and nothing says so; several modules take their softmax, and
their cosines, in float32 whatever the weights are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.utils import logging

from tests.oracles.answer import Answer, from_probabilities
from tests.oracles.case import Case

torch.set_num_threads(1)
logging.set_verbosity_error()  # configurations of one layer and no vocabulary are remarked upon


def identity(*layers: nn.Linear) -> None:
    """q, k, v (stacked or apart) and the output are the hidden states themselves."""
    for layer in layers:
        width = layer.in_features
        layer.weight.data = torch.eye(width).repeat(layer.out_features // width, 1)
        if layer.bias is not None:
            layer.bias.data.zero_()


def identity_by_head(layer: nn.Linear, heads: int) -> None:
    """A fused projection whose outputs are ordered head, then q, k, v, then component."""
    width = layer.in_features
    each = torch.eye(width).reshape(heads, 1, width // heads, width)
    layer.weight.data = each.expand(-1, 3, -1, -1).reshape(3 * width, width).clone()
    if layer.bias is not None:
        layer.bias.data.zero_()


def hidden(case: Case) -> Tensor:
    """[batch, tokens, width]"""
    return torch.from_numpy(case.keys).flatten(2)


def tensor(array: Any) -> Tensor:
    return torch.as_tensor(np.asarray(array), dtype=torch.float64)


def additive(case: Case) -> Tensor:
    """0 where visible, the least float32 elsewhere: what a model hands to its attention."""
    mask = np.where(case.visible, 0.0, np.finfo(np.float32).min)
    return torch.from_numpy(np.broadcast_to(mask, _shape(case)).copy())


def visible(case: Case) -> Tensor:
    """[batch, heads, queries, keys] of booleans."""
    return torch.from_numpy(np.broadcast_to(case.visible, _shape(case)).copy())


def answer(case: Case, probabilities: Tensor, output: Tensor) -> Answer:
    """From a module's attention probabilities [batch, heads, queries, keys] and its output [batch, queries, width]."""
    return from_probabilities(case, probabilities.detach().numpy(), output.detach().numpy().reshape(case.queries.shape))


def _shape(case: Case) -> tuple[int, int, int, int]:
    return (case.queries.shape[0], case.heads, case.queries.shape[1], case.keys.shape[1])
