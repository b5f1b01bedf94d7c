"""A model repository for Triton: each model in it, alone in onnxruntime, answers as the service does, and Triton is
told the truth about it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf import text_format  # type: ignore[import-untyped]
from starlette.testclient import TestClient
from tritonclient.grpc import model_config_pb2
from typer.testing import CliRunner, Result

from models.command_line import app
from service.app import create_app
from service.settings import Settings
from tests.models.checkpoints.serving import export
from tests.models.checkpoints.test_plain import TENSORS, write
from tests.service import samples

EXPORTED = Path(__file__).parents[2] / "exported"
HEADS, WIDTH = 4, 64
TYPES = {onnx.TensorProto.FLOAT: model_config_pb2.TYPE_FP32, onnx.TensorProto.BOOL: model_config_pb2.TYPE_BOOL}
NAMES = sorted(
    f"{path.parent.name}.{path.stem}"
    for model in ("identity", "tiny")
    for path in (EXPORTED / model).glob("*.onnx")
    if not path.stem.endswith(".positions")
)


def lay_out(out: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["triton-repository", str(out), "--exported", str(EXPORTED), *options])


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("triton") / "repository"
    result = lay_out(out, "--tokens", "100")
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def masking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("triton") / "masking"
    result = lay_out(out, "--tokens", "100", "--mask", "--causal", "--output", "weights")
    assert result.exit_code == 0, result.output
    return out


class Alone:
    """One model of a repository, as Triton's backend has it: the file, and nothing else."""

    def __init__(self, repository: Path, name: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = repository / name / "1" / "model.onnx"
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def __call__(self, **feeds: np.ndarray) -> dict[str, np.ndarray]:
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, feeds), strict=True))


def served(client: TestClient, name: str, query: str = "", **members: np.ndarray) -> dict[str, np.ndarray]:
    """What the service says to the same, [batch, ...]."""
    model, encoding = name.split(".")
    heads = f"&heads={HEADS}" if model == "identity" else ""
    answer = client.post(
        f"/attention?model={model}&encoding={encoding}{heads}&return=weights,scores,output{query}",
        content=samples.npz(**members),
        headers={"content-type": "application/x-npz", "accept": "application/x-npz"},
    )
    assert answer.status_code == 200, answer.text
    arrays = np.load(io.BytesIO(answer.content))
    return {key.partition("/")[2]: arrays[key] for key in arrays.files if key.startswith(f"{encoding}/")}


def assert_alike(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    for name, numbers in ours.items():
        assert numbers.shape == theirs[name].shape
        unit = max(1.0, float(np.abs(theirs[name]).max()))
        np.testing.assert_allclose(numbers, theirs[name], rtol=0, atol=2e-6 * unit, err_msg=name)


def test_every_exported_encoding_is_laid_out(repository: Path) -> None:
    assert sorted(path.name for path in repository.iterdir()) == NAMES
    for path in repository.iterdir():
        assert sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()) == [
            "1/model.onnx",
            "config.pbtxt",
        ]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_alone_answers_as_the_service_does(repository: Path, client: TestClient, name: str) -> None:
    alone, random = Alone(repository, name), np.random.default_rng(7)
    for batch, tokens in ((1, 1), (3, 2), (2, 29), (1, 100)):
        x = random.standard_normal((batch, tokens, WIDTH), np.float32)
        assert_alike(alone(embeddings=x), served(client, name, embeddings=x))


@pytest.mark.parametrize("name", NAMES)
def test_a_mask_hides_what_it_hides_from_the_service(masking: Path, client: TestClient, name: str) -> None:
    alone, random = Alone(masking, name), np.random.default_rng(8)
    x = random.standard_normal((3, 17, WIDTH), np.float32)
    seen = random.random((3, 17)) < 0.6
    seen[1] = False
    weights = alone(embeddings=x, mask=seen)["weights"]
    assert_alike({"weights": weights}, served(client, name, "&causal=true", embeddings=x, mask=seen))
    assert (weights[1] == 0).all()
    assert (weights[:, :, np.triu(np.ones((17, 17), bool), 1)] == 0).all()


@pytest.mark.parametrize("folder", ["repository", "masking"])
def test_triton_is_told_the_names_types_and_sizes_of_the_graph(folder: str, request: pytest.FixtureRequest) -> None:
    """Its backend loads no model whose configuration says other than the graph, or leaves an input out."""
    for home in sorted(request.getfixturevalue(folder).iterdir()):
        told = text_format.Parse((home / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
        graph = onnx.load(home / "1" / "model.onnx").graph
        assert told.name == home.name
        assert told.backend == "onnxruntime"
        assert told.max_batch_size == 64
        assert told.HasField("dynamic_batching")
        assert len(told.input) == len(graph.input)
        assert len(told.output) == len(graph.output)
        for said, real in zip([*told.input, *told.output], [*graph.input, *graph.output], strict=True):
            assert said.name == real.name
            assert said.data_type == TYPES[real.type.tensor_type.elem_type]
            first, *rest = real.type.tensor_type.shape.dim
            assert first.dim_param == "batch"
            assert list(said.dims) == [-1 if dim.dim_param else dim.dim_value for dim in rest]
        assert not any(said.allow_ragged_batch or said.optional for said in told.input)
        assert told.parameters["encoding"].string_value == home.name.split(".")[1]


@pytest.mark.parametrize(
    ("name", "longest"), [("identity.learned", 100), ("identity.tupe", 100), ("tiny.learned", 128)]
)
def test_more_tokens_than_a_table_has_rows_are_an_error_and_no_numbers(tmp_path: Path, name: str, longest: int) -> None:
    out = tmp_path / "repository"
    model, encoding = name.split(".")
    assert (
        lay_out(out, "--model", model, "-e", encoding, "--tokens", "100" if model == "identity" else "500").exit_code
        == 0
    )
    alone = Alone(out, name)
    assert alone(embeddings=np.ones((1, longest, WIDTH), np.float32))["weights"].shape[-1] == longest
    told = text_format.Parse((out / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    assert told.parameters["longest"].string_value == str(longest)
    for tokens in (longest + 1, 2 * longest):
        with pytest.raises(Exception, match=r"(?i)dimension|shape|broadcast"):
            alone(embeddings=np.ones((1, tokens, WIDTH), np.float32))


def test_parameters_are_part_of_the_model(tmp_path: Path, client: TestClient) -> None:
    random = np.random.default_rng(9)
    bias = random.standard_normal((32, HEADS)).astype(np.float32)
    np.save(tmp_path / "bias.npy", bias)
    options = [
        *("--model", "identity", "-e", "rope", "-e", "t5", "-p", "rope.theta=50", "-p", "rope.softcap=2"),
        *("-p", f"t5.bias=@{tmp_path / 'bias.npy'}", "-p", "t5.scale=0.3"),
    ]
    result = lay_out(tmp_path / "repository", *options)
    assert result.exit_code == 0, result.output
    x = random.standard_normal((2, 21, WIDTH), np.float32)
    ours = Alone(tmp_path / "repository", "identity.rope")(embeddings=x)
    assert_alike(ours, served(client, "identity.rope", "&rope.theta=50&rope.softcap=2", embeddings=x))
    ours = Alone(tmp_path / "repository", "identity.t5")(embeddings=x)
    assert_alike(ours, served(client, "identity.t5", "&t5.scale=0.3", embeddings=x, **{"t5.bias": bias}))


def test_terms_can_be_had_and_sum_to_the_scores(tmp_path: Path) -> None:
    options = [part for name in ("scores", "term.content", "term.bias") for part in ("--output", name)]
    assert lay_out(tmp_path / "out", "--model", "identity", "-e", "alibi", *options).exit_code == 0
    x = np.random.default_rng(3).standard_normal((2, 9, WIDTH), np.float32)
    found = Alone(tmp_path / "out", "identity.alibi")(embeddings=x)
    assert list(found) == ["scores", "term.content", "term.bias"]
    np.testing.assert_allclose(found["term.content"] + found["term.bias"], found["scores"], atol=1e-5)


@pytest.fixture
def layer(tmp_path: Path) -> Iterator[TestClient]:
    """A layer of somebody's model, causal, with a window and a cap, served from `exported` in the test's folder."""
    told = {"heads": 2, "encoding": "rope", "window_before": 4, "window_after": 0, "causal": True, "softcap": 2}
    export(write(tmp_path, TENSORS, **told), None, "layer", tmp_path / "exported")
    with TestClient(create_app(Settings(device="cpu", workers=1, models=[tmp_path / "exported"]))) as client:
        yield client


def test_an_imported_layer_keeps_its_window_and_its_cap(tmp_path: Path, layer: TestClient) -> None:
    options = ["triton-repository", str(tmp_path / "out"), "--exported", str(tmp_path / "exported"), "--heads", "9"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    x = np.random.default_rng(4).standard_normal((2, 12, 6), np.float32)
    ours = Alone(tmp_path / "out", "layer.rope")(embeddings=x)
    assert_alike(ours, served(layer, "layer.rope", embeddings=x))
    assert (ours["weights"][..., 11, :7] == 0).all()
    assert (ours["weights"][..., 11, 7:] > 0).all()


def test_the_same_command_writes_the_same_bytes(tmp_path: Path, repository: Path) -> None:
    assert lay_out(tmp_path / "again", "--tokens", "100", "--model", "identity").exit_code == 0
    for path in (tmp_path / "again").rglob("*.*"):
        if path.is_file():
            assert path.read_bytes() == (repository / path.relative_to(tmp_path / "again")).read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "idnetity"], "unknown model 'idnetity'; did you mean identity"),
        (["-e", "rpoe"], "unknown encoding 'rpoe'; did you mean rope"),
        (["--model", "identity", "--heads", "7"], "width 64 cannot be split into 7 heads"),
        (["-e", "rope", "--heads", "64"], "rope needs an even head_dim"),
        (["-e", "cope", "--no-causal"], "cope is defined for causal attention only"),
        (["-e", "rope", "--output", "wieghts"], "no output 'wieghts'; it has scores, weights"),
        (["-e", "rope", "-p", "rope.theta=-1"], "rope.theta is -1; allowed"),
        (["-e", "rope", "-p", "rope.thta=1"], "did you mean rope.theta"),
        (["-e", "rope", "-p", "theta"], "ENCODING.NAME=VALUE"),
        (["-e", "t5", "-p", "t5.bias=@/nowhere.npy"], "/nowhere.npy: No such file"),
    ],
)
def test_what_cannot_be_laid_out_is_refused_in_words_and_leaves_nothing(
    tmp_path: Path, options: list[str], message: str
) -> None:
    result = lay_out(tmp_path / "out", *options)
    assert result.exit_code == 2
    assert message in re.sub(r"\s+", " ", result.output)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "theirs").touch()
    result = lay_out(tmp_path / "out", "-e", "rope")
    assert result.exit_code == 2
    assert "is not empty, and nothing in it is replaced" in re.sub(r"\s+", " ", result.output)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["theirs"]
    assert "is a file" in lay_out(tmp_path / "out" / "theirs").output
    assert (
        "no such folder"
        in CliRunner()
        .invoke(app, ["triton-repository", str(tmp_path / "new"), "--exported", str(tmp_path / "gone")])
        .output
    )


def test_what_no_encoding_was_named_for_is_left_out_with_its_reason(tmp_path: Path) -> None:
    result = lay_out(tmp_path / "out", "--model", "identity", "--width", "60")
    assert result.exit_code == 0
    assert "left out: identity.rope: rope needs an even head_dim" in re.sub(r"\s+", " ", result.output)
    assert not (tmp_path / "out" / "identity.rope").exists()
    assert (tmp_path / "out" / "identity.alibi" / "config.pbtxt").exists()
