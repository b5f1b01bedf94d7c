from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from service.catalogue import Catalogue
from service.errors import NotReady, UnknownName
from tests.service import tiny

EXPORTED = Path(__file__).parents[2] / "exported"


@pytest.fixture(scope="module")
def exported() -> Catalogue:
    return Catalogue.read([EXPORTED])


def test_every_exported_file_is_served(exported: Catalogue) -> None:
    assert exported.problems == ()
    for name, model in exported.models.items():
        files = {path.name for path in (EXPORTED / name).glob("*.onnx") if not path.name.endswith(".positions.onnx")}
        assert {f"{encoding}.onnx" for encoding in model.encodings} == files


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("relative-1", "transformer-xl"),
        ("relative-2", "t5"),
        ("relative-3", "tupe"),
        ("RELATIVE-4", "deberta"),
        ("RoPE", "rope"),
    ],
)
def test_aliases_and_case_lead_to_the_encoding(exported: Catalogue, alias: str, name: str) -> None:
    assert exported.model().encoding(alias).id == name


def test_identity_is_served_under_rope_unless_asked_otherwise(exported: Catalogue) -> None:
    assert exported.model().name == "identity"
    assert exported.model().encoding().id == "rope"


def test_an_unknown_encoding_names_the_nearest_and_all(exported: Catalogue) -> None:
    with pytest.raises(UnknownName, match=r"unknown encoding 'alibbi'; did you mean alibi") as caught:
        exported.model().encoding("alibbi")
    assert caught.value.pointer == "query:encoding"
    assert "t5" in caught.value.detail


def test_an_unknown_model_is_named(exported: Catalogue) -> None:
    with pytest.raises(UnknownName, match=r"unknown model 'indentity'; did you mean identity\?"):
        exported.model("indentity")


def test_descriptions_are_json_and_name_no_path(exported: Catalogue) -> None:
    text = json.dumps(
        [
            exported.describe_encodings(),
            [exported.describe_encoding(encoding.id) for encoding in exported.encodings],
            exported.describe_models(),
        ]
    )
    assert str(EXPORTED) not in text


def test_a_description_has_the_card_and_the_models(exported: Catalogue) -> None:
    description = exported.describe_encoding("relative-2")
    assert description["id"] == "t5"
    assert description["models"] == ["identity", "tiny"]
    assert description["formula"]["plain"].startswith("S(m,n)")
    assert {parameter["name"] for parameter in description["parameters"]} >= {"bias", "max_distance", "softcap"}
    assert description["paper"]["year"] == 2020


def test_the_list_has_a_line_for_each_encoding(exported: Catalogue) -> None:
    lines = exported.describe_encodings()
    assert [line["id"] for line in lines] == sorted(exported.model().encodings)
    assert all(line["models"] == ["identity", "tiny"] for line in lines)


def test_no_models_are_not_ready(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="no exported models"):
        Catalogue.read([tmp_path]).model()


def test_a_missing_folder_is_a_problem(tmp_path: Path) -> None:
    (problem,) = Catalogue.read([tmp_path / "nowhere"]).problems
    assert str(problem) == f"{tmp_path / 'nowhere'}: no such folder"


def test_a_model_in_two_folders_is_read_once(tmp_path: Path) -> None:
    tiny.write(tmp_path / "a")
    tiny.write(tmp_path / "b")
    catalogue = Catalogue.read([tmp_path / "a", tmp_path / "b"])
    assert list(catalogue.models) == ["identity"]
    assert "already read" in catalogue.problems[0].reason


def test_a_model_without_rope_has_its_own_default(tmp_path: Path) -> None:
    tiny.write(tmp_path, "learned", model="layer")
    tiny.write(tmp_path, "none", model="layer", default=True)
    catalogue = Catalogue.read([tmp_path])
    assert catalogue.model().name == "layer"
    assert catalogue.model().encoding().id == "none"


def test_reads_follow_the_nodes_not_the_inputs(tmp_path: Path) -> None:
    """`causal` is an input of the tiny graph that no node reads."""
    tiny.write(tmp_path)
    graph = Catalogue.read([tmp_path]).model().encoding("plain").positions_graph
    assert graph.inputs == ("query_positions", "causal", "parameter.strength")
    assert graph.reads == {"query_positions", "parameter.strength"}


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    before = Catalogue.read([tmp_path]).model().encoding("plain").graph
    tiny.write(tmp_path, summary="Another.")
    after = Catalogue.read([tmp_path]).model().encoding("plain").graph
    assert before.name == after.name == "identity.plain"
    assert before.digest != after.digest


def parameter(**entries: Any) -> tiny.Change:
    return lambda model, document: document["parameters"][0].update(entries)


def entries(**new: Any) -> tiny.Change:
    return lambda model, document: document.update(new)


def drop_output(model: onnx.ModelProto, document: dict[str, Any]) -> None:
    del model.graph.output[-1]


def add_input(model: onnx.ModelProto, document: dict[str, Any]) -> None:
    model.graph.input.add(name="table.unheard")


def expect_strength(model: onnx.ModelProto, document: dict[str, Any]) -> None:
    model.graph.output.add(name="expected.strength")


@pytest.mark.parametrize(
    ("which", "how", "reason"),
    [
        (0, entries(format=2), "format 2; this service reads format 1"),
        (0, entries(model="other"), "says model 'other', but its place says 'identity'"),
        (1, entries(encoding="other"), "says encoding 'other', but its place says 'broken'"),
        (1, entries(graph="scores"), "says graph 'scores', but its place says 'positions'"),
        (0, entries(opset=19), "opset 19, but broken.positions.onnx says 18"),
        (0, entries(weights="sha256:1"), "says weights 'sha256:1'"),
        (0, entries(tables={"scale": [], "bias": []}), "says tables"),
        (0, entries(title=7), "title: Input should be a valid string"),
        (0, entries(causal="sometimes"), "causal: Input should be 'either' or 'required'"),
        (0, parameter(default=10), "'strength': the default 10 is outside 0 to 9"),
        (0, parameter(default="much"), "'strength': 'much' is no default of kind 'number'"),
        (0, parameter(kind="integer", default=None), "'strength': None is no default of kind 'integer'"),
        (1, expect_strength, "gives ['expected.strength'], but its metadata has no such list"),
        (0, parameter(kind="colour"), "kind: Input should be"),
        (0, parameter(kind="choice", choices=["a"]), "'strength': the default 1.0 is none of"),
        (0, parameter(kind="array"), "an array needs a `shape`"),
        (
            0,
            parameter(kind="array", shape=["rows"], initial={"distribution": "zeros"}),
            "nothing says how large the axis 'rows' is",
        ),
        (0, entries(parameters=[]), r"needs ['parameter.strength'], which its metadata does not describe"),
        (0, entries(positions={"rows_of": "table"}), "rows of 'table', which is none of its parameters"),
        (0, drop_output, "has no output ['term.content']"),
        (0, add_input, "needs ['table.unheard'], which broken.positions.onnx does not give"),
        (0, entries(aliases=["sound"]), "the name 'sound' is another encoding's already"),
        (0, entries(heads=4), "has heads 4, but asound of the same model has None"),
    ],
)
def test_a_broken_file_is_reported_and_leaves_the_others_serving(
    tmp_path: Path, which: int, how: tiny.Change, reason: str
) -> None:
    tiny.write(tmp_path, "asound", aliases=["sound"])
    paths = tiny.write(tmp_path, "broken")
    tiny.change(paths[which], how)
    catalogue = Catalogue.read([tmp_path])
    assert list(catalogue.model().encodings) == ["asound"]
    (problem,) = catalogue.problems
    assert problem.path in paths
    assert reason in problem.reason


def test_bytes_that_are_no_onnx_are_reported(tmp_path: Path) -> None:
    scores, _ = tiny.write(tmp_path)
    scores.write_bytes(b"<html>not found</html>")
    (problem,) = Catalogue.read([tmp_path]).problems
    assert problem.path == scores
    assert "cannot be read as ONNX" in problem.reason or "metadata" in problem.reason


def test_metadata_that_is_no_json_is_reported(tmp_path: Path) -> None:
    scores, _ = tiny.write(tmp_path)
    model = onnx.load(scores)
    model.metadata_props[0].value = "{"
    scores.write_bytes(model.SerializeToString())
    (problem,) = Catalogue.read([tmp_path]).problems
    assert "is not JSON" in problem.reason


def test_an_onnx_file_of_someone_else_is_reported(tmp_path: Path) -> None:
    scores, _ = tiny.write(tmp_path)
    model = onnx.load(scores)
    del model.metadata_props[:]
    scores.write_bytes(model.SerializeToString())
    (problem,) = Catalogue.read([tmp_path]).problems
    assert problem.reason == "has no 'attention' entry in its metadata"


@pytest.mark.parametrize(
    ("gone", "reason"), [(0, "its scores graph plain.onnx is missing"), (1, "its positions graph")]
)
def test_half_an_encoding_is_reported(tmp_path: Path, gone: int, reason: str) -> None:
    paths = tiny.write(tmp_path)
    paths[gone].unlink()
    catalogue = Catalogue.read([tmp_path])
    assert not catalogue.models
    assert reason in catalogue.problems[0].reason
    assert catalogue.problems[0].path == paths[1 - gone]


def test_serving_imports_no_torch() -> None:
    code = "import sys, service.scoring, service.catalogue; sys.exit('torch' in sys.modules or 'models' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=EXPORTED.parent, check=False).returncode == 0
