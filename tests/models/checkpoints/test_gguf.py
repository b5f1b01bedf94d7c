"""GGUF files of small random models, written as llama.cpp's conversion writes them, beside the models themselves and
transformers' own reading.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from models.checkpoints.errors import CheckpointError
from models.checkpoints.gguf_layouts import halves
from models.checkpoints.gguf_reader import Reader
from models.checkpoints.hugging_face import Folder
from models.checkpoints.reading import read
from tests.models.checkpoints.direct import weights
from tests.models.checkpoints.miniatures import LAYERS, MINIATURES
from tests.models.checkpoints.test_miniatures import make

# What the format does not say, and llama.cpp takes for granted.
UNSAID: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"use_sliding_window": False},
    "phi": {"qk_layernorm": False},
    "smollm3": {"no_rope_layers": [1] * LAYERS},
    "starcoder2": {"sliding_window": None},
}
PAIRED = ("llama", "granite", "smollm3")
ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "phi": "phi2"} | {
    name: name for name in ("phi3", "gemma", "olmo2", "granite", "starcoder2", "smollm3")
}


def paired(rows: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp does to the rows of W_q and W_k of Llama."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write(
    folder: Path,
    path: Path,
    architecture: str,
    numbers: Mapping[str, float] | None = None,
    embeddings: gguf.GGMLQuantizationType | None = None,
    **more: Any,
) -> None:
    """A saved model as GGUF, without its vocabulary; `numbers` are said of it besides, and `embeddings` is the type of
    its tokens' embeddings.
    """
    source = Folder(folder)
    config: Any = source.config
    writer = gguf.GGUFWriter(path, architecture)
    heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(LAYERS)
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_key_length(head_dim)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))
    writer.add_layer_norm_eps(config.get("layer_norm_eps", config.get("norm_epsilon", 1e-5)))
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if "attention_multiplier" in config:
        writer.add_attention_scale(config["attention_multiplier"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    writer.add_array("tokenizer.ggml.tokens", [f"token {number}" for number in range(2000)])
    if config.get("attn_logit_softcapping"):
        writer.add_float32(f"{architecture}.attn_logit_softcapping", config["attn_logit_softcapping"])
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        writer.add_sliding_window(config["sliding_window"])
    for key, number in (numbers or {}).items():
        writer.add_float32(key, number)
    names = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture), LAYERS)
    for name in source.names:
        known = names.get_name(f"model.{name}", try_suffixes=(".weight", ".bias"))
        if known is None:
            continue
        tensor = source.tensor(name).numpy()
        if architecture in PAIRED and ".attn_q." in known:
            tensor = paired(tensor, heads)
        if architecture in PAIRED and ".attn_k." in known:
            tensor = paired(tensor, key_heads)
        if architecture in ("gemma", "gemma2") and known.endswith("norm.weight"):
            tensor = tensor + 1
        if known.startswith("token_embd") and embeddings is not None:
            writer.add_tensor(known, gguf.quantize(tensor, embeddings), raw_dtype=embeddings)
        else:
            writer.add_tensor(known, tensor)
    for name, array in more.items():
        writer.add_tensor(name.replace("_dot_", "."), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_both_forms_of_a_model_give_the_same_layer(model_type: str, seed: int, tmp_path: Path) -> None:
    more = dict(UNSAID.get(model_type, {}))
    if model_type == "gemma2":
        more["query_pre_attn_scalar"] = MINIATURES["gemma2"](random.Random(f"gemma2 {seed}"))["head_dim"]
    miniature = make(model_type, seed, tmp_path / "model", plain=True, **more)
    path = tmp_path / "model.gguf"
    write(miniature.folder, path, ARCHITECTURES[model_type])
    for index in range(LAYERS):
        theirs, ours = read(miniature.folder, index).layer, read(path, index).layer
        for one, other in zip(ours.tensors(), theirs.tensors(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
        difference = (weights(ours, miniature.hidden[index]) - miniature.attention[index]).abs().max()
        assert difference < 1e-5


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma2"])
def test_transformers_reads_the_same_tensors(model_type: str, tmp_path: Path) -> None:
    """So the files of this test are what its loader takes for such a model."""
    from transformers import AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    miniature = make(model_type, 1, tmp_path / "model", plain=True)
    path = tmp_path / "model.gguf"
    write(miniature.folder, path, ARCHITECTURES[model_type])
    model = AutoModelForCausalLM.from_pretrained(miniature.folder)
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    layer = read(path, 1).layer
    for part, projection in (("q", layer.query), ("k", layer.key), ("v", layer.value)):
        torch.testing.assert_close(projection.weight, theirs[f"model.layers.1.self_attn.{part}_proj.weight"])


def test_frequencies_that_were_worked_out_before(tmp_path: Path) -> None:
    """Llama 3's bands: a file has the factor of each frequency in place of the numbers that they follow from."""
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    bands = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    turning = {**bands, "rope_theta": 500.0, "original_max_position_embeddings": 16}
    miniature = make("llama", 0, tmp_path / "model", rope_parameters=turning)
    config = AutoConfig.from_pretrained(miniature.folder)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    pairs = torch.arange(len(scaled)).double()
    factors = (500.0 ** (-pairs / len(scaled)) / scaled.double()).float().numpy()
    path = tmp_path / "model.gguf"
    write(miniature.folder, path, "llama", rope_freqs_dot_weight=factors)
    layer = read(path, 1).layer
    assert layer.positional.id == "rope-longrope"
    assert (weights(layer, miniature.hidden[1]) - miniature.attention[1]).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F16", "BF16"])
def test_quantised_tensors_are_what_their_numbers_stand_for(kind: str, tmp_path: Path) -> None:
    """Dequantised by gguf; here only that the layer gets the right tensor, and whole rows of it."""
    quantisation = gguf.GGMLQuantizationType[kind]
    rows = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).numpy()
    config = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 8}
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_parameters": {"rope_theta": 100.0}}))
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_context_length(8)
    packed = gguf.quantize(rows, quantisation)
    for part in "qkv":
        writer.add_tensor(f"blk.0.attn_{part}.weight", packed, raw_dtype=quantisation)
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    layer = read(tmp_path / "a.gguf", 0).layer
    expected = torch.from_numpy(gguf.dequantize(packed, quantisation).reshape(64, 64).copy())
    torch.testing.assert_close(layer.value.weight, expected, atol=0, rtol=0)
    torch.testing.assert_close(layer.query.weight, halves(expected, 2), atol=0, rtol=0)
    largest = float(np.abs(rows).max())
    assert (expected - torch.from_numpy(rows)).abs().max() < largest / 8


@pytest.mark.parametrize("heads", [1, 3])
def test_halves_undo_what_was_paired(heads: int) -> None:
    rows = torch.randn(heads * 8, 5, generator=torch.Generator().manual_seed(heads))
    again: Tensor = halves(torch.from_numpy(paired(rows.numpy(), heads)), heads)
    torch.testing.assert_close(again, rows, atol=0, rtol=0)
    assert halves(torch.from_numpy(paired(rows[:, 0].numpy(), heads)), heads).equal(rows[:, 0])


def test_long_lists_of_words_are_passed_over_and_all_else_is_read(tmp_path: Path) -> None:
    miniature = make("qwen2", 0, tmp_path / "model", plain=True)
    write(miniature.folder, tmp_path / "a.gguf", "qwen2")
    ours, theirs = Reader(tmp_path / "a.gguf"), gguf.GGUFReader(tmp_path / "a.gguf")
    assert list(ours.fields) == list(theirs.fields)
    for name, field in theirs.fields.items():
        if name != "tokenizer.ggml.tokens":
            assert ours.fields[name].contents() == field.contents()
    for one, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert (one.name, one.data_offset, one.tensor_type) == (other.name, other.data_offset, other.tensor_type)


def test_an_architecture_that_is_not_read_from_gguf(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="architecture 'mamba', which is not read from GGUF files here; known: "):
        read(tmp_path / "a.gguf", 0)
