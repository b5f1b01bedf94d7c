"""What the service works out of a request before its graphs run, as a graph: positions, who sees whom, embeddings by
head."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from models.opset import OPSET
from service.masks import Window

EMBEDDINGS, MASK = "embeddings", "mask"
INSIDE = "front."
"""Before every name that is neither an input nor an output."""


@dataclass(frozen=True)
class Front:
    """`split` is (heads, head_dim) where the scores graph takes embeddings by head. `longest` is the most tokens for
    which the encoding has positions, None where nothing bounds them.
    """

    width: int
    split: tuple[int, int] | None
    causal: bool
    window: Window | None
    masked: bool
    longest: int | None

    @property
    def sees_all(self) -> bool:
        """Whether no key is ever hidden: then there is no `visible`."""
        return not (self.causal or self.window or self.masked)

    def graph(self) -> onnx.GraphProto:
        """`embeddings` [batch, tokens, width], and `mask` bool [batch, tokens], in; `query_positions`, `key_positions`,
        `queries`, `keys` and `visible` out.
        """
        lines = [*self._positions(), *self._embeddings(), *([] if self.sees_all else self._visible())]
        outputs = ["query_positions", "key_positions", "queries", "keys"] + ([] if self.sees_all else ["visible"])
        mask = f", bool[batch, tokens] {MASK}" if self.masked else ""
        found = onnx.parser.parse_model(
            f'<ir_version: 10, opset_import: ["" : {OPSET}]>\n'
            f"front (float[batch, tokens, {self.width}] {EMBEDDINGS}{mask}) => ({', '.join(outputs)})\n"
            "{\n" + "\n".join(lines) + "\n}"
        )
        if self.longest is not None:
            found.graph.initializer.append(numpy_helper.from_array(np.arange(self.longest, dtype=np.float64), "rows"))
        return onnx.compose.add_prefix(found, INSIDE, rename_inputs=False, rename_outputs=False).graph

    def _positions(self) -> list[str]:
        """0 .. tokens - 1, float64."""
        lines = [f"tokens = Shape <start = 1, end = 2> ({EMBEDDINGS})"]
        if self.longest is None:
            lines += [
                "count = Squeeze (tokens)",
                "zero = Constant <value = int64 {0}> ()",
                "one = Constant <value = int64 {1}> ()",
                "whole = Range (zero, count, one)",
                f"places = Cast <to = {onnx.TensorProto.DOUBLE}> (whole)",
            ]
        else:
            # More tokens than there are rows get too few positions, so shapes clash: an error on every device, where a
            # lookup past the end of a table is one on the CPU alone.
            lines += ["first = Constant <value_ints = [0]> ()", "places = Slice (rows, first, tokens)"]
        return [*lines, "query_positions = Identity (places)", "key_positions = Identity (places)"]

    def _embeddings(self) -> list[str]:
        """As the scores graph takes them."""
        if self.split is None:
            return [f"queries = Identity ({EMBEDDINGS})", f"keys = Identity ({EMBEDDINGS})"]
        heads, head_dim = self.split
        return [
            f"by_head = Constant <value_ints = [0, 0, {heads}, {head_dim}]> ()",
            f"queries = Reshape ({EMBEDDINGS}, by_head)",
            "keys = Identity (queries)",
        ]

    def _visible(self) -> list[str]:
        """[batch or 1, 1, tokens, tokens]: what is no later than the query, within the window, and in the mask."""
        lines, seen = self._sight()
        if self.masked:
            lines += [
                "key_axes = Constant <value_ints = [1, 2]> ()",
                f"keys_seen = Unsqueeze ({MASK}, key_axes)",
                f"batch = Shape <start = 0, end = 1> ({EMBEDDINGS})",
                "heads = Constant <value_ints = [1]> ()",
                # The scores graph takes a row for each query, also where all are alike.
                "pairs = Concat <axis = 0> (batch, heads, tokens, tokens)",
                "unmasked = Expand (keys_seen, pairs)",
            ]
            seen = [*seen, "unmasked"]
        whole = seen[0]
        for other in seen[1:]:
            lines.append(f"{whole}_{other} = And ({whole}, {other})")
            whole = f"{whole}_{other}"
        return [*lines, f"visible = Identity ({whole})"]

    def _sight(self) -> tuple[list[str], list[str]]:
        """By positions alone, and the names of what must be true, [1, 1, tokens, tokens] each."""
        bounds: list[tuple[str, str, float]] = []
        if self.causal:
            bounds.append(("no_later", "GreaterOrEqual", 0.0))
        if self.window is not None:
            bounds.append(("not_too_early", "LessOrEqual", self.window.before))
            bounds.append(("not_too_late", "GreaterOrEqual", -self.window.after))
        bounds = [bound for bound in bounds if math.isfinite(bound[2])]
        if not bounds:
            return [], []
        lines = [
            "row_axes = Constant <value_ints = [0, 1, 3]> ()",
            "column_axes = Constant <value_ints = [0, 1, 2]> ()",
            "m = Unsqueeze (places, row_axes)",
            "n = Unsqueeze (places, column_axes)",
            "r = Sub (m, n)",
        ]
        for name, comparison, bound in bounds:
            lines += [f"{name}_bound = Constant <value = double {{{bound!r}}}> ()"]
            lines += [f"{name} = {comparison} (r, {name}_bound)"]
        return lines, [name for name, _, _ in bounds]
