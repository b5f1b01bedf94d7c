"""The contract with `tritonclient.http.aio`, unmodified, against a service that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as aio
from tritonclient.utils import InferenceServerException

from tests.service.open_inference.bodies import X, attention
from tests.service.process import Process

Scenario = Callable[[Any], Coroutine[Any, Any, None]]


def run(address: str, scenario: Scenario) -> None:
    async def whole() -> None:
        async with aio.InferenceServerClient(address) as client:
            await scenario(client)

    asyncio.run(whole())


def embeddings(x: np.ndarray[Any, Any] = X) -> list[Any]:
    return [triton.InferInput("embeddings", list(x.shape), "FP32").set_data_from_numpy(x)]


async def refused(status: str, call: Coroutine[Any, Any, Any]) -> None:
    with pytest.raises(InferenceServerException) as raised:
        await call
    assert raised.value.status() == status
    assert "exception occurred in the client" not in raised.value.message()


def test_every_question_about_the_server_and_its_models_is_answered(address: str) -> None:
    async def scenario(client: Any) -> None:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("identity.rope", "1")
        assert not await client.is_model_ready("identity.ropes")
        assert "statistics" in (await client.get_server_metadata())["extensions"]
        assert (await client.get_model_metadata("identity.rope"))["name"] == "identity.rope"
        assert (await client.get_model_config("identity.rope"))["max_batch_size"] == 0
        assert (await client.get_inference_statistics("identity.rope"))["model_stats"][0]["version"] == "1"
        names = [one["name"] for one in await client.get_model_repository_index()]
        assert "identity.rope" in names
        assert [one["name"] for one in (await client.get_inference_statistics())["model_stats"]] == names
        await client.unload_model("identity.rope")
        assert not await client.is_model_ready("identity.rope")
        await client.load_model("identity.rope")
        assert await client.is_model_ready("identity.rope")
        await refused("501", client.get_log_settings())
        await refused("404", client.get_model_metadata("identity.ropes"))
        await refused("404", client.infer("identity.ropes", embeddings()))
        await refused("400", client.infer("identity.rope", embeddings(), parameters={"no_such": 1}))

    run(address, scenario)


@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_infer_gives_the_very_bits_of_attention(
    address: str, process: Process, coding: str | None, binary: bool
) -> None:
    expected = attention(process.port, "encoding=rope&heads=2", embeddings=X)

    async def scenario(client: Any) -> None:
        result = await client.infer(
            "identity.rope",
            embeddings(),
            outputs=[triton.InferRequestedOutput(name, binary_data=binary) for name in expected],
            parameters={"heads": 2},
            request_compression_algorithm=coding,
            response_compression_algorithm=coding,
        )
        for name, array in expected.items():
            assert result.as_numpy(name).tobytes() == array.tobytes(), name

    run(address, scenario)


def test_requests_in_flight_together_get_their_own_answers(address: str, process: Process) -> None:
    lengths = [2, 3, 4, 5] * 8
    expected = {n: attention(process.port, "encoding=alibi", embeddings=X[:, :n]) for n in set(lengths)}

    async def scenario(client: Any) -> None:
        asked = (client.infer("identity.alibi", embeddings(X[:, :n]), request_id=str(n)) for n in lengths)
        for n, result in zip(lengths, await asyncio.gather(*asked), strict=True):
            assert result.get_response()["id"] == str(n)
            assert result.as_numpy("scores").tobytes() == expected[n]["scores"].tobytes()

    run(address, scenario)
