"""The contract with `tritonclient.http`, unmodified, against a service that runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.service.open_inference.bodies import DATATYPES, WIDE, X, attention
from tests.service.process import Process

Array = np.ndarray[Any, np.dtype[Any]]
ROPE_OUTPUTS = ["weights", "scores", "output", "term.fast", "term.medium", "term.slow", "term.unrotated"]


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    with triton.InferenceServerClient(address, concurrency=4) as client:
        yield client


def sent(name: str, array: Array, *, binary: bool = True, datatype: str | None = None) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype or DATATYPES[array.dtype.name])
    return tensor.set_data_from_numpy(array, binary_data=binary)


def outputs(*names: str, binary: bool = True) -> list[Any]:
    return [triton.InferRequestedOutput(name, binary_data=binary) for name in names]


def arrays(result: Any) -> dict[str, Array]:
    return {one["name"]: result.as_numpy(one["name"]) for one in result.get_response()["outputs"]}


def assert_same(found: dict[str, Array], expected: dict[str, Array]) -> None:
    """Bit for bit."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes(), name


def refused(status: str, call: Any, *arguments: Any, **more: Any) -> str:
    with pytest.raises(InferenceServerException) as raised:
        call(*arguments, **more)
    assert raised.value.status() == status
    message: str = raised.value.message()
    assert "exception occurred in the client" not in message
    return message


def test_the_server_is_live_and_ready(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()


def test_models_are_ready_by_name_alias_and_version(client: Any) -> None:
    assert client.is_model_ready("identity.rope")
    assert client.is_model_ready("identity.relative-1")
    assert client.is_model_ready("identity.rope", "1")
    assert not client.is_model_ready("identity.rope", "2")
    assert not client.is_model_ready("identity.none-such")
    assert not client.is_model_ready("identity")


def test_server_metadata_names_only_the_extensions_there_are(client: Any) -> None:
    metadata = client.get_server_metadata()
    assert metadata["name"]
    assert metadata["version"]
    offered = ["binary_tensor_data", "model_configuration", "model_repository", "parameters", "statistics"]
    assert sorted(metadata["extensions"]) == offered


def test_model_metadata_describes_every_tensor_that_infer_then_takes_and_gives(client: Any) -> None:
    metadata = client.get_model_metadata("identity.t5", "1")
    assert metadata["name"] == "identity.t5"
    assert metadata["versions"] == ["1"]
    inputs = {one["name"]: one for one in metadata["inputs"]}
    assert inputs["embeddings"] == {"name": "embeddings", "datatype": "FP32", "shape": [-1, -1, -1]}
    assert inputs["positions"]["datatype"] == "FP64"
    assert inputs["mask"] == {"name": "mask", "datatype": "BOOL", "shape": [-1, -1, -1, -1]}
    assert inputs["parameter.bias"]["shape"] == [-1, -1]
    result = client.infer("identity.t5", [sent("embeddings", X)])
    found = arrays(result)
    assert list(found) == [one["name"] for one in metadata["outputs"]]
    for one in metadata["outputs"]:
        assert len(one["shape"]) == found[one["name"]].ndim
        assert one["datatype"] == "FP32"


def test_model_config_says_what_the_metadata_says(client: Any) -> None:
    config, metadata = client.get_model_config("identity.rope"), client.get_model_metadata("identity.rope")
    assert config["name"] == "identity.rope"
    assert config["max_batch_size"] == 0
    for ours, theirs in ((config["input"], metadata["inputs"]), (config["output"], metadata["outputs"])):
        assert [(one["name"], one["dims"]) for one in ours] == [(one["name"], one["shape"]) for one in theirs]
        assert [one["data_type"] for one in ours] == [f"TYPE_{one['datatype']}" for one in theirs]
    assert all(one["optional"] for one in config["input"])  # queries and keys may come in place of embeddings
    assert config["parameters"]["theta"] == {"string_value": "10000.0"}


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_infer_gives_the_very_bits_of_attention(
    client: Any, process: Process, binary_in: bool, binary_out: bool
) -> None:
    expected = attention(process.port, "encoding=rope&heads=2&rope.theta=500", embeddings=X)
    result = client.infer(
        "identity.rope",
        [sent("embeddings", X, binary=binary_in)],
        outputs=outputs(*ROPE_OUTPUTS, binary=binary_out),
        parameters={"heads": 2, "theta": 500},
    )
    assert_same(arrays(result), expected)


def test_every_model_answers_as_attention_does(client: Any, process: Process) -> None:
    index = client.get_model_repository_index()
    assert len(index) >= 20
    for entry in index:
        assert entry["state"] == "READY"
        model, _, encoding = entry["name"].partition(".")
        x, heads = (X, {"heads": 2}) if model == "identity" else (WIDE, {})
        query = f"model={model}&encoding={encoding}&causal=true" + ("&heads=2" if heads else "")
        expected = attention(process.port, query, embeddings=x)
        result = client.infer(entry["name"], [sent("embeddings", x)], parameters={**heads, "causal": True})
        assert result.get_response()["model_name"] == entry["name"]
        assert_same(arrays(result), expected)


def test_without_outputs_all_come_in_binary(client: Any) -> None:
    response = client.infer("identity.rope", [sent("embeddings", X)]).get_response()
    assert [one["name"] for one in response["outputs"]] == ROPE_OUTPUTS
    assert all("binary_data_size" in one["parameters"] for one in response["outputs"])


def test_outputs_come_in_the_order_asked_for_each_in_its_own_form(client: Any, process: Process) -> None:
    asked = [
        *outputs("term.slow"),
        *outputs("scores", binary=False),
        *outputs("weights"),
    ]
    result = client.infer("identity.rope", [sent("embeddings", X)], outputs=asked)
    response = result.get_response()
    assert [one["name"] for one in response["outputs"]] == ["term.slow", "scores", "weights"]
    assert ["data" in one for one in response["outputs"]] == [False, True, False]
    expected = attention(process.port, "encoding=rope", embeddings=X)
    assert_same(arrays(result), {name: expected[name] for name in ("term.slow", "scores", "weights")})


def test_positions_mask_and_queries_apart_mean_what_they_mean_to_attention(client: Any, process: Process) -> None:
    given = {
        "queries": X[:, :2],
        "keys": X,
        "query_positions": np.array([3.5, 9.0]),
        "key_positions": np.array([0.0, 2.0, 4.0, 6.0, 8.0]),
        "mask": np.array([[1, 1, 1, 1, 0], [1, 0, 1, 1, 1]], bool),
    }
    expected = attention(process.port, "encoding=rope&heads=4&causal=true", **given)
    result = client.infer(
        "identity.rope",
        [sent(name, array) for name, array in given.items()],
        parameters={"heads": 4, "causal": True},
    )
    assert_same(arrays(result), expected)
    assert (arrays(result)["weights"] == 0).any()


@pytest.mark.parametrize("name", ["parameter.bias", "t5.bias", "relative-2.bias"])
def test_parameter_arrays_come_as_inputs(client: Any, process: Process, name: str) -> None:
    bias = np.linspace(-2, 2, 64, dtype=np.float32).reshape(32, 2)
    expected = attention(process.port, "encoding=t5&heads=2", embeddings=X, **{"t5.bias": bias})
    result = client.infer("identity.t5", [sent("embeddings", X), sent(name, bias)], parameters={"heads": 2})
    assert_same(arrays(result), expected)


@pytest.mark.parametrize(
    ("name", "value"), [("theta", 500), ("rope.theta", 500.0), ("theta", "500"), ("ROPE.theta", 500)]
)
def test_scalar_parameters_go_by_either_name(client: Any, process: Process, name: str, value: Any) -> None:
    expected = attention(process.port, "encoding=rope&rope.theta=500", embeddings=X)
    result = client.infer("identity.rope", [sent("embeddings", X)], parameters={name: value})
    assert_same(arrays(result), expected)


def test_flags_and_choices_are_parameters(client: Any, process: Process) -> None:
    expected = attention(process.port, "encoding=rope&rope.layout=half", embeddings=X)
    result = client.infer("identity.rope", [sent("embeddings", X)], parameters={"layout": "half"})
    assert_same(arrays(result), expected)


@pytest.mark.parametrize("dtype", [name for name in DATATYPES if name != "bool"])
def test_every_numeric_datatype_is_taken(client: Any, process: Process, dtype: str) -> None:
    array = (X if dtype.startswith("float") else np.arange(40).reshape(1, 5, 8)).astype(dtype)
    expected = attention(process.port, "encoding=alibi", embeddings=array)
    assert_same(arrays(client.infer("identity.alibi", [sent("embeddings", array)])), expected)


def test_half_precision_answers_on_request(client: Any, process: Process) -> None:
    expected = attention(process.port, "encoding=rope&dtype=float16", embeddings=X)
    result = client.infer("identity.rope", [sent("embeddings", X)], parameters={"dtype": "FP16"})
    assert {one["datatype"] for one in result.get_response()["outputs"]} == {"FP16"}
    assert_same(arrays(result), expected)


def test_half_precision_is_binary_only(client: Any) -> None:
    message = refused(
        "400",
        client.infer,
        "identity.rope",
        [sent("embeddings", X)],
        outputs=outputs("weights", binary=False),
        parameters={"dtype": "FP16"},
    )
    assert "binary" in message
    half = sent("embeddings", X.astype(np.float16), binary=False)
    assert "FP16" in refused("400", client.infer, "identity.rope", [half])


@pytest.mark.parametrize("way_in", [None, "gzip", "deflate"])
@pytest.mark.parametrize("way_out", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_compression_changes_no_bit(
    client: Any, process: Process, way_in: str | None, way_out: str | None, binary: bool
) -> None:
    result = client.infer(
        "identity.rope",
        [sent("embeddings", X, binary=binary)],
        outputs=outputs("weights", "scores", binary=binary),
        request_compression_algorithm=way_in,
        response_compression_algorithm=way_out,
    )
    expected = attention(process.port, "encoding=rope", embeddings=X)
    assert_same(arrays(result), {name: expected[name] for name in ("weights", "scores")})


def test_async_infer_answers_each_with_its_own(client: Any, process: Process) -> None:
    inputs = [X[:, : 2 + i % 4] for i in range(24)]
    pending = [
        client.async_infer("identity.rope", [sent("embeddings", x)], request_id=str(i)) for i, x in enumerate(inputs)
    ]
    expected = [attention(process.port, "encoding=rope", embeddings=X[:, : 2 + i]) for i in range(4)]
    for i, one in enumerate(pending):
        result = one.get_result()
        assert result.get_response()["id"] == str(i)
        assert_same(arrays(result), expected[i % 4])


def test_the_request_id_comes_back(client: Any) -> None:
    result = client.infer("identity.rope", [sent("embeddings", X)], request_id="seventeen")
    assert result.get_response()["id"] == "seventeen"
    assert "id" not in client.infer("identity.rope", [sent("embeddings", X)]).get_response()


def test_a_version_an_alias_and_a_priority_are_taken(client: Any) -> None:
    result = client.infer(
        "identity.relative-2", [sent("embeddings", X)], model_version="1", priority=1, timeout=30_000_000
    )
    assert result.get_response()["model_name"] == "identity.t5"
    assert result.get_response()["model_version"] == "1"


def test_statistics_count_what_happened(client: Any) -> None:
    def statistics() -> dict[str, Any]:
        (found,) = client.get_inference_statistics("identity.kerple")["model_stats"]
        assert found["name"] == "identity.kerple"
        return dict(found)

    before = statistics()
    for _ in range(3):
        client.infer("identity.kerple", [sent("embeddings", X)])
    for bad in ({"heads": 3}, {"no_such": 1}):
        refused("400", client.infer, "identity.kerple", [sent("embeddings", X)], parameters=bad)
    after = statistics()
    assert after["inference_count"] - before["inference_count"] == 3
    assert after["execution_count"] - before["execution_count"] == 3
    grown = {
        name: {field: after["inference_stats"][name][field] - one[field] for field in one}
        for name, one in before["inference_stats"].items()
    }
    counts = {name: one["count"] for name, one in grown.items()}
    assert counts.pop("fail") == 2
    assert counts.pop("cache_hit") == counts.pop("cache_miss") == 0
    assert set(counts.values()) == {3}
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    assert abs(grown["success"]["ns"] - sum(grown[name]["ns"] for name in parts)) < 20
    assert grown["compute_infer"]["ns"] > 0
    assert sum(one["batch_size"] * one["compute_infer"]["count"] for one in after["batch_stats"]) >= 3
    assert after["last_inference"] > 1.7e12


def test_statistics_of_all_models_are_one_list(client: Any) -> None:
    names = [one["name"] for one in client.get_inference_statistics()["model_stats"]]
    assert names == [one["name"] for one in client.get_model_repository_index()]
    assert client.get_inference_statistics("identity.rope", "1")["model_stats"][0]["version"] == "1"


def test_models_are_unloaded_and_loaded(client: Any) -> None:
    client.unload_model("identity.rope")
    assert not client.is_model_ready("identity.rope")
    client.load_model("identity.rope")
    assert client.is_model_ready("identity.rope")
    assert "files" in refused("400", client.load_model, "identity.rope", files={"file:1/model.onnx": b"x"}, config="{}")


def test_other_extensions_are_honestly_not_offered(client: Any) -> None:
    for call in (
        client.get_log_settings,
        client.get_trace_settings,
        client.get_system_shared_memory_status,
        client.get_cuda_shared_memory_status,
        client.unregister_system_shared_memory,
    ):
        assert "not offered" in refused("501", call)


def test_an_unknown_model_is_404_and_names_the_nearest(client: Any) -> None:
    calls = (client.get_model_metadata, client.get_model_config, client.get_inference_statistics)
    for call in calls:
        assert "identity.rope" in refused("404", call, "identity.ropes")
    assert "identity.rope" in refused("404", client.infer, "identity.ropes", [sent("embeddings", X)])
    assert "version" in refused("404", client.get_model_metadata, "identity.rope", "3")


def test_what_is_not_offered_in_a_request_is_400(client: Any) -> None:
    rope, x = "identity.rope", [sent("embeddings", X)]
    assert "sequence" in refused("400", client.infer, rope, x, sequence_id=7, sequence_start=True)
    ranked = [triton.InferRequestedOutput("weights", class_count=3)]
    assert "classification" in refused("400", client.infer, rope, x, outputs=ranked)
    elsewhere = triton.InferRequestedOutput("weights")
    elsewhere.set_shared_memory("region", 100)
    assert "shared memory" in refused("400", client.infer, rope, x, outputs=[elsewhere])
    outside = triton.InferInput("embeddings", [1, 2, 4], "FP32")
    outside.set_shared_memory("region", 32)
    assert "shared memory" in refused("400", client.infer, rope, [outside])


def test_bad_requests_are_400_with_the_reason(client: Any) -> None:
    rope, x = "identity.rope", [sent("embeddings", X)]
    cases: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("theta", x, {"parameters": {"thata": 1}}),
        ("bias", x, {"parameters": {"t5.bias": 1}}),
        ("heads", x, {"parameters": {"heads": 3}}),
        ("heads", x, {"parameters": {"heads": "2"}}),
        ("causal", x, {"parameters": {"causal": 1}}),
        ("theta", x, {"parameters": {"theta": -1}}),
        ("dtype", x, {"parameters": {"dtype": "FP8"}}),
        ("timeout", x, {"timeout": -5}),
        ("priority", x, {"priority": -1}),
        ("term.fast", x, {"outputs": outputs("term.fas")}),
        ("embeddings", [sent("embedding", X)], {}),
        ("keys", [sent("queries", X)], {}),
        ("finite", [sent("embeddings", np.full((1, 2, 4), np.nan, np.float32))], {}),
        ("nan", [sent("embeddings", np.full((1, 2, 4), np.nan, np.float32), binary=False)], {}),
        ("empty", [sent("embeddings", np.ones((1, 0, 4), np.float32))], {}),
        ("mask", [*x, sent("mask", np.ones((3, 3), bool))], {}),
        ("positions", [*x, sent("positions", np.ones(3))], {}),
        ("text", [sent("embeddings", np.array([b"hello"], dtype=object), datatype="BYTES")], {}),
    ]
    for expected, inputs, more in cases:
        assert expected in refused("400", client.infer, rope, inputs, **more).lower()


def test_a_deadline_in_microseconds_is_kept(client: Any) -> None:
    assert "deadline" in refused("504", client.infer, "identity.rope", [sent("embeddings", X)], timeout=1)


def test_too_much_is_413(client: Any) -> None:
    big = np.ones((300, 1024), np.float32)
    assert "limit" in refused("413", client.infer, "identity.rope", [sent("embeddings", big)])
    long = np.ones((200, 2), np.float32)
    only = outputs("weights", binary=False)
    assert "binary_data" in refused("413", client.infer, "identity.rope", [sent("embeddings", long)], outputs=only)
    bomb = np.zeros((600, 1024), np.float32)
    assert "unpacks" in refused(
        "413", client.infer, "identity.rope", [sent("embeddings", bomb)], request_compression_algorithm="gzip"
    )


def test_bodies_written_ahead_can_be_sent_and_read(client: Any) -> None:
    body, length = triton.InferenceServerClient.generate_request_body([sent("embeddings", X)])
    answer = client._post("v2/models/identity.rope/infer", body, {"Inference-Header-Content-Length": length}, None)
    header = int(answer.get("inference-header-content-length"))
    result = triton.InferenceServerClient.parse_response_body(bytes(answer.read()), header_length=header)
    assert result.as_numpy("weights").shape == (2, 1, 5, 5)
