"""NaN and infinite numbers, over sockets: refused at the door by their place, and counted on their way out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest
import safetensors.numpy

from service.wire import media
from tests.service import counts, samples
from tests.service.test_in_flight import Client, Whole

PATH = "/attention?encoding=none&return=scores&heads=1"
TIMES = 6
"""From the third on they are answered straight from the socket."""


@pytest.fixture(scope="module")
def whole() -> Iterator[Whole]:
    with asyncio.Runner() as runner:
        service = Whole(runner)
        service.sessions.quick = True
        yield service
        service.close()


def body(kind: str, rows: list[list[float]]) -> bytes:
    return json.dumps({"embeddings": rows}).encode() if kind == media.JSON else samples.npy(np.array(rows, np.float32))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", [media.JSON, media.NPY])
def test_what_is_not_finite_is_refused_at_the_door_naming_the_first(whole: Whole, kind: str, wrong: float) -> None:
    """fastapi#459, triton#3711: it came out again, as a failure of whoever wrote the answer or as null."""
    right, bad = [[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, wrong]]

    async def scenario() -> None:
        async with Client(whole.port) as client:
            before = whole.metrics()
            for i in range(TIMES):
                status, _ = await client.ask(PATH, body(kind, right), kind)
                assert status == 200
                status, content = await client.ask(PATH, body(kind, bad), kind)
                problem = json.loads(content)
                assert (status, problem["pointer"]) == (422, "/embeddings/1/1"), i
            moved = counts.changes(before, whole.metrics(), "attention_rejected_total")
            assert moved == {("invalid",): TIMES}

    whole.play(scenario())


@pytest.mark.parametrize("kind", [media.JSON, media.NPY])
def test_answers_that_are_not_finite_are_readable_and_counted(whole: Whole, kind: str) -> None:
    """Of finite numbers, whose products are too large for float32."""
    large = [[1e30, 1e30], [1.0, 1.0]]

    async def scenario() -> None:
        async with Client(whole.port) as client:
            before = whole.metrics()
            for _ in range(TIMES):
                status, content = await client.ask(PATH, body(kind, large), kind)
                assert status == 200
                scores, cells = read(kind, content)
                assert np.isfinite(scores).tolist() == [[[False, True], [True, True]]]
                assert cells == 1
            moved = counts.changes(before, whole.metrics(), "attention_nonfinite_outputs_total")
            assert moved == {("none",): TIMES}

    whole.play(scenario())


def read(kind: str, content: bytes) -> tuple[np.ndarray, int]:
    """The scores, and how many numbers are said not to be finite. In JSON, which has no others, they are null."""
    if kind == media.JSON:
        (result,) = orjson.loads(content)["results"]  # orjson takes no NaN
        return np.array(result["scores"], dtype=np.float32), result["nonfinite_cells"]
    size = int.from_bytes(content[:8], "little")
    said: dict[str, Any] = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["metadata"])
    return safetensors.numpy.load(content)["none/scores"], said["results"][0]["nonfinite_cells"]
