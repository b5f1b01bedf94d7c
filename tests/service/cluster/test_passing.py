"""What the application sends can go to another process, and is the same there."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import numpy as np
import pytest

from service.cluster.passing import Passing

Headers = list[tuple[bytes, bytes]]


def sent(headers: Headers, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """What comes out of these messages of an application that was asked with these headers."""
    found: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    async def receive() -> Any:
        raise AssertionError

    async def send(message: Any) -> None:
        found.append(pickle.loads(pickle.dumps(message)))

    asyncio.run(Passing(app)({"type": "http", "headers": headers}, receive, send))
    return found


def test_views_of_arrays_become_their_bytes() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    with pytest.raises(TypeError):
        pickle.dumps(array.data)
    body = {"type": "http.response.body", "more_body": True}
    assert sent([], {**body, "body": array.data}) == [{**body, "body": array.tobytes()}]


def test_the_id_that_the_proxy_gave_is_left_to_it_and_another_is_told() -> None:
    start: dict[str, Any] = {"type": "http.response.start", "status": 200}
    plain = (b"content-type", b"text/plain")
    for asked, told, kept in ((b"a", b"a", []), (b"a b", b"c", [(b"x-request-id", b"c")])):
        (found,) = sent([(b"x-request-id", asked)], {**start, "headers": [plain, (b"x-request-id", told)]})
        assert found == {**start, "headers": [plain, *kept]}
