"""Write a family's encodings as ONNX files that say everything needed to serve them (see docs/architecture.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from models.encodings.encoding import Encoding
from models.family import Family, seed_of
from models.graphs import MODIFIER_TABLES, build, fixed_parameters, free_parameters, rows
from models.modifiers import SWITCHES
from models.opset import OPSET
from models.parity import Parity, parity

FORMAT = 1


@dataclass(frozen=True)
class Exported:
    """One encoding written to disk."""

    encoding: str
    scores_path: Path
    positions_path: Path
    parity: Parity

    @property
    def bytes(self) -> int:
        """Size of both files."""
        return self.scores_path.stat().st_size + self.positions_path.stat().st_size


def export_family(
    family: Family, encodings: Iterable[Encoding], folder: Path, progress: Callable[[str], None] = lambda _: None
) -> Iterable[Exported]:
    """Export each encoding into `folder/<family>/`, yielding as each is done. Existing files are replaced whole."""
    for encoding in encodings:
        progress(encoding.card.id)
        yield export_encoding(family, encoding, folder)


def export_encoding(family: Family, encoding: Encoding, folder: Path) -> Exported:
    """Trace both halves, measure their parity with float64, and write them with their metadata.

    Raises `models.trace.TraceError` or `models.parity.ParityError` rather than write a graph that is wrong somewhere.
    """
    graphs = build(family, encoding)
    measured = parity(family, encoding, graphs)
    about = metadata(family, encoding)
    _attach(graphs.scores, {**about, "graph": "scores", "parity": asdict(measured)})
    shared = ("format", "model", "encoding", "opset", "tables", "weights")
    _attach(graphs.positions, {**{key: about[key] for key in shared}, "graph": "positions"})
    target = folder / family.name
    target.mkdir(parents=True, exist_ok=True)
    scores_path, positions_path = target / f"{encoding.card.id}.onnx", target / f"{encoding.card.id}.positions.onnx"
    for path, graph in ((scores_path, graphs.scores), (positions_path, graphs.positions)):
        onnx.checker.check_model(graph)
        path.write_bytes(graph.SerializeToString(deterministic=True))
    return Exported(encoding.card.id, scores_path, positions_path, measured)


def metadata(family: Family, encoding: Encoding) -> dict[str, Any]:
    """Everything a service needs to know of an encoding, JSON-able."""
    about = encoding.card.metadata()
    about["parameters"] = [asdict(parameter) for parameter in free_parameters(family, encoding)]
    for parameter in about["parameters"]:
        if parameter["initial"] is not None:
            parameter["initial"]["seed"] = seed_of(encoding.card.id, parameter["name"])
    about["conventions"] = {**about["conventions"], **family.conventions.get(encoding.card.id, {})}
    most = rows(family, encoding)
    if most is not None:
        about["positions"] |= {"rows_of": None, "maximum": most - 1}
    fixed = {name: list(value.shape) for name, value in fixed_parameters(family, encoding).items()}
    if fixed:
        about["fixed"] = fixed
    heads, head_dim, width = family.sizes or (None, None, None)
    return about | {
        "format": FORMAT,
        "model": family.name,
        "opset": OPSET,
        "default_causal": family.default_causal,
        "default": encoding.card.id == family.default_encoding,
        "queries": ["batch", "queries", *(family.projections.features)],
        "heads": heads,
        "head_dim": head_dim,
        "width": width,
        "tables": {name: list(axes) for name, axes in {**encoding.dims, **MODIFIER_TABLES}.items()},
        "switches": [name for name in SWITCHES if name not in fixed_parameters(family, encoding)],
        "outputs": ["scores", "weights", "output", *(f"term.{term.name}" for term in encoding.card.terms)],
        "weights": None,
        **family.details,
    }


def _attach(graph: onnx.ModelProto, about: Mapping[str, Any]) -> None:
    onnx.helper.set_model_props(graph, {"attention": json.dumps(about, sort_keys=True, ensure_ascii=False)})
