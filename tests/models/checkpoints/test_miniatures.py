"""Layers of small random models of every architecture, against the library that made them."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from models.attention import PositionTables
from models.checkpoints.architectures import ARCHITECTURES
from models.checkpoints.gpt import mpt_alibi
from models.checkpoints.reading import read
from models.checkpoints.reference import bias_once, reference
from models.projections import Identity
from tests.models.checkpoints.direct import weights
from tests.models.checkpoints.miniatures import LAYERS, MINIATURES, VOCABULARY

SEEDS = range(5)
ALIKE = ("xlm-roberta", "camembert", "mt5", "umt5")
"""Read as another type is, and configured alike."""
CASES = [(name, seed) for name in MINIATURES for seed in (SEEDS[:1] if name in ALIKE else SEEDS)]
TOKENS = 21


class Miniature(NamedTuple):
    """A saved model, and what it answered: hidden states before each layer, attention in each."""

    folder: Path
    ids: Tensor
    hidden: tuple[Tensor, ...]
    attention: tuple[Tensor, ...]


def make(model_type: str, seed: int, folder: Path, plain: bool = False, **more: Any) -> Miniature:
    """`plain`: without scaled rotation; `more` is configured besides."""
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(seed)
    values = {**MINIATURES[model_type](random.Random(f"{model_type} {seed}")), **more}
    if plain:
        kept = ("rope_theta", "partial_rotary_factor")
        turning = {name: value for name, value in values["rope_parameters"].items() if name in kept}
        values["rope_parameters"] = {**turning, "rope_type": "default"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = AutoConfig.for_model(model_type, **{"vocab_size": VOCABULARY, **values})
        model = AutoModel.from_config(config, attn_implementation="eager").eval()
        shaken(model)
        model.save_pretrained(folder)
        ids = torch.randint(3, VOCABULARY, (2, TOKENS))
        encoder = model.get_encoder() if config.is_encoder_decoder else model
        with torch.no_grad(), bias_once(model):
            answer: Any = encoder(input_ids=ids, output_hidden_states=True, output_attentions=True)
    return Miniature(folder, ids, answer.hidden_states, answer.attentions)


def shaken(model: nn.Module) -> None:
    """Weights large enough that attention has a shape, biases and norms that are not 0 and 1."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue  # sinusoids, which were not learned
            if parameter.dim() > 1:
                parameter.normal_(0, 0.35)
            elif "sinks" in name or "bias" in name:
                parameter.normal_(0, 0.5)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))


@pytest.mark.parametrize(("model_type", "seed"), CASES)
def test_attention_is_that_of_the_library(model_type: str, seed: int, tmp_path: Path) -> None:
    miniature = make(model_type, seed, tmp_path)
    assert len(miniature.attention) == LAYERS
    for index, expected in enumerate(miniature.attention):
        layer = read(tmp_path, index).layer
        difference = (weights(layer, miniature.hidden[index]) - expected).abs().max()
        assert difference < 1e-5, f"layer {index}: {layer.positional.id} {layer.positional.scalars}"


@pytest.mark.parametrize("model_type", MINIATURES)
def test_the_reference_of_one_layer_is_that_of_the_whole_model(model_type: str, tmp_path: Path) -> None:
    """What the parity line of an import is measured against."""
    miniature = make(model_type, 0, tmp_path)
    for index, expected in enumerate(miniature.attention):
        found = read(tmp_path, index)
        assert found.source is not None
        assert found.config is not None
        answer = reference(found.source, found.config, index, miniature.hidden[index])
        assert answer is not None
        torch.testing.assert_close(answer, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("heads", "largest"), [(4, 8), (6, 8), (8, 16), (12, 4)])
def test_mpts_slopes_are_those_of_its_own_code(heads: int, largest: int) -> None:
    """transformers has that code, but never hands alibi_bias_max to it."""
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    theirs = build_mpt_alibi_tensor(heads, TOKENS, largest)[:, 0]
    positions = torch.arange(TOKENS).double()
    tables = PositionTables(Identity(), mpt_alibi(heads, largest), None)
    nothing = torch.tensor(float("nan"), dtype=torch.float64)
    at = tables.at(positions, positions, torch.tensor(True), torch.zeros(heads, 2), nothing)
    bias = tables.encoding.tables(at, {})["bias"]
    torch.testing.assert_close(bias[:, -1], theirs.float())
    assert ("alibi_bias_max" in tables.encoding.card.conventions["slopes"]) == (largest != 8)


def test_every_architecture_has_a_miniature() -> None:
    assert set(MINIATURES) == set(ARCHITECTURES)
