"""What commands read."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from service.commands.inputs import Unreadable, matrix, parameters, read
from tests.service.samples import npy, npz, tensors

X = np.arange(6, dtype=np.float32).reshape(3, 2)


def same(found: Any, expected: Any) -> bool:
    return bool(np.array_equal(np.asarray(found), np.asarray(expected)))


@pytest.mark.parametrize(
    "content",
    [
        npy(X),
        npz(embeddings=X),
        npz(True, embeddings=X),
        tensors(embeddings=X),
        json.dumps(X.tolist()).encode(),
        json.dumps({"embeddings": X.tolist()}, indent=1).encode(),
        safetensors.torch.save({"embeddings": torch.tensor(X).bfloat16()}),
    ],
    ids=["npy", "npz", "compressed", "safetensors", "list", "object", "bfloat16"],
)
def test_a_format_is_told_by_its_first_bytes(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    assert same(read(str(tmp_path / "x"))["embeddings"], X)


def test_every_member_is_read(tmp_path: Path) -> None:
    bias = np.ones((32, 1), np.float32)
    mask = np.array([True, True, False])
    (tmp_path / "x").write_bytes(
        npz(False, **{"queries": X[:1], "keys": X, "mask": mask, "tokens": np.array(["a", "b", "c"]), "t5.bias": bias})
    )
    members = read(str(tmp_path / "x"))
    assert same(members["queries"], X[:1])
    assert same(members["mask"], mask)
    assert list(members["tokens"]) == ["a", "b", "c"]
    assert members["parameters"].keys() == {"t5.bias"}
    document = {"text": "hello", "parameters": {"t5.bias": bias.tolist()}}
    (tmp_path / "x").write_text(json.dumps(document))
    members = read(str(tmp_path / "x"))
    assert members["text"] == "hello"
    assert same(members["parameters"]["t5.bias"], bias)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "neither npy, npz, safetensors nor JSON"),
        (b"hello", "neither npy, npz, safetensors nor JSON"),
        (b"[[1, 2], [3", "neither npy, npz, safetensors nor JSON"),
        (b"3", "neither a list of rows nor an object"),
        (b'{"embedings": [[1]]}', "'embedings'; did you mean embeddings?"),
        (npy(X)[:-3], "cannot be read"),
        (npy(np.array([{}], dtype=object), allow_pickle=True), "cannot be read"),
        (npz(embeddings=X)[:-30], "cannot be read"),
        (tensors(embeddings=X)[:-3], "cannot be read"),
        (npy(np.array(["a", "b"])), "embeddings: an array of <U1 came where numbers are needed"),
        (b"[[1, 2], [3]]", "embeddings is no array of numbers: its rows are not all of one length"),
        (b'{"embeddings": [[1]], "parameters": {"t5.bias": ["x"]}}', "t5.bias: an array of <U1 came"),
    ],
)
def test_what_cannot_be_read_is_named_and_said_why(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(Unreadable) as failure:
        read(str(tmp_path / "x"))
    assert str(tmp_path / "x") in str(failure.value)
    assert words in str(failure.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(Unreadable, match="no-such-file: No such file"):
        read("no-such-file")


def test_parameters_are_scalars_or_files(tmp_path: Path) -> None:
    np.save(tmp_path / "bias.npy", X)
    found = parameters(["rope.theta=500000", f"t5.bias=@{tmp_path / 'bias.npy'}", "rope@a.layout=half"])
    assert same(found.pop("t5.bias"), X)
    assert found == {"rope.theta": "500000", "rope@a.layout": "half"}
    for wrong in (["rope.theta"], ["=3"], ["rope.theta="], ["a.b=1", "a.b=2"], ["t5.bias=@nowhere.npy"]):
        with pytest.raises(Unreadable):
            parameters(wrong)


def test_one_array_is_not_several(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.savez(file, queries=X, keys=X)
    (tmp_path / "x").write_bytes(file.getvalue())
    with pytest.raises(Unreadable, match="one array is needed"):
        matrix(str(tmp_path / "x"))
