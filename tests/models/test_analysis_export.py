"""The files in exported/analysis, the gates that stand before them, and the command that writes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from torch import Tensor
from typer.testing import CliRunner

import models.command_line as command
import service.summaries.rows
from models.analysis.graph import ANALYSES, PAIR_STATISTICS, ROW_STATISTICS, Analysis, build
from models.analysis.pairs import PairStatistics
from models.analysis.parity import CASES, TOLERANCE, Parity, parity
from models.analysis.probabilities import LEAST
from models.analysis.rows import RowStatistics
from models.export_analysis import ExportedAnalysis, export_analysis
from models.export_analysis import metadata as intended
from models.parity import ParityError
from tests.oracles.served import EXPORTED, metadata

ANALYSIS = EXPORTED.parent / "analysis"
REPOSITORY = Path(__file__).parents[2]

every_analysis = pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: analysis.name)


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExportedAnalysis]:
    """Both graphs exported once more, by a process with another hash seed."""
    folder = tmp_path_factory.mktemp("again")
    return {analysis.name: export_analysis(analysis, folder) for analysis in ANALYSES}


@every_analysis
def test_exporting_again_gives_the_same_bytes(again: dict[str, ExportedAnalysis], analysis: Analysis) -> None:
    written = _without_parity(ANALYSIS / f"{analysis.name}.onnx")
    assert _without_parity(again[analysis.name].path) == written, "run make export"


def test_exported_holds_the_listed_graphs_and_nothing_else() -> None:
    assert sorted(path.name for path in ANALYSIS.iterdir()) == sorted(f"{one.name}.onnx" for one in ANALYSES)


@every_analysis
def test_a_file_has_standard_operators_of_opset_18_only(analysis: Analysis) -> None:
    model = onnx.load(ANALYSIS / f"{analysis.name}.onnx")
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}
    assert not model.functions
    onnx.checker.check_model(model, full_check=True)


@every_analysis
def test_a_file_says_nothing_of_the_machine_that_wrote_it(analysis: Analysis) -> None:
    written = (ANALYSIS / f"{analysis.name}.onnx").read_bytes()
    for trace_of in (str(REPOSITORY), f"{Path.home()}/", "site-packages", ".py", "Traceback"):
        assert trace_of.encode() not in written


@every_analysis
def test_no_addition_depends_on_the_order_of_threads(analysis: Analysis) -> None:
    """onnxruntime adds into the same cell from several threads at once and loses some: 0.65 off with two."""
    for node in onnx.load(ANALYSIS / f"{analysis.name}.onnx").graph.node:
        reduction = [attribute.s for attribute in node.attribute if attribute.name == "reduction"]
        assert reduction in ([], [b"none"]), node.op_type


@every_analysis
def test_metadata_describe_the_graph(analysis: Analysis) -> None:
    path = ANALYSIS / f"{analysis.name}.onnx"
    about, graph = metadata(path), onnx.load(path).graph
    measured = about.pop("parity")
    assert about == json.loads(json.dumps(intended(analysis)))
    assert (about["format"], about["model"], about["graph"], about["opset"]) == (1, "analysis", analysis.name, 18)
    assert 0 <= measured["error"] <= TOLERANCE
    assert measured["cases"] == len(CASES)
    for described, values in ((about["inputs"].items(), graph.input), (_outputs(about["outputs"]), graph.output)):
        axes = {v.name: [dim.dim_param or dim.dim_value for dim in v.type.tensor_type.shape.dim] for v in values}
        assert dict(described) == axes
    assert all(output["description"] for output in about["outputs"])
    assert [f"switch.{name}" for name in about["switches"]] == [n for n in about["inputs"] if n.startswith("switch.")]


@every_analysis
def test_sizes_are_read_off_the_weights(analysis: Analysis) -> None:
    """So that an output needs no input but what it is computed from, and masks may be shared."""
    graph = onnx.load(ANALYSIS / f"{analysis.name}.onnx").graph
    measured = {node.input[0] for node in graph.node if node.op_type == "Shape"} & analysis.inputs.keys()
    assert measured <= {analysis.anchor, "top"}


def test_the_service_counts_the_rows_that_the_graphs_count() -> None:
    assert service.summaries.rows.LEAST == LEAST


def test_parity_is_measured_at_the_shapes_that_matter() -> None:
    shapes = {(case.queries, case.keys) for case in CASES}
    assert shapes >= {(1, 1), (1, 2), (40, 40), (257, 257), (1, 4096)}
    assert any(case.causal for case in CASES)
    assert any(case.masked for case in CASES)
    assert any(case.sinks for case in CASES)
    assert any(case.padded for case in CASES)


class SlightlyWrong(PairStatistics):
    """A hundredth of a per cent off."""

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        return {name: 1.0001 * value for name, value in super().forward(*inputs).items()}


class OtherPastThirtyKeys(RowStatistics):
    """A branch above the 19 keys of the trace: the trace bounds the size."""

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        answer = super().forward(*inputs)
        return answer if inputs[-1].shape[-1] <= 30 else {name: 2 * value for name, value in answer.items()}


def test_parity_refuses_a_graph_with_a_wrong_number() -> None:
    graph = build(replace(PAIR_STATISTICS, statistics=SlightlyWrong()))
    with pytest.raises(ParityError, match="pairs: "):
        parity(PAIR_STATISTICS, graph)


def test_export_refuses_statistics_that_branch_on_the_length(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="bounded"):
        export_analysis(replace(ROW_STATISTICS, statistics=OtherPastThirtyKeys()), tmp_path)
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_the_command_writes_them_and_shows_them_in_a_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = [ANALYSIS / f"{analysis.name}.onnx" for analysis in ANALYSES]
    done = [ExportedAnalysis(path.stem, path, Parity(2.5e-7, "jsd", 9)) for path in files]
    monkeypatch.setattr(command, "export_analyses", lambda folder: done)
    result = CliRunner().invoke(command.app, ["export", "analysis", "--output", str(tmp_path)])
    assert result.exit_code == 0
    for entry in done:
        assert f"│ {entry.name}" in result.output
        assert f"{entry.bytes:,}" in result.output
    assert "2.5e-07" in result.output
    assert "2 graphs in" in result.output


def _outputs(described: list[dict[str, object]]) -> list[tuple[object, object]]:
    return [(output["name"], output["axes"]) for output in described]


def _without_parity(path: Path) -> bytes:
    """A file's bytes but for its measured errors, whose last digits are the processor's."""
    model, about = onnx.load(path), metadata(path)
    about.pop("parity")
    onnx.helper.set_model_props(model, {"attention": json.dumps(about, sort_keys=True, ensure_ascii=False)})
    return bytes(model.SerializeToString(deterministic=True))
