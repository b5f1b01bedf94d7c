"""Write the analysis graphs as ONNX files that describe themselves: exported/analysis/<graph>.onnx."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from models.analysis.graph import ANALYSES, RELAXED, Analysis, build
from models.analysis.parity import Parity, parity
from models.export import FORMAT
from models.opset import OPSET

FOLDER = "analysis"


@dataclass(frozen=True)
class ExportedAnalysis:
    """One graph written to disk."""

    name: str
    path: Path
    parity: Parity

    @property
    def bytes(self) -> int:
        return self.path.stat().st_size


def export_analyses(folder: Path) -> Iterable[ExportedAnalysis]:
    """Export each graph into `folder/analysis/`, yielding as each is done. Existing files are replaced whole."""
    for analysis in ANALYSES:
        yield export_analysis(analysis, folder)


def export_analysis(analysis: Analysis, folder: Path) -> ExportedAnalysis:
    """Trace, measure the parity with float64, and write with metadata.

    Raises `models.trace.TraceError` or `models.parity.ParityError` rather than write a graph that is wrong somewhere.
    """
    graph = build(analysis)
    measured = parity(analysis, graph)
    about = {**metadata(analysis), "parity": asdict(measured)}
    onnx.helper.set_model_props(graph, {"attention": json.dumps(about, sort_keys=True, ensure_ascii=False)})
    onnx.checker.check_model(graph)
    path = folder / FOLDER / f"{analysis.name}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(graph.SerializeToString(deterministic=True))
    return ExportedAnalysis(analysis.name, path, measured)


def metadata(analysis: Analysis) -> dict[str, Any]:
    """What a reader of the graph must know, JSON-able."""
    return {
        "format": FORMAT,
        "model": FOLDER,
        "graph": analysis.name,
        "opset": OPSET,
        "title": analysis.title,
        "inputs": {name: list(RELAXED.get(name, axes)) for name, axes in analysis.inputs.items()},
        "switches": analysis.switches,
        "outputs": [
            {"name": name, "axes": list(analysis.axes(name)), "description": description}
            for name, description in analysis.outputs.items()
        ],
    }
