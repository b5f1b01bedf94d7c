"""The files in exported/, the gates that stand before them, and the command that writes them."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnxruntime import InferenceSession
from torch import Tensor
from typer.testing import CliRunner

from models.command_line import app
from models.encodings import ENCODINGS
from models.encodings.encoding import Heads, Positions, Scores, Tables
from models.encodings.none import NoEncoding
from models.export import export_encoding
from models.export import metadata as intended
from models.family import IDENTITY
from models.graphs import build
from models.opset import OPSET
from models.parity import TOLERANCE, ParityError, parity
from models.trace import Signature, TraceError, trace
from tests.models.questions import noise, question
from tests.oracles import ORACLES
from tests.oracles.served import EXPORTED, metadata, served

REPOSITORY = Path(__file__).parents[2]
BY_ID = {encoding.card.id: encoding for encoding in ENCODINGS}
FILES = [path for name in BY_ID for path in (EXPORTED / f"{name}.onnx", EXPORTED / f"{name}.positions.onnx")]
GATED_BY_CONTENT = ("cope", "fox")

every_encoding = pytest.mark.parametrize("encoding", BY_ID)
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


# The files.


@pytest.fixture(scope="module")
def exported_again(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Every encoding exported by other processes, elsewhere, under another hash seed; and what the command printed.

    Two processes, since it is a minute and a half of tracing.
    """
    folder, names = tmp_path_factory.mktemp("elsewhere"), list(BY_ID)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONHASHSEED": "12345", "COLUMNS": "120"}
    environment["OMP_NUM_THREADS"] = "1"
    halves = [
        subprocess.Popen(
            [sys.executable, "-m", "models", "export", *half, "--model", "identity", "--output", str(folder / "again")],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for half in (names[::2], names[1::2])
    ]
    printed = [process.communicate()[0] for process in halves]
    assert [process.returncode for process in halves] == [0, 0], "\n".join(printed)
    return folder / "again" / "identity", "\n".join(printed)


@pytest.mark.timeout(900)
@every_file
def test_exporting_again_gives_the_same_bytes(exported_again: tuple[Path, str], path: Path) -> None:
    assert _without_parity(exported_again[0] / path.name) == _without_parity(path), "run make export"


@pytest.mark.timeout(900)
def test_export_prints_every_encoding_with_its_errors(exported_again: tuple[Path, str]) -> None:
    _, printed = exported_again
    for encoding in BY_ID:
        assert re.search(rf"│ {encoding} +│ +[\d,]+ │ +\d\.\de-\d\d │", printed), encoding
    assert sum(int(count) for count in re.findall(r"(\d+) encodings in", printed)) == len(BY_ID)


def test_exported_holds_the_listed_encodings_and_nothing_else() -> None:
    assert sorted(EXPORTED.iterdir()) == sorted(FILES), "run make export"


@every_file
def test_a_file_has_standard_operators_of_opset_18_only(path: Path) -> None:
    model = onnx.load(path)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}
    assert not model.functions
    onnx.checker.check_model(model, full_check=True)


@every_file
def test_a_file_says_nothing_of_the_machine_that_wrote_it(path: Path) -> None:
    written = path.read_bytes()
    for trace_of in (
        str(REPOSITORY).encode(),
        str(Path.home()).encode() + b"/",
        b"site-packages",
        b".py",
        b"Traceback",
    ):
        assert trace_of not in written


@every_file
def test_a_file_reads_sizes_from_its_inputs_and_fixes_none(path: Path) -> None:
    """Every axis of every input and output is a named size, but for those a card fixes with a number."""
    graph, encoding = onnx.load(path).graph, path.name.split(".")[0]
    tables = {f"table.{name}": axes for name, axes in served(encoding).about["tables"].items()}
    for value in (*graph.input, *graph.output):
        axes = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.name in tables:
            assert axes == tables[value.name], value.name
        elif encoding == "fire" and value.name in ("parameter.w_1", "parameter.b_1", "parameter.w_2"):
            assert axes[-1] == 32, value.name
        else:
            assert all(isinstance(axis, str) for axis in axes), value.name


@every_encoding
def test_metadata_are_the_cards(encoding: str) -> None:
    scores = metadata(EXPORTED / f"{encoding}.onnx")
    measured = scores.pop("parity")
    assert scores == json.loads(json.dumps({**intended(IDENTITY, BY_ID[encoding]), "graph": "scores"})), "make export"
    assert measured.keys() == {"scores", "weights", "output", "terms", "cases"}
    assert max(measured[name] for name in ("scores", "weights", "output", "terms")) <= TOLERANCE
    positions = metadata(EXPORTED / f"{encoding}.positions.onnx")
    assert positions == {"graph": "positions"} | {
        name: scores[name] for name in ("format", "model", "encoding", "opset", "tables", "weights")
    }


@every_encoding
def test_metadata_say_everything_that_a_reader_of_the_numbers_must_know(encoding: str) -> None:
    about = served(encoding).about
    assert about["format"] == 1
    assert about["model"] == "identity"
    assert about["opset"] == OPSET
    for text in (about["title"], about["summary"], about["formula"]["plain"], about["formula"]["latex"]):
        assert text.strip()
    assert "scale" in about["conventions"]
    assert all(term["name"] and term["description"] for term in about["terms"])
    if about["paper"]:
        assert re.fullmatch(r"\d{4}\.\d{4,5}", about["paper"]["arxiv"])
        assert about["paper"]["year"] >= 2017
    for parameter in about["parameters"]:
        assert parameter["description"]
        if parameter["kind"] in ("number", "integer", "numbers"):
            assert parameter["minimum"] < parameter["maximum"], parameter["name"]
        if parameter["kind"] == "choice":
            assert parameter["default"] in parameter["choices"]
        if parameter["kind"] == "array" and parameter["initial"] is not None:
            assert isinstance(parameter["initial"]["seed"], int)


@every_encoding
def test_metadata_name_the_graphs_inputs_and_outputs(encoding: str) -> None:
    about, halves = served(encoding).about, served(encoding)
    outputs = [entry.name for entry in halves.scores.get_outputs()]
    assert outputs == about["outputs"]
    assert outputs == ["scores", "weights", "output", *(f"term.{term['name']}" for term in about["terms"])]
    tables = {f"table.{name}" for name in about["tables"]}
    assert {entry.name for entry in halves.positions.get_outputs() if not entry.name.startswith("expected.")} == tables
    inputs = {entry.name for entry in halves.scores.get_inputs()}
    assert {"queries", "keys", "visible"} <= inputs
    assert inputs <= {"queries", "keys", "visible", *tables, *(f"switch.{name}" for name in about["switches"])}
    asked = {entry.name for entry in halves.positions.get_inputs()}
    assert asked <= {"query_positions", "key_positions", "causal", "heads_like"} | {
        f"parameter.{parameter['name']}" for parameter in about["parameters"]
    }


def test_ids_and_aliases_are_unique_and_the_seed_articles_are_covered() -> None:
    names = [name for e in ENCODINGS for name in (e.card.id, *e.card.aliases)]
    assert len(names) == len(set(names))
    aliases = {alias: e.card.id for e in ENCODINGS for alias in e.card.aliases}
    assert (
        aliases.items()
        >= {
            "relative-1": "transformer-xl",
            "relative-2": "t5",
            "relative-3": "tupe",
            "relative-4": "deberta",
        }.items()
    )
    corrected = {e.card.id for e in ENCODINGS if e.card.seed_article}
    assert corrected >= {"integer", "sinusoidal", "transformer-xl", "t5", "tupe", "deberta", "rope"}


@every_encoding
@pytest.mark.parametrize(
    ("batch", "queries", "keys"), [(1, 1, 1), (1, 2, 2), (3, 40, 40), (2, 1, 500), (2, 257, 257), (1, 1, 4096)]
)
def test_graphs_answer_at_any_length(encoding: str, batch: int, queries: int, keys: int) -> None:
    """The last query's row is its formula's, at lengths far from the 17 and 19 tokens of the trace."""
    case = question(
        encoding,
        noise(batch, queries, 2, 4),
        np.arange(keys - queries, keys, dtype=np.float64),
        keys=noise(batch, keys, 2, 4, seed=2),
        key_positions=np.arange(keys, dtype=np.float64),
    )
    got = served(encoding).answer(case)
    assert got.scores.shape == got.weights.shape == (batch, 2, queries, keys)
    assert got.output.shape == (batch, queries, 2, 4)
    assert all(term.shape == got.scores.shape for term in got.terms.values())
    assert np.isfinite(got.scores).all()
    assert got.weights.sum(-1) == pytest.approx(1, abs=1e-5)
    if keys > 300 and encoding in GATED_BY_CONTENT:
        return  # their formula looks at every key for every key
    row = replace(
        case, queries=case.queries[:1, -1:], keys=case.keys[:1], m=case.m[-1:], visible=case.visible[:, :, -1:]
    )
    expected = ORACLES[encoding][0].answer(row)
    size = np.abs(expected.scores).max()
    assert np.abs(got.scores[:1, :, -1:] - expected.scores).max() <= 1e-5 * max(size, 1e-2)
    assert np.abs(got.weights[:1, :, -1:] - expected.weights).max() <= max(1e-6, 2.4e-7 * size)


@every_encoding
@pytest.mark.parametrize("shape", [(1, 1, 5, 7), (2, 1, 5, 7), (1, 3, 5, 7)])
def test_a_mask_may_be_shared_by_members_and_heads(encoding: str, shape: tuple[int, ...]) -> None:
    case = question(encoding, noise(2, 5, 3, 4), np.arange(5.0) + 2, keys=noise(2, 7, 3, 4, seed=2))
    mask = np.random.default_rng(0).random(shape) < 0.7
    whole = replace(case, visible=np.broadcast_to(mask, (2, 3, 5, 7)).copy())
    got, expected = (served(encoding).answer(asked) for asked in (replace(case, visible=mask), whole))
    assert (got.weights == expected.weights).all()
    assert (got.output == expected.output).all()


# The gates.


class Function(torch.nn.Module):
    """A function of tensors as the module that is traced."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return (self.function(*tensors),)


ONE = Signature({"x": ("tokens", "width")}, {"y": ("tokens", "width")})
TWO = Signature({"x": ("queries", "width"), "z": ("keys", "width")}, {"y": ("queries", "width")})
MASKED = Signature(
    {"visible": ("batch", "tokens"), "x": ("batch", "tokens")},
    {"y": ("batch", "tokens")},
    {"visible": ("visible_batch", "tokens")},
)
ALONE = Signature(
    {"visible": ("batch", "tokens"), "x": ("rows", "tokens")},
    {"y": ("rows", "tokens")},
    {"visible": ("visible_batch", "tokens")},
)
X, Z, VISIBLE = torch.randn(17, 6), torch.randn(19, 6), torch.ones(17, 6, dtype=torch.bool)


@pytest.mark.parametrize(
    ("function", "signature", "sample", "refusal"),
    [
        pytest.param(lambda x: x + torch.ones(17, 1), ONE, (X,), "constant 17", id="a constant of the sample's length"),
        pytest.param(lambda x: x / math.sqrt(x.shape[1]), ONE, (X,), "constant 6", id="a root"),
        pytest.param(lambda x: x * 2, ONE, (torch.randn(1, 6),), "constant 1", id="a sample of one token"),
        pytest.param(lambda x: 2 * x if x.shape[0] > 64 else 3 * x, ONE, (X,), "bounded", id="a branch at 64 tokens"),
        pytest.param(lambda x: 2 * x if x.shape[0] > 8 else 3 * x, ONE, (X,), "bounded", id="a branch at 8 tokens"),
        pytest.param(lambda x: x + torch.ones(64, 1)[: x.shape[0]], ONE, (X,), "bounded", id="a table of 64 rows"),
        pytest.param(lambda x, z: x + z, TWO, (X, torch.randn(17, 6)), "merged", id="queries added to keys"),
        pytest.param(
            lambda v, x: x * v.shape[0] + v.sum(0), ALONE, (VISIBLE, Z), "may broadcast",
            id="a size that only the mask has",
        ),
        pytest.param(lambda x: x.sum(-1), ONE, (X,), "1 axes", id="an axis too few"),
    ],
)  # fmt: skip
def test_trace_refuses(
    function: Callable[..., Tensor], signature: Signature, sample: tuple[Tensor, ...], refusal: str
) -> None:
    with pytest.raises(TraceError, match=refusal):
        trace(Function(function), sample, signature)


def test_trace_gives_a_graph_with_the_asked_names_and_axes() -> None:
    graph = trace(Function(lambda v, x: torch.where(v, x, 0.0)), (VISIBLE, X), MASKED)
    axes = {
        v.name: [d.dim_param for d in v.type.tensor_type.shape.dim] for v in (*graph.graph.input, *graph.graph.output)
    }
    assert axes == {"visible": ["visible_batch", "tokens"], "x": ["batch", "tokens"], "y": ["batch", "tokens"]}


def test_trace_reads_no_size_off_an_input_that_may_be_absent() -> None:
    graph = trace(
        Function(lambda v, x: torch.where(v, x, 0.0) + torch.arange(v.shape[0])[:, None]), (VISIBLE, X), MASKED
    )
    assert {node.op_type for node in graph.graph.node if "visible" in node.input} == {"Where"}
    (y,) = InferenceSession(graph.SerializeToString()).run(
        None, {"visible": np.ones((1, 3), bool), "x": np.eye(2, 3, dtype=np.float32)}
    )
    assert y.tolist() == [[1, 0, 0], [1, 2, 1]]


class SlightlyWrong(NoEncoding):
    """A hundredth of a per cent off."""

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        return {"scale": super().tables(at, parameters)["scale"] * 1.0001}


class Branches(NoEncoding):
    """Another formula past some number of tokens: the trace sees the side of its 17 and, past 2, no unusual bound."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def scores(self, q: Heads, k: Heads, table: Tables) -> Scores:
        scores = super().scores(q, k, table)
        return scores if q.shape[-2] > self.tokens else 2 * scores


def test_parity_refuses_a_graph_with_a_wrong_number() -> None:
    with pytest.raises(ParityError, match="identity/none"):
        parity(IDENTITY, NoEncoding(), build(IDENTITY, SlightlyWrong()))


@pytest.mark.parametrize(("tokens", "refusal"), [(2, ParityError), (8, TraceError), (64, TraceError)])
def test_export_refuses_an_encoding_that_branches_on_the_length(
    tokens: int, refusal: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(refusal):
        export_encoding(IDENTITY, Branches(tokens), tmp_path)
    assert not list(tmp_path.iterdir()), "nothing is written"


# The command.


def test_help_shows_the_commands_and_an_example() -> None:
    result = CliRunner().invoke(app, ["export", "--help"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    assert "python -m models export rope t5" in result.output
    assert "--output" in result.output
    assert "export" in CliRunner().invoke(app, ["--help"]).output


def test_an_unknown_encoding_is_named_beside_the_known_ones_with_exit_code_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", "rope", "ropr", "--output", str(tmp_path)])
    assert result.exit_code == 2
    assert "unknown encoding ropr" in result.output
    assert "transformer-xl" in result.output
    assert not list(tmp_path.iterdir())


def _without_parity(path: Path) -> bytes:
    """A file's bytes but for its measured errors, whose last digits are the processor's."""
    model = onnx.load(path)
    about: dict[str, Any] = metadata(path)
    about.pop("parity", None)
    onnx.helper.set_model_props(model, {"attention": json.dumps(about, sort_keys=True, ensure_ascii=False)})
    written: bytes = model.SerializeToString(deterministic=True)
    return written
