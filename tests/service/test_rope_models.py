"""The table of model types, row by row against transformers."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING

from service.errors import InvalidInput
from service.rope_config import RopeConfig, Rotation
from service.rope_models import LATENT_STILL, LAYER_TYPES, ROPE_MODELS, STILL

# No rope_parameters of their own in transformers, or no implementation at all.
OLDER = {"chatglm", "codegen", "esm", "gptj", "roformer"}
# Their default sizes do not divide: nobody's checkpoint.
INDIVISIBLE = {"glm4_moe", "glm4v_moe_text", "qwen3_omni_moe_text"}
DEFAULTS = sorted(set(ROPE_MODELS) - OLDER - INDIVISIBLE)
APPLIES = {
    "cohere": "apply_rotary_pos_emb",
    "cohere2": "apply_rotary_pos_emb",
    "deepseek_v2": "apply_rotary_emb",
    "deepseek_v3": "apply_rotary_pos_emb_interleave",
    "ernie4_5": "apply_rotary_pos_emb",
    "glm": "apply_rotary_pos_emb",
    "glm4": "apply_rotary_pos_emb",
    "helium": "apply_rotary_pos_emb",
    "llama4_text": "apply_rotary_emb",
    "openai_privacy_filter": "apply_rotary_pos_emb",
    **dict.fromkeys(
        ("falcon", "gemma3_text", "glm4_moe", "gpt_neox", "gpt_oss", "granite", "llama", "mistral", "modernbert"),
        "apply_rotary_pos_emb",
    ),
    **dict.fromkeys(
        ("nemotron", "olmo2", "persimmon", "phi", "phi3", "qwen2", "qwen3", "smollm3", "stablelm", "starcoder2"),
        "apply_rotary_pos_emb",
    ),
}


def config(model_type: str) -> Any:
    return CONFIG_MAPPING[model_type]()


def whole(rotation: Rotation) -> tuple[str | None, str, int, float]:
    return rotation.layer_type, rotation.encoding, rotation.head_dim, float(rotation.scalars["theta"])


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_defaults_are_transformers(model_type: str) -> None:
    """A model type alone is read like all that transformers writes for it."""
    document = json.loads(json.dumps(config(model_type).to_dict(), default=str))
    alone = RopeConfig.read({"text_config": {"model_type": model_type}})
    written = RopeConfig.read(document)
    by_layer = {rotation.layer_type: rotation for rotation in written.rotations}
    assert set(by_layer) == {rotation.layer_type for rotation in alone.rotations}
    for rotation in alone.rotations:
        theirs = by_layer[rotation.layer_type]
        assert whole(rotation) == whole(theirs)
        shared = set(rotation.scalars) & set(theirs.scalars) - {"scale", "softcap"}
        assert {name: rotation.scalars[name] for name in shared} == {name: theirs.scalars[name] for name in shared}


@pytest.mark.parametrize("model_type", sorted(LAYER_TYPES))
def test_layer_types_are_those_of_transformers(model_type: str) -> None:
    parameters = config(model_type).rope_parameters
    rotations = RopeConfig.read({"text_config": {"model_type": model_type}}).rotations
    assert {rotation.layer_type: float(rotation.scalars["theta"]) for rotation in rotations} == {
        name: settings["rope_theta"] for name, settings in parameters.items()
    }


@pytest.mark.parametrize("model_type", APPLIES)
def test_layouts_are_those_of_transformers(model_type: str) -> None:
    """Components i and j are a pair where q = e_i and k = e_j, a quarter of a turn apart, have a product."""
    module = importlib.import_module(type(config(model_type)).__module__.replace("configuration_", "modeling_"))
    size = 8
    units = torch.eye(size)[:, None, None, :]  # a batch of one token each, e_0, e_1, ...
    queries, _ = rotated(module, APPLIES[model_type], units, 0.0)
    _, keys = rotated(module, APPLIES[model_type], units, torch.pi / 2)
    partner = int((queries[0] @ keys.T).abs().argmax())
    assert partner == {"interleaved": 1, "half": size // 2}[ROPE_MODELS[model_type].layout]


def rotated(module: Any, name: str, units: torch.Tensor, angle: float) -> tuple[torch.Tensor, torch.Tensor]:
    """transformers' own rotation of queries and of keys, by one angle for all pairs."""
    size = units.shape[-1]
    if name == "apply_rotary_emb":
        half = torch.full((1, 1, size // 2), angle)
        tables: tuple[torch.Tensor, ...] = (torch.polar(torch.ones_like(half), half),)
    else:
        of_pairs = module.__name__.endswith(("gpt_oss", "openai_privacy_filter"))
        angles = torch.full((1, 1, size // 2 if of_pairs else size), angle)
        tables = (angles.cos(), angles.sin())
    queries, keys = getattr(module, name)(units, units, *tables)
    return queries.reshape(size, size), keys.reshape(size, size)


@pytest.mark.parametrize("model_type", sorted(LATENT_STILL))
def test_models_with_latent_attention_keep_so_many_components_still(model_type: str) -> None:
    assert config(model_type).qk_nope_head_dim == LATENT_STILL[model_type]


@pytest.mark.parametrize("model_type", sorted(STILL))
def test_models_without_rotation_have_no_base_in_transformers_either(model_type: str) -> None:
    theirs = config(model_type)
    assert not any(hasattr(theirs, name) for name in ("rope_parameters", "rope_theta", "rope_scaling"))
    with pytest.raises(InvalidInput, match=f"^{model_type} does not rotate .*encoding={STILL[model_type]}"):
        RopeConfig.read({"model_type": model_type}, 8)
