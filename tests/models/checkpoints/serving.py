"""Imported layers behind a real service."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
from torch import Tensor

from models.checkpoints.family import imported
from models.checkpoints.importing import write_layer_text
from models.checkpoints.reading import read
from models.export import export_encoding
from tests.service.process import serving


def export(checkpoint: Path, index: int | None, name: str, folder: Path, others: Iterable[str] = ()) -> None:
    """What `python -m models import` writes, without its comparison."""
    found = read(checkpoint, index)
    family, encodings = imported(found.layer, name, others, {"checkpoint": dict(found.origin)})
    for encoding in encodings:
        export_encoding(family, encoding, folder)
    if found.index == 0:
        write_layer_text(folder / name, found, encodings)


@contextmanager
def client(folder: Path) -> Iterator[httpx.Client]:
    with (
        serving(models=str(folder), request_cells=str(1 << 24)) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{process.port}", timeout=60) as client,
    ):
        yield client


def served_text(client: httpx.Client, model: str, text: str, **query: str) -> tuple[np.ndarray, list[str]]:
    """Attention weights [heads, tokens, tokens] of a text, and its tokens."""
    response = client.post("/attention", params={"model": model, "return": "weights", **query}, json={"text": text})
    assert response.status_code == 200, response.text
    answer = response.json()
    (result,) = answer["results"]
    return np.array(result["weights"]), answer["tokens"]


def served(client: httpx.Client, model: str, hidden: Tensor, **query: str) -> np.ndarray:
    """Attention weights [batch, heads, tokens, tokens] of hidden states [batch, tokens, width]."""
    body = io.BytesIO()
    np.save(body, hidden.numpy())
    response = client.post(
        "/attention",
        params={"model": model, "return": "weights", **query},
        content=body.getvalue(),
        headers={"Content-Type": "application/x-npy", "Accept": "application/x-npz"},
    )
    assert response.status_code == 200, response.text
    arrays = np.load(io.BytesIO(response.content))
    (name,) = (name for name in arrays.files if name.endswith("/weights"))
    weights: np.ndarray = arrays[name]
    return weights
