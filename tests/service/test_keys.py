"""API keys: their file, who is let in, and what happens when they change."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest
import safetensors.numpy
from starlette.testclient import TestClient

from service import keys
from service.app import create_app
from service.client import AsyncClient, Client, Refused
from service.keys import Keys, KeysError
from service.settings import Settings
from service.wire import media
from tests.service import counts, samples
from tests.service.process import Process, command, serving
from tests.service.test_processes import metrics, ready, until, workers

ALICE, BOB, CAROL = "alice-0123456789abcdef", "bob-fedcba9876543210", "carol-00112233445566778899"
BODY = samples.npy(np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32))
HEADERS = {"content-type": media.NPY, "accept": media.SAFETENSORS}


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def write(path: Path, *lines: str) -> None:
    """All at once, as whoever rotates keys should."""
    beside = path.with_suffix(".new")
    beside.write_text("\n".join([*lines, ""]))
    beside.replace(path)


def bearer(key: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {key}".encode()


# The file


def test_a_file_has_keys_digests_comments_and_empty_lines() -> None:
    found = keys.parse(f"# those of the team\n\n  {ALICE}\nbob:{digest(BOB).upper()}\n")
    assert [(key.name, key.digest.hex()) for key in found] == [("line 3", digest(ALICE)), ("bob", digest(BOB))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no key"),
        ("# none yet\n", "no key"),
        ("short\n", "5 characters; at least 16"),
        (f"{ALICE}\nwith space in it, long\n", "line 2 is no key"),
        (f"bob:{digest(BOB)[:-1]}\n", "line 1 is neither"),
        (f"bob:{BOB}\n", "line 1 is neither"),
        (f":{digest(BOB)}\n", "line 1 is neither"),
    ],
)
def test_what_is_no_file_of_keys_is_refused_by_its_line_and_not_repeated(text: str, words: str) -> None:
    with pytest.raises(KeysError, match=words) as caught:
        keys.parse(text)
    for line in text.split():
        assert len(line) < 6 or line not in str(caught.value)


def test_the_first_key_of_each_kind_counts() -> None:
    headers = [
        (b"authorization", b"basic YWxpY2U="),
        (b"authorization", b"BEARER  one "),
        (b"x-api-key", b" two "),
        (b"x-api-key", b"three"),
        (b"authorization", b"Bearer four"),
    ]
    assert keys.sent(headers) == [b"one", b"two"]
    assert keys.sent([(b"authorization", b"Bearer "), (b"x-api-key", b"")]) == []


def test_every_known_key_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is, so that time does not tell."""
    file = tmp_path / "keys"
    write(file, ALICE, BOB, CAROL)
    found, compared = Keys(file), Counter[bytes]()

    def compare(one: bytes, other: bytes) -> bool:
        compared[other] += 1
        return one == other

    monkeypatch.setattr("service.keys.hmac.compare_digest", compare)
    for key, good in ((ALICE, True), (CAROL, True), ("nobody's", False)):
        compared.clear()
        assert found.admits([bearer(key)]) == good
        assert sorted(compared.values()) == [1, 1, 1]


def test_the_file_is_followed_once_it_is_left_alone_and_a_wrong_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keys, "LOOK", 0.01)
    caplog.set_level(logging.INFO)
    file = tmp_path / "keys"
    write(file, ALICE)
    found, changes = Keys(file), list[int]()
    found.changed.append(lambda: changes.append(1))

    def good(key: str) -> bool:
        return found.admits([bearer(key)])

    async def soon(key: str, expected: bool) -> None:
        async with asyncio.timeout(10):
            while good(key) != expected:
                await asyncio.sleep(0.01)

    async def told(words: str) -> None:
        async with asyncio.timeout(10):
            while words not in caplog.text:
                await asyncio.sleep(0.01)

    async def main() -> None:
        following = asyncio.create_task(found.follow())
        write(file, ALICE, f"bob:{digest(BOB)}")
        await soon(BOB, True)
        assert good(ALICE)
        assert len(changes) == 1
        write(file, f"bob:{digest(BOB)}")
        await soon(ALICE, False)
        assert len(changes) == 2
        file.unlink()
        await told("No such file")
        write(file, "no key at all")
        await told("line 1 is no key")
        assert good(BOB)
        write(file, "# the same", BOB)
        await asyncio.sleep(0.1)
        assert good(BOB)
        write(file, CAROL)
        await soon(CAROL, True)
        assert not good(BOB)
        assert len(changes) == 3, "other words for the same keys are no change"
        following.cancel()

    asyncio.run(main())
    assert caplog.text.count("No such file") == 1, "said once"
    for secret in (ALICE, BOB, CAROL, digest(BOB), "no key at all"):
        assert secret not in caplog.text


# Who is let in


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    write(file, ALICE, f"bob:{digest(BOB)}")
    app = create_app(Settings(device="cpu", workers=1, api_keys_file=file))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/attention"),
        ("GET", "/attention"),
        ("POST", "/attention/probe"),
        ("GET", "/models"),
        ("HEAD", "/models"),
        ("GET", "/encodings/rope/positions"),
        ("POST", "/encodings/rope/resolve"),
        ("GET", "/presets/sentence"),
        ("GET", "/nowhere"),
        ("GET", "/health/live/"),
        ("OPTIONS", "/attention"),
    ],
)
@pytest.mark.parametrize("header", [{}, {"x-api-key": "nobody-0123456789abcdef"}, {"authorization": f"Basic {ALICE}"}])
def test_without_a_good_key_nothing_is_said(asked: TestClient, method: str, path: str, header: dict[str, str]) -> None:
    answer = asked.request(method, path, headers=header)
    assert answer.status_code == 401
    unknown = "x-api-key" in header
    assert answer.headers["www-authenticate"] == 'Bearer realm="attention"' + (', error="invalid_token"' * unknown)
    assert answer.headers["content-type"] == media.PROBLEM
    if method != "HEAD":
        problem = answer.json()
        assert problem["status"] == 401
        assert problem["request_id"] == answer.headers["x-request-id"]
        assert "X-API-Key" in problem["detail"]
        assert "nobody" not in answer.text


@pytest.mark.parametrize("path", ["/v2", "/v2/models/identity.rope", "/v2/models/identity.rope/infer", "/v2/nothing"])
def test_the_open_inference_protocol_says_so_in_its_own_form(asked: TestClient, path: str) -> None:
    answer = asked.post(path) if path.endswith("infer") else asked.get(path)
    assert answer.status_code == 401
    assert set(answer.json()) == {"error"}
    assert answer.headers["www-authenticate"].startswith("Bearer ")
    assert asked.get("/v2", headers={"x-api-key": BOB}).status_code == 200


@pytest.mark.parametrize("header", [{"authorization": f"bearer {ALICE}"}, {"X-API-Key": BOB}])
def test_a_good_key_lets_in_either_way(asked: TestClient, header: dict[str, str]) -> None:
    answer = asked.post("/attention", content=BODY, headers=HEADERS | header)
    assert answer.status_code == 200
    assert asked.get("/models", headers=header).status_code == 200
    assert asked.get("/nowhere", headers=header).status_code == 404


def test_what_orchestrators_and_pages_load_is_open(asked: TestClient) -> None:
    open_ = ["/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready", "/metrics", "/", "/docs"]
    for path in (*open_, "/openapi.json", "/playground/main.js", "/docs/swagger-ui.css"):
        assert asked.get(path).status_code == 200, path
    for path in ("/v2/models/identity.rope/ready", "/playground/../models", "/docs/../models"):
        assert asked.get(path).status_code in (401, 404), path


def test_metrics_ask_for_one_where_they_shall(tmp_path: Path) -> None:
    write(tmp_path / "keys", ALICE)
    settings = Settings(device="cpu", workers=1, api_keys_file=tmp_path / "keys", api_keys_for_metrics=True)
    with TestClient(create_app(settings)) as client:
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers={"x-api-key": ALICE}).status_code == 200
        document = client.get("/openapi.json").json()
    assert "security" not in document["paths"]["/metrics"]["get"]


def test_the_openapi_document_says_which_operations_need_one(asked: TestClient, client: TestClient) -> None:
    document = asked.get("/openapi.json").json()
    assert document["security"] == [{"bearer": []}, {"header": []}]
    assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
    free = {path for path, one in document["paths"].items() if any(each.get("security") == [] for each in one.values())}
    assert free == {"/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready", "/metrics"}
    assert "security" not in client.get("/openapi.json").json()


def test_the_clients_send_it(asked: TestClient) -> None:
    async def main() -> None:
        async with AsyncClient("http://inside", api_key=ALICE, transport=httpx.ASGITransport(asked.app)) as client:
            assert (await client.encoding("rope"))["id"] == "rope"
        async with AsyncClient("http://inside", transport=httpx.ASGITransport(asked.app)) as client:
            with pytest.raises(Refused, match="no API key came") as caught:
                await client.models()
            assert caught.value.status == 401

    asyncio.run(main())


# As it runs


def test_a_service_whose_keys_cannot_be_read_does_not_start(tmp_path: Path) -> None:
    for content, words in ((None, "No such file"), ("too short", "line 1"), ("", "no key")):
        if content is not None:
            (tmp_path / "keys").write_text(content)
        done = command(device="cpu", port="0", api_keys_file=str(tmp_path / "keys"))
        assert done.returncode == 1
        assert words in done.stderr
        assert "ATTENTION_API_KEYS_FILE" in done.stderr
        assert "Traceback" not in done.stderr


@dataclass
class Caller:
    """Asks again and again with one key, over connections that it keeps for a while, small requests that are answered
    straight from the socket."""

    service: Process
    key: str
    statuses: Counter[int] = field(default_factory=Counter)
    by_process: Counter[tuple[str, int]] = field(default_factory=Counter)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.over.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self.service.port, timeout=30)
            try:
                for _ in range(50):
                    if self.over.is_set():
                        break
                    headers = HEADERS | {"authorization": f"Bearer {self.key}"}
                    connection.request("POST", "/attention?heads=4", BODY, headers)
                    answer = connection.getresponse()
                    content = answer.read()
                    if answer.status == 200:
                        assert set(safetensors.numpy.load(content)) == {"rope/weights", "rope/scores"}
                    else:
                        assert json.loads(content)["status"] == answer.status
                    self.statuses[answer.status] += 1
                    name = (answer.getheader("x-request-id") or "").rpartition("-")[0]
                    self.by_process[name, answer.status] += 1
            except (OSError, http.client.HTTPException):
                pass  # a process was killed
            finally:
                connection.close()

    def forget(self) -> None:
        self.statuses.clear()
        self.by_process.clear()


def processes(one: Caller) -> set[str]:
    """The names of those that have answered it."""
    return {name for name, _ in list(one.by_process)}


def test_keys_are_rotated_under_load_in_every_process_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    write(file, ALICE, f"bob:{digest(BOB)}")
    with (
        serving(processes="2", api_keys_file=str(file), access_log="true") as service,
        ThreadPoolExecutor(12) as threads,
    ):
        until(lambda: ready(service) == 2)
        alice, bob, carol = callers = [Caller(service, key) for key in (ALICE, BOB, CAROL)]
        running = [threads.submit(one.run) for one in callers for _ in range(4)]
        try:
            until(lambda: min(one.statuses.total() for one in callers) > 100)
            assert set(alice.statuses) == set(bob.statuses) == {200}
            assert set(carol.statuses) == {401}

            write(file, f"bob:{digest(BOB)}", CAROL)
            until(lambda: alice.statuses[401] > 0 and carol.statuses[200] > 0)

            def both(one: Caller, status: int) -> bool:
                """Both processes give that answer now, and no other."""
                one.forget()
                until(lambda: len(processes(one)) == 2 and one.statuses.total() > 100)
                return set(one.statuses) == {status}

            until(lambda: both(alice, 401) and both(carol, 200))
            for one in callers:
                one.forget()
            until(lambda: min(one.statuses.total() for one in callers) > 200)
            assert set(alice.statuses) == {401}
            assert set(carol.statuses) == {200}

            # A process that is started again has the keys of now, not those of when the service was started.
            before = set[str]().union(*map(processes, callers))
            os.kill(workers(service)[0], signal.SIGKILL)
            until(lambda: ready(service) < 2)
            until(lambda: ready(service) == 2)
            until(lambda: all(processes(one) - before for one in callers))
            assert set(alice.statuses) == {401}
            assert set(carol.statuses) == {200}
            assert set(bob.statuses) == {200}, "a key that stays good is good all the while"
        finally:
            for one in callers:
                one.over.set()
        for each in running:
            each.result(30)
        found = metrics(service)
        rejected = counts.changes({}, found, "attention_rejected_total")
        assert rejected["unauthorized",] > 200
        service.child.send_signal(signal.SIGTERM)
        assert service.wait(15) == 0
    text = "".join(service.output).replace("\n", "")
    assert "API keys are good" in text
    for secret in (ALICE, BOB, CAROL, digest(BOB)):
        assert secret not in text


def test_a_service_with_keys_serves_the_python_client(tmp_path: Path) -> None:
    write(tmp_path / "keys", ALICE)
    with serving(api_keys_file=str(tmp_path / "keys")) as service:
        url = f"http://127.0.0.1:{service.port}"
        with Client(url, api_key=ALICE) as client:
            for _ in range(5):
                assert client.attention(np.ones((3, 4), np.float32), "rope").weights is not None
            assert ALICE not in repr(client)
        with Client(url) as client, pytest.raises(Refused, match="401"):
            client.attention(np.ones((3, 4), np.float32), "rope")
