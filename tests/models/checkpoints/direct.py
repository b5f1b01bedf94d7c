"""What an imported layer answers by the PyTorch modules that are exported: a graph for each random case would take an
hour to trace.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.attention import PositionTables, ScoredAttention
from models.checkpoints.family import Imported, imported
from models.checkpoints.layer import Layer
from models.family import sample_of
from models.graphs import fixed_parameters, free_parameters
from models.modifiers import SWITCHES


def weights(layer: Layer, hidden: Tensor, encoding: str | None = None, with_: Sequence[str] = ()) -> Tensor:
    """[batch, heads, tokens, tokens] in float64 of hidden states [batch, tokens, width], under the layer's own mask."""
    return of_family(imported(layer, "a-layer", with_), layer, hidden, encoding)


def of_family(family_and_encodings: Imported, layer: Layer, hidden: Tensor, encoding: str | None = None) -> Tensor:
    family, encodings = family_and_encodings
    chosen = next(one for one in encodings if encoding in (None, one.card.id))
    free = free_parameters(family, chosen)
    assert all(parameter.kind != "array" or parameter.initial is None for parameter in free), "drawn, not the layer's"
    parameters = dict(fixed_parameters(family, chosen))
    for parameter in free:
        if parameter.kind == "numbers":
            assert isinstance(parameter.default, list)
            parameters[parameter.name] = torch.tensor(parameter.default, dtype=torch.float64)
        elif parameter.kind != "array":
            parameters[parameter.name] = sample_of(parameter, layer.heads, layer.head_dim, 1, torch.Generator())
        else:
            parameters[parameter.name] = torch.zeros(layer.heads)
    given = {parameter.name for parameter in free if parameter.default is not None}
    switches = {name: torch.tensor(name in given or name in fixed_parameters(family, chosen)) for name in SWITCHES}
    parameters = {name: value.double() if value.is_floating_point() else value for name, value in parameters.items()}
    projections = copy.deepcopy(family.projections)
    assert isinstance(projections, nn.Module)
    projections.double()
    positions = torch.arange(hidden.shape[1]).double()
    tables = PositionTables(projections, chosen, family.sizes, torch.float64)
    heads_like = torch.zeros(layer.heads, layer.head_dim)
    at = tables.at(positions, positions, torch.tensor(layer.causal), heads_like, parameters["scale"])
    attended = ScoredAttention(projections, chosen)(
        hidden.double(), hidden.double(), seen(layer, positions), tables(at, parameters), switches
    )
    answer: Tensor = attended.weights
    return answer


def seen(layer: Layer, positions: Tensor) -> Tensor:
    r = positions[:, None] - positions
    visible = r >= 0 if layer.causal else torch.ones_like(r, dtype=torch.bool)
    if layer.window is not None:
        visible = visible & (r <= layer.window.before) & (-r <= layer.window.after)
    return visible[None, None]
