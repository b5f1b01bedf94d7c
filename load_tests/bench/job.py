"""The job that every server does: attention weights of 32 tokens, 64 wide, under RoPE in 4 heads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
import safetensors.numpy
from jaxtyping import Float, Float64

from load_tests.bench import graph
from load_tests.bodies import as_npy

HEADS, TOKENS, WIDTH = 4, 32, 64
THETA = 10_000.0
TOLERANCE = 1e-5
"""The largest error of a weight that counts as right: float32 arithmetic, at most 1."""

Format = Literal["binary", "json"]
FORMATS: tuple[Format, ...] = ("binary", "json")

Vectors = Float[np.ndarray, "tokens width"]
Weights = Float64[np.ndarray, "heads tokens tokens"]


@dataclass(frozen=True)
class Post:
    """What is posted, where and under which headers."""

    path: str
    data: bytes
    headers: dict[str, str] = field(default_factory=dict)


class WrongAnswer(Exception):
    """A server's weights are not those of the formula."""


def vectors(tokens: int = TOKENS, width: int = WIDTH, seed: int = 0) -> Vectors:
    return np.random.default_rng(seed).standard_normal((tokens, width), dtype=np.float32)


def write_model(folder: Path) -> None:
    """What the peers read: `model.onnx` with one output, `weights`, and `tables.npz`, the constants it is fed."""
    folder.mkdir(parents=True, exist_ok=True)
    model = graph.scores_graph("weights")
    (folder / "model.onnx").write_bytes(model)
    fed = graph.feeds(graph.session(model), vectors(), HEADS)
    tables: Any = {name: array for name, array in fed.items() if name not in ("queries", "keys")}
    np.savez(folder / "tables.npz", **tables)


def to_service(format: Format) -> Post:
    """To this service, in formats it documents: npy in and safetensors out, or JSON both ways."""
    path = f"/attention?encoding={graph.ENCODING}&heads={HEADS}&return=weights"
    if format == "json":
        return Post(path, as_text(vectors()), {"Content-Type": "application/json", "Accept": "application/json"})
    headers = {"Content-Type": "application/x-npy", "Accept": "application/vnd.safetensors"}
    return Post(path, as_npy(vectors()), headers)


def to_peer(format: Format, *, batched: bool = False) -> Post:
    """To a peer: the numbers and nothing else, or JSON. `batched`: with a batch axis of 1 in front."""
    if format == "json":
        embeddings = vectors()[None] if batched else vectors()
        return Post("/weights", as_text(embeddings), {"Content-Type": "application/json"})
    return Post("/weights", vectors().tobytes(), {"Content-Type": "application/octet-stream"})


def as_text(embeddings: np.ndarray[Any, Any]) -> bytes:
    """Every float32 in the fewest digits that give it back."""
    return orjson.dumps({"embeddings": embeddings}, option=orjson.OPT_SERIALIZE_NUMPY)


def read_weights(content_type: str, body: bytes) -> np.ndarray[Any, Any]:
    """The weights in an answer: this service's safetensors or JSON, a peer's raw float32 or JSON."""
    if content_type.startswith("application/vnd.safetensors"):
        return safetensors.numpy.load(body)[f"{graph.ENCODING}/weights"]
    if content_type.startswith("application/json"):
        document = orjson.loads(body)
        if isinstance(document, dict):
            document = document["results"][0]["weights"] if "results" in document else document["weights"]
        return np.array(document, dtype=np.float64)
    return np.frombuffer(body, dtype=np.float32)


def check(content_type: str, body: bytes) -> float:
    """The largest error of an answer's weights. Raises WrongAnswer where it is above TOLERANCE."""
    due = weights(vectors(), HEADS)
    came = read_weights(content_type, body)
    if came.size != due.size:
        raise WrongAnswer(f"{came.size} weights came where {due.size} were due")
    error = float(np.abs(came.reshape(due.shape) - due).max())
    if not error <= TOLERANCE:
        raise WrongAnswer(f"a weight is off by {error:.2e}, at most {TOLERANCE:.0e} is allowed")
    return error


def weights(embeddings: Vectors, heads: int) -> Weights:
    """softmax(q k^T / sqrt(d)), pair i of a head turned by position * theta^(-2i/d), in float64 (Su et al. 2021)."""
    tokens, width = embeddings.shape
    d = width // heads
    x = embeddings.astype(np.float64).reshape(tokens, heads, d).transpose(1, 0, 2)
    pairs = x[..., 0::2] + 1j * x[..., 1::2]
    angles = np.arange(tokens)[:, None] * THETA ** (-np.arange(0, d, 2) / d)
    turned = pairs * np.exp(1j * angles)
    scores = (turned @ turned.conj().transpose(0, 2, 1)).real / math.sqrt(d)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    result: Weights = powers / powers.sum(-1, keepdims=True)
    return result
