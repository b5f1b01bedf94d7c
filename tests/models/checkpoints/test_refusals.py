"""What cannot be imported is refused in words that say what was looked for and what is there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

from models.checkpoints.errors import CheckpointError
from models.checkpoints.family import imported
from models.checkpoints.importing import check_name, remove_others
from models.checkpoints.reading import read
from models.command_line import app
from tests.service import tiny

LLAMA = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2}
ATTENTION = {f"model.layers.0.self_attn.{part}_proj.weight": torch.zeros(8, 8) for part in "qkv"}
LAYER = {**ATTENTION, "model.layers.0.input_layernorm.weight": torch.ones(8)}


def folder(at: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    (at / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), at / "model.safetensors")
    return at


def test_an_architecture_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"model_type 'lama' .* the most like it: llama; known: bert, .*plain form"
    ):
        read(folder(tmp_path, {**LLAMA, "model_type": "lama"}, LAYER), 0)


def test_a_configuration_without_a_type(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no model_type in its configuration"):
        read(folder(tmp_path, {"hidden_size": 8}, LAYER), 0)


def test_a_layer_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has layers 0 to 1, so no layer 2"):
        read(folder(tmp_path, LLAMA, LAYER), 2)


def test_no_layer_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"say which layer of .* with --layer N"):
        read(folder(tmp_path, LLAMA, LAYER), None)


def test_a_tensor_that_is_missing_is_named_with_those_most_like_it(tmp_path: Path) -> None:
    renamed = {name.replace("k_proj", "kproj"): tensor for name, tensor in LAYER.items()}
    message = r"no tensor layers\.0\.self_attn\.k_proj\.weight .* the most like it: model\.layers\.0\.self_attn\.kproj"
    with pytest.raises(CheckpointError, match=message):
        read(folder(tmp_path, LLAMA, renamed), 0)


def test_a_tensor_of_another_shape(tmp_path: Path) -> None:
    other = {**LAYER, "model.layers.0.self_attn.v_proj.weight": torch.zeros(4, 8)}
    with pytest.raises(CheckpointError, match=r"v_proj\.weight of .* has shape \[4, 8\], but .* is \[8, 8\]"):
        read(folder(tmp_path, LLAMA, other), 0)


def test_a_name_that_two_towers_share(tmp_path: Path) -> None:
    both = {**LAYER, **{name.replace("model.", "vision."): tensor.clone() for name, tensor in LAYER.items()}}
    with pytest.raises(CheckpointError, match=r"2 tensors called layers\.0\.self_attn\.q_proj\.weight: .*not one"):
        read(folder(tmp_path, LLAMA, both), 0)


def test_a_configuration_that_lacks_a_size(tmp_path: Path) -> None:
    config = {key: value for key, value in LLAMA.items() if key != "num_attention_heads"}
    with pytest.raises(CheckpointError, match="has no num_attention_heads; the most like it: num_hidden_layers"):
        read(folder(tmp_path, {**config, "head_dim": 4}, LAYER), 0)


@pytest.mark.parametrize("value", ["eight", 0, -8, 8.5, True])
def test_a_size_that_is_none(tmp_path: Path, value: object) -> None:
    with pytest.raises(CheckpointError, match=f"hidden_size .* is {value!r}, no positive whole number"):
        read(folder(tmp_path, {**LLAMA, "hidden_size": value}, LAYER), 0)


def test_heads_that_cannot_share(tmp_path: Path) -> None:
    config = {**LLAMA, "num_attention_heads": 4, "num_key_value_heads": 3}
    with pytest.raises(CheckpointError, match="4 heads, which cannot share 3 key heads evenly"):
        read(folder(tmp_path, config, LAYER), 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"rope_type": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 4.0},
            "high_freq_factor in the rotary settings of .* is 4; rope-llama3 needs more than low_freq_factor",
        ),
        ({"rope_type": "yarn", "beta_slow": 33}, "beta_fast .* is 32; rope-yarn needs at least beta_slow, which is 33"),
    ],
)
def test_rotary_settings_that_contradict_each_other(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    lengths = {"factor": 2.0, "original_max_position_embeddings": 8}
    with pytest.raises(CheckpointError, match=message):
        read(folder(tmp_path, {**LLAMA, "rope_scaling": {**settings, **lengths}}, LAYER), 0)


def test_rotary_settings_that_cannot_be_read(tmp_path: Path) -> None:
    config = {**LLAMA, "rope_scaling": {"rope_type": "yam", "factor": 2.0}}
    with pytest.raises(CheckpointError, match=r"rotary settings of .* cannot be read: .*yarn"):
        read(folder(tmp_path, config, LAYER), 0)


def test_attention_that_is_not_served(tmp_path: Path) -> None:
    config = {**LLAMA, "layer_types": ["chunked_attention", "full_attention"]}
    with pytest.raises(CheckpointError, match="attention of type chunked_attention, which is not served"):
        read(folder(tmp_path, config, LAYER), 0)


def test_pickles_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no safetensors file, but pytorch_model\.bin, which may be pickles"):
        read(tmp_path, 0)


def test_an_index_may_not_point_elsewhere(tmp_path: Path) -> None:
    folder(tmp_path, LLAMA, LAYER)
    index = {"weight_map": {"model.layers.0.self_attn.q_proj.weight": "../secret.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"names files elsewhere: \.\./secret\.safetensors"):
        read(tmp_path, 0)


def test_a_shard_that_is_missing(tmp_path: Path) -> None:
    folder(tmp_path, LLAMA, LAYER)
    index = {"weight_map": dict.fromkeys(LAYER, "model-00001-of-00002.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"lacks model-00001-of-00002\.safetensors"):
        read(tmp_path, 0)


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    whole = folder(tmp_path, LLAMA, {name: torch.randn_like(tensor) for name, tensor in LAYER.items()})
    expected = read(whole, 0).layer.digest
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "config.json").write_text(json.dumps(LLAMA))
    weight_map = {}
    from safetensors.torch import load_file

    for number, (name, tensor) in enumerate(load_file(whole / "model.safetensors").items()):
        weight_map[name] = f"model-{number}.safetensors"
        save_file({name: tensor}, parts / weight_map[name])
    (parts / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert read(parts, 0).layer.digest == expected


def test_quantised_numbers(tmp_path: Path) -> None:
    packed = {**LAYER, "model.layers.0.self_attn.q_proj.weight": torch.zeros(8, 8, dtype=torch.uint8)}
    with pytest.raises(CheckpointError, match=r"q_proj\.weight has numbers of type uint8; float32, float16, bfloat16"):
        read(folder(tmp_path, LLAMA, packed), 0)


def test_half_precision_is_read_as_it_is(tmp_path: Path) -> None:
    torch.manual_seed(0)
    half = {name: torch.randn(tensor.shape).bfloat16() for name, tensor in LAYER.items()}
    layer = read(folder(tmp_path, LLAMA, half), 0).layer
    torch.testing.assert_close(layer.query.weight, half["model.layers.0.self_attn.q_proj.weight"].float())


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"GGUF" + bytes(20)])
@pytest.mark.parametrize("name", ["a.gguf", "a.safetensors"])
def test_a_file_that_is_none(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be read as"):
        read(tmp_path / name, 0 if name.endswith("gguf") else None)


def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no .*/nowhere"):
        read(tmp_path / "nowhere", 0)
    with pytest.raises(CheckpointError, match=r"has no config\.json; it has nothing"):
        read(tmp_path, 0)
    (tmp_path / "weights.h5").write_bytes(b"")
    with pytest.raises(CheckpointError, match="neither a folder with"):
        read(tmp_path / "weights.h5", 0)


@pytest.mark.parametrize("name", ["", "Mine", "a b", "../up", "-a", "a.b", "identity", "tiny", "analysis"])
def test_a_name_that_cannot_be_served(name: str) -> None:
    with pytest.raises(CheckpointError, match="name"):
        check_name(name)


def test_other_encodings_are_known_by_name(tmp_path: Path) -> None:
    layer = read(folder(tmp_path, LLAMA, LAYER), 0).layer
    with pytest.raises(CheckpointError, match="'ropes' is no encoding; did you mean rope"):
        imported(layer, "a", ["ropes"])
    both = [encoding.card.id for encoding in imported(layer, "a", ["relative-2", "rope"]).encodings]
    assert both == ["rope", "t5"]


def test_vectors_cannot_be_added_before_a_norm_of_the_sum(tmp_path: Path) -> None:
    names = {f"model.layers.0.self_attn.{part}_norm.weight": torch.ones(4) for part in "qk"}
    config = {**LLAMA, "model_type": "qwen3", "head_dim": 4}
    layer = read(folder(tmp_path, config, {**LAYER, **names}), 0).layer
    with pytest.raises(CheckpointError, match="sinusoidal adds a vector before the projections"):
        imported(layer, "a", ["sinusoidal"])


def test_a_name_holds_one_layer(tmp_path: Path) -> None:
    """What another layer left under the name goes; the same layer's other encodings stay."""
    for encoding, weights in (("none", "sha256:new"), ("rope", "sha256:old"), ("alibi", "sha256:new")):
        tiny.write(tmp_path, encoding, model="a", weights=weights)
    (tmp_path / "a" / "notes.txt").write_text("mine")
    remove_others(tmp_path / "a", "sha256:new")
    left = {path.name for path in (tmp_path / "a").iterdir()}
    assert left == {"none.onnx", "none.positions.onnx", "alibi.onnx", "alibi.positions.onnx", "notes.txt"}


def test_the_command_says_it_in_a_line(tmp_path: Path) -> None:
    where = str(folder(tmp_path, LLAMA, LAYER))
    done = CliRunner().invoke(app, ["import", where, "--layer", "7", "--name", "a", "--output", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "so no layer 7" in done.output
    assert not (tmp_path / "out").exists()
