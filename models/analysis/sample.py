"""Random attention to trace with and to measure parity on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from models.analysis.probabilities import Matrix


@dataclass(frozen=True)
class Sample:
    """Two matrices over the same queries and keys, with everything that the statistics ask about them, by input name.

    The queries are the last tokens. Cells that are not visible hold noise, which no statistic but `leak` may see.
    """

    values: dict[str, Tensor]

    @classmethod
    def random(
        cls,
        batch: int,
        heads: int,
        queries: int,
        keys: int,
        top: int,
        seed: int,
        *,
        causal: bool = False,
        masked: bool = False,
        sinks: bool = False,
        padded: bool = False,
    ) -> Sample:
        generator = torch.Generator().manual_seed(seed)
        places = torch.arange(keys - queries, keys)
        visible = (torch.arange(keys) <= places[:, None]) if causal else torch.ones(queries, keys, dtype=torch.bool)
        visible = visible.expand(batch, heads, -1, -1)
        if masked:
            visible = visible & (torch.rand(visible.shape, generator=generator) > 0.2)
            visible[0, 0, 0] = False
        real = torch.arange(keys) < (torch.arange(batch)[:, None] + keys // 2 if padded else keys)
        visible = visible & real.expand(batch, keys)[:, None, None]
        tokens = torch.randint(0, 7, (batch, keys), generator=generator)
        before = torch.cat([torch.full((batch, 1), -1), tokens[:, :-1]], dim=1)
        positions = torch.arange(keys).double()
        values = {
            "visible": visible.clone(),
            "query_tokens": tokens[:, places],
            "key_tokens": tokens,
            "tokens_before": before,
            "distances": (positions[places, None] - positions).abs().float(),
            "query_places": places,
            "own_cells": torch.arange(queries) * keys + places,
            "previous_cells": torch.arange(queries) * keys + (places - 1).clamp(min=0),
            "profiled": torch.rand(batch, queries, generator=generator) < 0.9,
            "tolerance": torch.tensor(1e-5, dtype=torch.float64),
            "top": torch.zeros(top),
            "real_keys": real.expand(batch, keys),
            "switch.padded": torch.tensor(padded),
            "switch.exact": torch.tensor(False),
            "switch.sinks": torch.tensor(sinks),
            "switch.sinks_a": torch.tensor(sinks),
            "switch.sinks_b": torch.tensor(sinks),
        }
        shape = (batch, heads, queries, keys)
        for matrix in ("", "_a", "_b"):
            scores = 3 * torch.randn(shape, generator=generator)
            values["scores" + matrix] = scores
            values["weights" + matrix] = _attended(scores, visible, 0.6 if sinks else 1.0)
        return cls(values)

    def feeds(self, inputs: Iterable[str]) -> dict[str, Tensor]:
        """The values of these inputs, each of its own: the trace must not find the same tensor twice."""
        return {name: self.values[name].clone() for name in inputs}


def _attended(scores: Matrix, visible: Bool[Tensor, "..."], share: float) -> Matrix:
    weights = share * torch.softmax(torch.where(visible, scores.double(), float("-inf")), dim=-1).float()
    return torch.where(visible, weights, 0.01 * scores)
