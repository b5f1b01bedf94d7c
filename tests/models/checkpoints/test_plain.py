"""The plain form of a layer: what is written is what is served, and nothing in it is passed over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from models.checkpoints.errors import CheckpointError
from models.checkpoints.layer import Window
from models.checkpoints.reading import read
from tests.models.checkpoints.direct import weights
from tests.models.checkpoints.test_miniatures import make

HEADS = 2
TENSORS = {f"{part}.weight": torch.randn(8, 6, generator=torch.Generator().manual_seed(0)) for part in "qkv"}
TENSORS = {
    name.replace("q.", "query.").replace("k.", "key.").replace("v.", "value."): tensor
    for name, tensor in TENSORS.items()
}


def write(at: Path, tensors: Mapping[str, Tensor], **settings: Any) -> Path:
    path = at / "layer.safetensors"
    save_file(dict(tensors), path, {name: json.dumps(value) for name, value in settings.items()})
    return path


@pytest.mark.parametrize(("model_type", "index"), [("llama", 1), ("phi", 1), ("olmo2", 0), ("qwen3", 0), ("t5", 2)])
def test_a_layer_written_so_attends_as_it_did(model_type: str, index: int, tmp_path: Path) -> None:
    miniature = make(model_type, 0, tmp_path / "model")
    layer = read(miniature.folder, index).layer
    tensors = {}
    for part, projection in (("query", layer.query), ("key", layer.key), ("value", layer.value)):
        tensors[f"{part}.weight"] = projection.weight
        if projection.bias is not None:
            tensors[f"{part}.bias"] = projection.bias
    kinds = {}
    named = (("norm", layer.norm), *((f"{part}_norm", norm and norm.norm) for part, norm in _head_norms(layer)))
    for part, norm in named:
        if norm is not None and norm.weight is not None:
            tensors[f"{part}.weight"] = norm.weight
            kinds["norm" if part == "norm" else "head_norm"] = norm.kind
            kinds["norm_epsilon" if part == "norm" else "head_norm_epsilon"] = norm.epsilon
            if norm.bias is not None:
                tensors[f"{part}.bias"] = norm.bias
    tensors |= {f"{layer.positional.id}.{name}": value for name, value in layer.positional.arrays.items()}
    scalars = {f"{layer.positional.id}.{name}": value for name, value in layer.positional.scalars.items()}
    sizes = {"heads": layer.heads, "key_heads": layer.key_heads, "encoding": layer.positional.id}
    told = {**sizes, "causal": layer.causal, "scale": layer.scale, **kinds, **scalars}
    again = read(write(tmp_path, {name: tensor.clone() for name, tensor in tensors.items()}, **told), None).layer
    difference = (weights(again, miniature.hidden[index]) - miniature.attention[index]).abs().max()
    assert difference < 1e-5


def _head_norms(layer: Any) -> tuple[tuple[str, Any], ...]:
    return (("query", layer.query_norm), ("key", layer.key_norm))


def test_what_is_not_said_is_a_plain_bidirectional_layer(tmp_path: Path) -> None:
    layer = read(write(tmp_path, TENSORS, heads=HEADS), None).layer
    assert (layer.positional.id, layer.causal, layer.norm, layer.window) == ("none", False, None, None)
    assert layer.scale == 0.5


def test_settings_may_stand_in_a_file_beside_it(tmp_path: Path) -> None:
    path = write(tmp_path, TENSORS)
    settings = {"heads": HEADS, "encoding": "rope", "rope.theta": 500.0, "window_before": 3, "softcap": 20}
    path.with_suffix(".json").write_text(json.dumps(settings))
    layer = read(path, None).layer
    assert layer.positional.scalars == {"theta": 500.0}
    assert layer.softcap == 20
    assert layer.window is not None
    assert layer.window.before == 3
    assert layer.window.after > 1_000_000
    assert isinstance(layer.window, Window)


@pytest.mark.parametrize(
    ("tensors", "settings", "message"),
    [
        ({}, {}, "has no heads"),
        ({"query.wieght": torch.zeros(8, 6)}, {}, r"a tensor 'query\.wieght', .*did you mean query\.weight"),
        ({}, {"haeds": 2}, "the setting 'haeds', .*did you mean heads"),
        ({}, {"heads": 3}, r"query\.weight of .* has shape \[8, 6\]; .* there are 3 heads"),
        ({"key.weight": torch.zeros(4, 6)}, {"heads": 2}, r"key\.weight of .* has shape \[4, 6\]; it must be \[8, 6\]"),
        ({"query.bias": torch.zeros(6)}, {"heads": 2}, r"query\.bias of .* has shape \[6\]; it must be \[8\]"),
        ({}, {"heads": 2, "encoding": "rop"}, "'rop' is no encoding; did you mean rope"),
        ({}, {"heads": 2, "encoding": "rope", "alibi.x": 1}, r"the setting 'alibi\.x'"),
        ({}, {"heads": 2, "encoding": "rope", "rope.layout": "halves"}, "must be one of interleaved, half"),
        ({}, {"heads": 2, "encoding": "rope", "rope.theta": "big"}, r"rope\.theta .* is 'big', no number"),
        ({"t5.bias": torch.zeros(32, 3)}, {"heads": 2, "encoding": "t5"}, r"t5\.bias .* must be \[buckets, 2\]"),
        ({"norm.weight": torch.ones(8)}, {"heads": 2}, r"norm of .* has shape \[8\]; it must be \[6\]"),
        ({"norm.bias": torch.ones(6)}, {"heads": 2}, r"has norm\.bias, but no norm\.weight"),
        ({"query_norm.weight": torch.ones(3)}, {"heads": 2}, r"must be \[4\] or \[2, 4\] or \[8\]"),
        ({"norm.weight": torch.ones(6)}, {"heads": 2, "norm": "batch"}, "must be layer or rms"),
        ({"sinks": torch.ones(3)}, {"heads": 2}, r"sinks of .* it must be \[2\]"),
        ({}, {"heads": 2, "key_heads": 3}, "cannot share 3 key heads evenly"),
    ],
)
def test_what_does_not_fit_is_refused(
    tensors: Mapping[str, Tensor], settings: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(write(tmp_path, {**TENSORS, **tensors}, **settings), None)


def test_a_projection_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tensor key\.weight; it has query\.weight, value\.weight"):
        read(write(tmp_path, {name: TENSORS[name] for name in TENSORS if "key" not in name}, heads=HEADS), None)


def test_a_layer_may_not_be_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds one layer; leave --layer out"):
        read(write(tmp_path, TENSORS, heads=HEADS), 0)
