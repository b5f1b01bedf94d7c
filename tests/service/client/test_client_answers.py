"""What the client gives is what the service says in JSON."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import xarray
from jaxtyping import Float32

from service.client import AsyncClient, Attention, Calls, Client, Refused

X = Float32[np.ndarray, "12 16"]


def asked(url: str, body: dict[str, Any], **query: Any) -> dict[str, Any]:
    """The service's JSON answer."""
    response = httpx.post(f"{url}/attention", params=query, json=body)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def same(array: np.ndarray | None, lists: Any) -> bool:
    """JSON holds float32 in as few digits as tell them apart."""
    assert array is not None
    return array.dtype == np.float32 and np.array_equal(array, np.array(lists, np.float32))


def test_every_array_is_the_json_answers(client: Client, url: str, x: X) -> None:
    answer = client.attention(x, "rope", compare=["alibi"], heads=4, returns=["weights", "scores", "terms", "output"])
    expected = asked(
        url,
        {"embeddings": x.tolist()},
        encoding="rope",
        compare="alibi",
        heads=4,
        **{"return": "weights,scores,terms,output"},
    )
    assert list(answer) == ["rope", "alibi"]
    for one in expected["results"]:
        result = answer[one["name"]]
        assert same(result.weights, one["weights"])
        assert same(result.scores, one["scores"])
        assert same(result.output, one["output"])
        assert result.terms.keys() == one["terms"].keys()
        assert all(same(result.terms[term], one["terms"][term]) for term in one["terms"])
        for name in ("encoding", "label", "parameters", "conventions", "nonfinite_cells"):
            assert getattr(result, name) == one[name]
    assert answer.shape == expected["shape"]
    assert (answer.model, answer.causal) == ("identity", False)
    assert answer.timings.keys() == expected["timings"].keys()


def test_arrays_are_views_of_what_was_received(client: Client, x: X) -> None:
    answer = client.attention(x, heads=4, returns="weights,scores")
    assert answer.weights is not None
    assert answer.scores is not None
    assert not answer.weights.flags.writeable
    assert answer.weights.base is not None
    assert answer.axes == ("head", "query", "key")


def test_a_request_id_is_the_one_in_the_services_header(url: str, x: X) -> None:
    with Client(url, headers={"X-Request-ID": "mine-1"}) as client:
        assert client.attention(x).request_id == "mine-1"


@pytest.mark.parametrize("source", ["lists", "float64", "float16", "integers", "transposed", "big-endian", "DataArray"])
def test_numbers_come_from_anything_that_holds_them(client: Client, url: str, source: str) -> None:
    numbers = np.random.default_rng(1).integers(-3, 4, (5, 4)).astype(np.float32)
    given = {
        "lists": numbers.tolist(),
        "float64": numbers.astype(np.float64),
        "float16": numbers.astype(np.float16),
        "integers": numbers.astype(np.int64),
        "transposed": np.asfortranarray(numbers),
        "big-endian": numbers.astype(">f4"),
        "DataArray": xarray.DataArray(numbers),
    }[source]
    expected = asked(url, {"embeddings": numbers.tolist()})
    assert same(client.attention(given).weights, expected["results"][0]["weights"])


def test_numbers_come_from_pytorch(client: Client, x: X) -> None:
    torch = pytest.importorskip("torch")
    expected = client.attention(x).weights
    assert np.array_equal(client.attention(torch.tensor(x, requires_grad=True)).weights, expected)  # type: ignore[arg-type]
    halved = torch.tensor(x).bfloat16()
    assert np.array_equal(client.attention(halved).weights, client.attention(halved.float()).weights)  # type: ignore[arg-type]


def test_scalars_go_to_the_query_and_arrays_to_the_body(client: Client, url: str, x: X) -> None:
    bias = np.random.default_rng(2).standard_normal((32, 4)).astype(np.float32)
    parameters = {
        "rope@long.theta": 5e5,
        "rope@long.layout": "half",
        "rope.rotary_fraction": np.float32(0.5),
        "t5.bias": bias,
        "t5.max_distance": np.int64(64),
    }
    call = Calls.attention(None, x, "rope", compare=("rope@long", "t5"), heads=4, parameters=parameters)
    assert ("rope@long.theta", "500000.0") in call.query
    assert "t5.bias" not in dict(call.query)
    answer = client.send(call)
    expected = asked(
        url,
        {"embeddings": x.tolist(), "parameters": {"t5.bias": bias.tolist()}},
        encoding="rope",
        compare="rope@long,t5",
        heads=4,
        **{
            "rope@long.theta": 500000,
            "rope@long.layout": "half",
            "rope.rotary_fraction": 0.5,
            "t5.max_distance": 64,
        },
    )
    for one in expected["results"]:
        assert same(answer[one["name"]].weights, one["weights"])
        assert answer[one["name"]].parameters == one["parameters"]


@pytest.mark.parametrize("tokens", [None, [f"word {i}" for i in range(12)]], ids=["safetensors", "npz"])
def test_positions_masks_rows_and_heads(client: Client, url: str, x: X, tokens: list[str] | None) -> None:
    positions, mask = np.arange(12) * 3.0, np.arange(12) < 10
    answer = client.attention(
        x, "alibi", heads=4, causal=True, positions=positions, mask=mask, rows=[0, -1], head=slice(1, 3), tokens=tokens
    )
    body = {"embeddings": x.tolist(), "positions": positions.tolist(), "mask": mask.tolist()}
    query = {"encoding": "alibi", "heads": 4, "causal": "true", "rows": "0,-1", "head": "1:3"}
    expected = asked(url, body, **query)
    assert same(answer.weights, expected["results"][0]["weights"])
    assert answer.shape == expected["shape"]
    assert answer.tokens == tokens


@pytest.mark.parametrize(
    ("given", "said"),
    [(3, "3"), (-1, "-1"), (slice(4), ":4"), (slice(0, 8, 2), "0:8:2"), (slice(-4, None), "-4:"), (range(3), "0,1,2"),
     (np.array([1, 2]), "1,2"), ("0:3", "0:3")],
)  # fmt: skip
def test_selections_are_said_as_the_query_string_takes_them(client: Client, x: X, given: Any, said: str) -> None:
    call = Calls.attention(None, x, rows=given)
    assert dict(call.query)["rows"] == said
    rows = client.send(call).shape["rows"]
    assert rows == (np.arange(12)[given] if not isinstance(given, str) else np.arange(12)[:3]).reshape(-1).tolist()


def test_queries_against_keys(client: Client, url: str, x: X) -> None:
    answer = client.attention(queries=x[-2:], keys=x, query_positions=[10, 11], key_positions=np.arange(12), heads=4)
    body = {
        "queries": x[-2:].tolist(),
        "keys": x.tolist(),
        "query_positions": [10, 11],
        "key_positions": list(range(12)),
    }
    assert same(answer.weights, asked(url, body, heads=4)["results"][0]["weights"])
    assert answer.to_xarray().query_position.values.tolist() == [10, 11]


def test_a_batch_has_an_axis(client: Client, url: str, x: X) -> None:
    batch = np.stack([x, x[::-1]])
    answer = client.attention(batch, heads=2)
    assert answer.axes == ("batch", "head", "query", "key")
    assert same(answer.weights, asked(url, {"embeddings": batch.tolist()}, heads=2)["results"][0]["weights"])
    assert answer.to_xarray().weights.sizes == {"encoding": 1, "batch": 2, "head": 2, "query": 12, "key": 12}


def test_top_k_stands_in_place_of_the_matrices(client: Client, url: str, x: X) -> None:
    answer = client.attention(x, "rope", heads=2, top_k=3, returns="weights,scores", causal=True)
    expected = asked(url, {"embeddings": x.tolist()}, heads=2, top_k=3, causal="true", **{"return": "weights,scores"})[
        "results"
    ][0]["top_k"]
    assert answer.weights is None
    assert answer.top_k is not None
    assert answer.top_k.indices.tolist() == expected["indices"]
    assert same(answer.top_k.weights, expected["weights"])
    assert same(answer.top_k.scores, expected["scores"])
    assert answer.to_xarray().top_indices.sizes == {"encoding": 1, "batch": 1, "head": 2, "query": 12, "rank": 3}


def test_half_precision_arrives_as_such(client: Client, x: X) -> None:
    whole, half = client.attention(x).weights, client.attention(x, dtype="float16").weights
    assert whole is not None
    assert half is not None
    assert half.dtype == np.float16
    assert np.array_equal(half, whole.astype(np.float16))


def test_xarray_holds_the_json_answers_numbers(client: Client, url: str, x: X) -> None:
    tokens = [f"t{i}" for i in range(12)]
    names = ["alibi", "t5", "none"]
    answer = client.attention(
        x, names[0], compare=names[1:], heads=4, tokens=tokens, positions=np.arange(12) * 2, rows="3:6", head=[1, 3],
        returns="weights,scores,terms,output",
    )  # fmt: skip
    body = {"embeddings": x.tolist(), "positions": list(range(0, 24, 2)), "tokens": tokens}
    query = {"encoding": "alibi", "compare": "t5,none", "heads": 4, "rows": "3:6", "head": "1,3"}
    expected = asked(url, body, **query, **{"return": "weights,scores,terms,output"})
    data = answer.to_xarray()
    assert data.weights.dims == data.scores.dims == ("encoding", "batch", "head", "query", "key")
    for one in expected["results"]:
        of_one = data.sel(encoding=one["name"]).isel(batch=0)
        assert same(of_one.weights.values, one["weights"])
        assert same(of_one.scores.values, one["scores"])
        assert same(of_one.output.values, one["output"])
        for term in data.term.values:
            if term in one["terms"]:
                assert same(of_one.terms.sel(term=term).values, one["terms"][term])
            else:
                assert of_one.terms.sel(term=term).isnull().all()
    chosen = data.sel(encoding="t5", head=3, query=4)
    assert float(chosen.query_position) == 8
    assert str(chosen.query_token.values) == "t4"
    assert chosen.key_token.values.tolist() == tokens
    assert chosen.key_position.values.tolist() == list(range(0, 24, 2))
    assert json.loads(data.attrs["parameters"])["t5"] == expected["results"][1]["parameters"]
    assert data.attrs["model"] == "identity"


def test_one_encodings_xarray_copies_nothing(client: Client, x: X) -> None:
    answer = client.attention(x, heads=4)
    assert np.shares_memory(answer.to_xarray().weights.values, answer.weights)


def test_a_saved_answer_is_read_back(client: Client, x: X, tmp_path: Path) -> None:
    answer = client.attention(x, "rope", compare=["t5"], heads=4, positions=np.arange(12) * 2)
    answer.save(tmp_path / "answer.npz")
    again = Attention.load(tmp_path / "answer.npz")
    assert again.to_xarray().identical(answer.to_xarray())
    assert (again.document, again.request_id) == (answer.document, answer.request_id)
    assert np.array_equal(np.load(tmp_path / "answer.npz")["t5/weights"], answer["t5"].weights)  # type: ignore[arg-type]


def test_the_services_own_npz_answer_is_read(url: str, x: X, tmp_path: Path) -> None:
    call = Calls.attention(None, x, "alibi", heads=2)
    with Client(url) as client:
        content = client.send(call.answered("application/x-npz", lambda response: response.content))
    (tmp_path / "answer.npz").write_bytes(content)
    with Client(url) as client:
        expected = client.send(call).weights
    assert np.array_equal(Attention.load(tmp_path / "answer.npz").weights, expected)  # type: ignore[arg-type]


def test_of_several_encodings_one_must_be_named(client: Client, x: X) -> None:
    answer = client.attention(x, "rope", compare="alibi")
    with pytest.raises(AttributeError, match=r"answer\['rope'\].weights, answer\['alibi'\].weights"):
        _ = answer.weights
    with pytest.raises(KeyError, match="did you mean 'alibi'"):
        answer["alibbi"]


def test_all_encodings_say_which_were_left_out(client: Client) -> None:
    odd = np.random.default_rng(0).standard_normal((3, 5), dtype=np.float32)
    answer = client.attention(odd, "none", compare="all")
    assert "rope" in answer.skipped
    assert "alibi" in answer
    assert len(answer.to_xarray()["encoding"]) == len(answer)


def test_a_refusal_carries_the_problem(client: Client, x: X) -> None:
    with pytest.raises(Refused) as failure:
        client.attention(x, "ropy")
    error = failure.value
    assert (error.status, error.pointer) == (422, "query:encoding")
    assert "rope" in error.nearest
    assert error.request_id
    assert error.problem["type"] == "urn:attention:problem:unknown_name"
    assert error.detail in str(error)
    with pytest.raises(Refused, match=r"rope\.theta"):
        client.attention(x, parameters={"rope.theta": -1})
    with pytest.raises(Refused, match="width"):
        client.attention(x, heads=5)


@pytest.mark.parametrize("nothing", [[], (), "", np.array([], int)], ids=repr)
@pytest.mark.parametrize("name", ["rows", "head"])
def test_a_selection_of_nothing_is_refused(client: Client, x: X, name: str, nothing: Any) -> None:
    with pytest.raises(Refused) as caught:
        client.attention(x, "none", **{name: nothing})
    assert caught.value.problem["pointer"] == f"query:{name}"


@pytest.mark.parametrize("values", [[["a", "b"]], [[1j]], [[None]]])
def test_what_holds_no_numbers_is_not_sent(client: Client, values: Any) -> None:
    with pytest.raises(TypeError, match="numbers"):
        client.attention(values)


def test_numbers_that_no_float32_holds_are_refused_by_the_service(client: Client) -> None:
    with pytest.raises(Refused) as failure:
        client.attention([[1e300, 0.0]])
    assert failure.value.pointer == "/embeddings/0/0"


def test_the_catalogue(client: Client, url: str) -> None:
    assert client.encodings() == httpx.get(f"{url}/encodings").json()["encodings"]
    assert client.encoding("alibi") == httpx.get(f"{url}/encodings/alibi").json()
    assert client.models() == httpx.get(f"{url}/models").json()["models"]
    assert client.health()["status"] == "ready"
    with pytest.raises(Refused, match="404"):
        client.encoding("a/b?c")


def test_positions_alone(client: Client, url: str) -> None:
    views = client.positions(
        "rope", queries=4, width=8, heads=2, view=["similarity", "tables"], parameters={"theta": 5e5}
    )
    query = "queries=4&width=8&heads=2&view=similarity,tables&theta=500000"
    expected = httpx.get(f"{url}/encodings/rope/positions?{query}").json()
    assert same(views["similarity"], expected["views"]["similarity"]["values"])
    assert views.axes("similarity") == ("heads", "queries", "keys")
    assert views.describe("tables/theta") == expected["tables"]["theta"]["description"]
    assert {name for name in views if name.startswith("tables/")} == {f"tables/{name}" for name in expected["tables"]}
    assert "similarity [2, 4, 4]" in repr(views)


def test_a_rotary_configuration(client: Client, url: str) -> None:
    config = {"rope_theta": 10000.0, "max_position_embeddings": 512}

    class Config:
        def to_dict(self) -> dict[str, Any]:
            return config

    expected = httpx.post(f"{url}/encodings/rope/resolve?head_dim=8", json=config).json()
    assert client.resolve_rope(config, head_dim=8) == client.resolve_rope(Config(), head_dim=8) == expected


def test_presets_are_inputs(client: Client, url: str) -> None:
    assert {one["name"] for one in client.presets()} >= {"sentence", "repeat"}
    preset = client.preset("repeat", n=8, d=4, seed=3)
    expected = httpx.get(f"{url}/presets/repeat?n=8&d=4&seed=3").json()
    assert same(preset.embeddings, expected["embeddings"])
    assert preset.tokens == expected["tokens"]
    answer = client.attention(preset, "alibi")
    assert answer.tokens == expected["tokens"]
    assert same(answer.weights, asked(url, expected, encoding="alibi")["results"][0]["weights"])


@pytest.mark.parametrize("how", ["x", "text"])
def test_text_goes_as_json_with_its_arrays(how: str, client: Client) -> None:
    bias = np.ones((32, 1), np.float32)
    parameters = {"t5.bias": bias}
    call = (
        Calls.attention(None, "hello", parameters=parameters)
        if how == "x"
        else Calls.attention(None, text="hello", parameters=parameters)
    )
    assert call.kind == "application/json"
    sent = json.loads(call.content or b"")
    assert sent["text"] == "hello"
    about = sent["parameters"]["t5.bias"]
    assert np.array_equal(
        np.frombuffer(base64.b64decode(about["base64"]), about["dtype"]).reshape(about["shape"]), bias
    )
    with pytest.raises(Refused) as failure:
        client.attention("hello", model="identity")
    assert failure.value.pointer == "/text"


def test_a_picture_is_the_services(client: Client, url: str, x: X) -> None:
    shown = httpx.post(
        f"{url}/attention?encoding=rope&heads=2&zoom=2",
        json={"embeddings": x.tolist()},
        headers={"Accept": "image/png"},
    )
    assert client.picture(x, "rope", heads=2, zoom=2) == shown.content


def test_the_asynchronous_client_asks_at_once_and_gives_the_same(client: Client, url: str, x: X) -> None:
    names = ["rope", "alibi", "t5", "none"]

    async def ask() -> list[Attention]:
        async with AsyncClient(url) as waiting:
            return await asyncio.gather(*(waiting.attention(x, name, heads=4) for name in names))

    for name, answer in zip(names, asyncio.run(ask()), strict=True):
        assert np.array_equal(answer.weights, client.attention(x, name, heads=4).weights)  # type: ignore[arg-type]


def test_both_clients_have_all_calls_with_their_documentation() -> None:
    calls = {name for name in vars(Calls) if not name.startswith("_")}
    for kind in (Client, AsyncClient):
        for name in calls:
            method = getattr(kind, name)
            assert method.__doc__ == getattr(Calls, name).__doc__
            assert (
                inspect.signature(method).parameters.keys() == inspect.signature(getattr(Calls, name)).parameters.keys()
            )
