"""What becomes of token embeddings before the graphs, beside PyTorch's own functions in float64."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from models.text import Made, byte_tokenizer, write_text
from service.embeddings import Embeddings, EmbeddingsError
from service.errors import InvalidInput

TOKENS, WIDTH, OUT, POSITIONS = 256, 6, 5, 9


def made(scale: float, segment: bool, positions: bool, norm: int, projection: int, first: bool) -> Made:
    """`norm` and `projection`: 0 for none, 1 without a bias, 2 with one."""
    draw = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    inside = OUT if first and projection else WIDTH
    return Made(
        scale=scale,
        segment=drawn(WIDTH) if segment else None,
        positions=drawn(POSITIONS, WIDTH) if positions else None,
        norm=(drawn(inside), drawn(inside) if norm == 2 else None) if norm else None,
        epsilon=1e-3,
        projection=(drawn(OUT, WIDTH), drawn(OUT) if projection == 2 else None) if projection else None,
        projection_first=first,
    )


def expected(about: Made, rows: Tensor, at: Tensor) -> Tensor:
    x = rows.double() * about.scale
    x = x if about.segment is None else x + about.segment
    x = x if about.positions is None else x + about.positions[at]

    def normed(x: Tensor) -> Tensor:
        if about.norm is None:
            return x
        weight, bias = about.norm
        return layer_norm(x, (len(weight),), weight.double(), None if bias is None else bias.double(), about.epsilon)

    def projected(x: Tensor) -> Tensor:
        if about.projection is None:
            return x
        weight, bias = about.projection
        return linear(x, weight.double(), None if bias is None else bias.double())

    return normed(projected(x)) if about.projection_first else projected(normed(x))


@given(
    about=st.builds(
        made,
        st.sampled_from([1.0, 24.0]),
        st.booleans(),
        st.booleans(),
        st.integers(0, 2),
        st.integers(0, 2),
        st.booleans(),
    ),
    ids=st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=POSITIONS),
    data=st.data(),
)
def test_rows_become_what_the_model_makes_of_them(
    tmp_path_factory: pytest.TempPathFactory, about: Made, ids: list[int], data: st.DataObject
) -> None:
    at = data.draw(st.none() | st.lists(st.integers(0, POSITIONS - 1), min_size=len(ids), max_size=len(ids)))
    rows = torch.randn((TOKENS, WIDTH), generator=torch.Generator().manual_seed(1))
    folder = write_text(tmp_path_factory.mktemp("one") / "model", byte_tokenizer(), rows, made=about)
    read = Embeddings.read(folder / "embeddings.safetensors", "model")
    places = torch.tensor(list(range(len(ids))) if at is None else at)
    theirs = expected(about, rows[ids], places)
    found = read.of(np.array(ids), None if at is None else np.array(at, np.float64))
    assert found.dtype == np.float32
    assert read.width == theirs.shape[1]
    np.testing.assert_allclose(found, theirs.numpy(), atol=1e-4, rtol=1e-5)
    np.testing.assert_array_equal(read.of(np.array(ids), bare=True), rows[ids].numpy())


def test_positions_without_a_row_are_refused(tmp_path: Path) -> None:
    about = made(1.0, False, True, 0, 0, False)
    folder = write_text(tmp_path / "model", byte_tokenizer(), torch.ones(TOKENS, WIDTH), made=about)
    read = Embeddings.read(folder / "embeddings.safetensors", "model")
    assert read.largest == POSITIONS - 1
    with pytest.raises(InvalidInput, match="has 10 tokens, but the model has positions for 9"):
        read.of(np.zeros(10, int))
    for wrong in (-1.0, 0.5, float(POSITIONS)):
        with pytest.raises(InvalidInput, match=rf"up to 8, but positions\[1\] is {wrong:g}") as caught:
            read.of(np.zeros(2, int), np.array([0.0, wrong]))
        assert caught.value.pointer == "/positions"


@pytest.mark.parametrize(
    ("about", "tensors", "reason"),
    [
        ({"format": 3}, {}, "says format 3, not 1 or 2"),
        ({"steps": ["scale", "rotate"]}, {}, "the step 'rotate'; known: scale, segment"),
        ({"steps": ["segment"]}, {}, r"segment is missing; \[4\] is needed"),
        ({"steps": ["segment"]}, {"segment": (3,)}, r"segment has shape \[3\]; \[4\] is needed"),
        ({"steps": ["positions"]}, {"positions": (4,)}, r"positions has shape \[4\]; \[positions, 4\] is needed"),
        ({"steps": ["norm"]}, {"norm.weight": (4,), "norm.bias": (1,)}, r"norm.bias has shape \[1\]"),
        ({"steps": ["projection"]}, {"projection.weight": (2, 3)}, r"projection.weight has shape \[2, 3\]"),
        (
            {"steps": ["projection", "norm"]},
            {"projection.weight": (2, 4), "norm.weight": (4,)},
            r"norm.weight has shape \[4\]; \[2\]",
        ),
        ({}, {"embeddings": None}, "has no tensor embeddings; it has other"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    about: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...] | None], reason: str, tmp_path: Path
) -> None:
    shapes = {"embeddings": (3, 4), "other": (1,), **tensors}
    arrays = {name: np.ones(shape, np.float32) for name, shape in shapes.items() if shape is not None}
    said = {"format": 2, "model": "model", "encoding": None, "scale": 1.0, "epsilon": 1e-5, **about}
    save_file(arrays, tmp_path / "a.safetensors", {"attention": json.dumps(said)})
    with pytest.raises(EmbeddingsError, match=reason):
        Embeddings.read(tmp_path / "a.safetensors", "model")
