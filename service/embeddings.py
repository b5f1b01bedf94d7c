"""The token embeddings that a model carries, and what it makes of them: `text/embeddings.safetensors`, read by memory
map, so that processes share it and only the rows of a text are ever looked at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401, with it NumPy knows bfloat16, and so does safetensors
import numpy as np
from jaxtyping import Float32, Int
from safetensors import SafetensorError, safe_open

from service.errors import InvalidInput

FILE = "embeddings.safetensors"
METADATA_KEY = "attention"
ROWS, MADE = 1, 2
"""The format where rows are taken as they are, and where something is made of them."""
TYPES = ("F16", "BF16", "F32")
STEPS: Mapping[str, tuple[str, ...]] = {
    "scale": (),
    "segment": ("segment",),
    "positions": ("positions", "padding"),
    "norm": ("norm.weight", "norm.bias"),
    "projection": ("projection.weight", "projection.bias"),
}
"""What may be done with rows -> the tensors that it needs, the second of which may be missing."""


class EmbeddingsError(Exception):
    """A file that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """`vocabulary` rows; what becomes of them is `width` wide. `bare` are the encodings that take rows as they are.

    `largest` is the last position that there is a row for; None where positions are not among the steps. `padding` is
    the token that has none and is not counted, where there is one: something else is added to it.
    """

    table: Any
    """Rows of the file, read when they are asked for."""
    vocabulary: int
    width: int
    steps: tuple[str, ...] = ()
    scale: float = 1.0
    epsilon: float = 0.0
    tensors: Mapping[str, Float32[np.ndarray, "..."]] = field(default_factory=dict)
    positions: Any = None
    largest: int | None = None
    padding: int | None = None
    encoding: str | None = None
    bare: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path, model: str) -> Embeddings:
        """Those of a model. Raises EmbeddingsError."""
        try:
            file: Any = safe_open(path, framework="numpy")
            about = json.loads((file.metadata() or {}).get(METADATA_KEY, "{}"))
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
        except (OSError, SafetensorError, ValueError) as error:
            raise EmbeddingsError(f"cannot be read: {error}") from error
        if about.get("format") not in (ROWS, MADE):
            raise EmbeddingsError(f"says format {about.get('format')!r}, not {ROWS} or {MADE}")
        if about.get("model") != model:
            raise EmbeddingsError(f"says model {about.get('model')!r}, not {model!r}")
        shapes = {name: tuple(one.get_shape()) for name, one in slices.items()}
        shape = shapes.get("embeddings")
        if shape is None:
            raise EmbeddingsError(f"has no tensor embeddings; it has {', '.join(sorted(shapes)) or 'none'}")
        dtype = slices["embeddings"].get_dtype()
        if len(shape) != 2 or dtype not in TYPES:
            raise EmbeddingsError(
                f"has embeddings {list(shape)} of {dtype}; [tokens, width] of {', '.join(TYPES)} is read"
            )
        steps = tuple(about.get("steps", ()))
        width = _checked(steps, shapes, shape[1])
        tensors = {name: file.get_tensor(name) for step in steps for name in STEPS[step]
                   if name in shapes and name != "positions"}  # fmt: skip
        padding = about.get("padding")
        if (padding is None) is not ("padding" not in tensors):
            raise EmbeddingsError("has a padding token without a tensor padding, or that without a token")
        return cls(
            slices["embeddings"],
            shape[0],
            width,
            steps,
            float(about.get("scale", 1.0)),
            float(about.get("epsilon", 0.0)),
            tensors,
            slices.get("positions"),
            shapes["positions"][0] - 1 if "positions" in steps else None,
            padding,
            about.get("encoding"),
            tuple(about.get("bare", ())),
        )

    def of(
        self, ids: Int[np.ndarray, " tokens"], at: Int[np.ndarray, " tokens"] | None = None, *, bare: bool = False
    ) -> Float32[np.ndarray, "tokens width"]:
        """What the graphs take for these tokens, all of which have a row, at these positions, by default 0, 1, 2, ...
        but for padding; with `bare` their rows alone.

        Raises InvalidInput for positions without a row.
        """
        rows = _rows(self.table, ids)
        for step in () if bare else self.steps:
            rows = self._after(step, rows, ids, at)
        return rows

    def _after(
        self, step: str, x: Float32[np.ndarray, "tokens width"], ids: np.ndarray, at: np.ndarray | None
    ) -> Float32[np.ndarray, "tokens width"]:
        tensors: Mapping[str, np.ndarray] = self.tensors
        match step:
            case "scale":
                scaled: np.ndarray = x * np.float32(self.scale)
                return scaled
            case "segment":
                return _affine(x, tensors["segment"])
            case "positions":
                return _affine(x, self._positions(ids, at))
            case "norm":
                centred = x - x.mean(-1, keepdims=True)
                deviation = np.sqrt(np.square(centred).mean(-1, keepdims=True) + np.float32(self.epsilon))
                return _affine(centred / deviation * tensors["norm.weight"], tensors.get("norm.bias"))
            case _:
                return _affine(x @ tensors["projection.weight"].T, tensors.get("projection.bias"))

    def _positions(self, ids: np.ndarray, at: np.ndarray | None) -> Float32[np.ndarray, "tokens width"]:
        assert self.largest is not None
        if at is None:
            real = np.ones(len(ids), bool) if self.padding is None else ids != self.padding
            tokens = int(real.sum())
            if tokens > self.largest + 1:
                raise InvalidInput(
                    f"the text has {tokens:,} tokens, but the model has positions for {self.largest + 1:,}: send less",
                    pointer="/text",
                    limit=self.largest + 1,
                )
            first: np.ndarray = self.positions[:tokens]
            if tokens < len(ids):
                every = np.repeat(self.tensors["padding"][None], len(ids), axis=0)
                every[real] = first
                return every
            return first.astype(np.float32, copy=False)
        wrong = np.flatnonzero((at != np.floor(at)) | (at < 0) | (at > self.largest))
        if wrong.size:
            raise InvalidInput(
                f"the model has learned positions, whole numbers up to {self.largest}, but positions[{wrong[0]}] is "
                f"{at[wrong[0]]:g}",
                pointer="/positions",
            )
        return _rows(self.positions, at.astype(np.int64))


def _checked(steps: tuple[str, ...], shapes: Mapping[str, tuple[int, ...]], width: int) -> int:
    """The width after all steps. Raises EmbeddingsError."""
    for step in steps:
        if step not in STEPS:
            raise EmbeddingsError(f"has the step {step!r}; known: {', '.join(STEPS)}")
        for number, name in enumerate(STEPS[step]):
            wanted: tuple[int | str, ...] = (width,)
            if step == "positions":
                wanted = (width,) if number else ("positions", width)
            elif step == "projection":
                wanted = ("out", width) if number == 0 else (shapes["projection.weight"][0],)
            shape = shapes.get(name)
            if shape is None and number:
                continue
            if shape is None or len(shape) != len(wanted) or (shape[-1] != wanted[-1]):
                there = "is missing" if shape is None else f"has shape {list(shape)}"
                raise EmbeddingsError(f"{name} {there}; [{', '.join(map(str, wanted))}] is needed")
        if step == "projection":
            width = shapes["projection.weight"][0]
    return width


def _rows(table: Any, ids: np.ndarray) -> Float32[np.ndarray, "tokens width"]:
    distinct, where = np.unique(ids, return_inverse=True)
    rows = np.concatenate([table[int(one) : int(one) + 1] for one in distinct])
    found: np.ndarray = rows.astype(np.float32)[where]
    return found


def _affine(x: np.ndarray, bias: np.ndarray | None) -> Float32[np.ndarray, "tokens width"]:
    return x if bias is None else x + bias
