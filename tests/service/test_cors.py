"""Pages of other origins, and what else browsers are told."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.settings import Settings, SettingsError
from service.wire import media
from tests.service import counts, samples
from tests.service.process import Process, serving
from tests.service.test_process import metrics

LAB, LOCAL, OTHER = "https://lab.example.org", "http://127.0.0.1:8888", "https://other.example.org"
KEY = "alice-0123456789abcdef"
BODY = samples.npy(np.ones((8, 16), np.float32))
HEADERS = {"content-type": media.NPY, "accept": media.SAFETENSORS}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """With API keys, which preflight requests do not have."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(KEY)
    settings = Settings(device="cpu", workers=1, cors_origins=(LAB, LOCAL), api_keys_file=keys)
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        yield client


def preflight(client: TestClient, origin: str, path: str = "/attention", **more: str) -> tuple[int, dict[str, str]]:
    headers = {"origin": origin, "access-control-request-method": "POST"}
    headers |= {f"access-control-request-{name}": value for name, value in more.items()}
    answer = client.options(path, headers=headers)
    return answer.status_code, dict(answer.headers)


@pytest.mark.parametrize("path", ["/attention", "/v2/models/identity.rope/infer", "/presets/sentence"])
def test_a_named_origin_may_ask(asked: TestClient, path: str) -> None:
    for origin in (LAB, LOCAL):
        status, headers = preflight(asked, origin, path, headers="content-type, x-api-key, authorization")
        assert status == 200
        assert headers["access-control-allow-origin"] == origin
        assert "POST" in headers["access-control-allow-methods"]
        assert "access-control-allow-credentials" not in headers
        assert headers["x-request-id"]
        assert headers["x-content-type-options"] == "nosniff"
        status, headers = preflight(asked, origin, path, **{"private-network": "true"})
        assert status == 200
        assert headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize(
    ("origin", "more"),
    [
        (OTHER, {}),
        ("https://lab.example.org.evil.example", {}),
        ("http://lab.example.org", {}),
        ("https://lab.example.org:444", {}),
        ("null", {}),
        (LAB, {"method": "DELETE"}),
        (LAB, {"headers": "x-anything"}),
        (OTHER, {"private-network": "true"}),
    ],
)
def test_others_and_other_things_may_not(asked: TestClient, origin: str, more: dict[str, str]) -> None:
    status, headers = preflight(asked, origin, **more)
    assert status == 403
    assert headers.get("access-control-allow-origin") in (None, LAB)
    assert (headers.get("access-control-allow-origin") == LAB) == (origin == LAB)


@pytest.mark.parametrize(
    ("headers", "pointer", "told"),
    [
        ({"origin": OTHER}, "header:Origin", OTHER),
        ({"access-control-request-method": "DELETE"}, "header:Access-Control-Request-Method", "GET, HEAD, POST"),
        ({"access-control-request-headers": "x-anything"}, "header:Access-Control-Request-Headers", "x-api-key"),
    ],
)
def test_a_refusal_is_a_problem_like_every_other(
    asked: TestClient, headers: dict[str, str], pointer: str, told: str
) -> None:
    before = counts.read(asked)
    answer = asked.options("/attention", headers={"origin": LAB, "access-control-request-method": "POST"} | headers)
    problem = answer.json()
    assert answer.status_code == problem["status"] == 403
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["type"] == "urn:attention:problem:cross_origin"
    assert problem["pointer"] == pointer
    assert told in problem["detail"]
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert "Origin" in answer.headers["vary"]
    after = counts.read(asked)
    assert counts.changes(before, after, "attention_rejected_total") == {("cross_origin",): 1}
    assert counts.changes(before, after, "attention_requests_total")["", "/attention", "403"] == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/attention", 200),
        ("POST", "/attention?heads=3", 422),
        ("GET", "/v2", 200),
        ("GET", "/v2/nothing", 404),
        ("GET", "/models", 200),
        ("GET", "/nowhere", 404),
        ("POST", "/models", 405),
        ("OPTIONS", "/attention", 405),
    ],
)
def test_answers_and_failures_may_be_read_by_named_origins_only(
    asked: TestClient, method: str, path: str, status: int
) -> None:
    def headers(origin: str | None, key: str = KEY) -> dict[str, str]:
        found = asked.request(
            method,
            path,
            content=BODY if method == "POST" else b"",
            headers=HEADERS | {"x-api-key": key} | ({"origin": origin} if origin else {}),
        )
        assert found.status_code == (status if key == KEY else 401)
        assert found.headers["x-content-type-options"] == "nosniff"
        assert "Origin" in found.headers["vary"]
        return dict(found.headers)

    own = headers(LAB)
    assert own["access-control-allow-origin"] == LAB
    assert "x-request-id" in own["access-control-expose-headers"]
    assert headers(LAB, "nobody-0123456789abcdef")["access-control-allow-origin"] == LAB
    for origin in (OTHER, None):
        assert "access-control-allow-origin" not in headers(origin)


def test_without_the_setting_nobody_may(client: TestClient) -> None:
    assert preflight(client, LAB)[0] == 405
    answer = client.post("/attention", content=BODY, headers=HEADERS | {"origin": LAB})
    assert answer.status_code == 200
    assert not any(name.startswith("access-control") for name in answer.headers)
    assert "origin" not in answer.headers["vary"].lower()


@pytest.mark.parametrize(
    "origin", ["*", "lab.example.org", "https://lab.example.org/page", "ftp://a.org", "null", "https://*.example.org"]
)
def test_what_is_no_origin_is_no_setting(origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTENTION_CORS_ORIGINS", f"https://good.example.org, {origin}")
    with pytest.raises(SettingsError, match="is no origin"):
        Settings.read()
    monkeypatch.setenv("ATTENTION_CORS_ORIGINS", "HTTPS://Lab.Example.org/, http://[::1]:80")
    assert Settings.read().cors_origins == ("https://lab.example.org", "http://[::1]:80")


def test_the_pages_load_nothing_from_elsewhere(client: TestClient) -> None:
    for path in ("/", "/docs"):
        policy = client.get(path).headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; ")
        assert "http" not in policy
        assert "frame-ancestors 'self'" in policy


# Answers straight from the socket


def request(origin: str | None) -> bytes:
    lines = [
        "POST /attention HTTP/1.1",
        "host: here",
        *(f"{name}: {value}" for name, value in HEADERS.items()),
        *([f"origin: {origin}"] if origin else []),
        f"content-length: {len(BODY)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + BODY


def heads(service: Process, origin: str | None, times: int = 8) -> set[str]:
    """The heads of the answers to so many requests over one connection, without what differs each time."""
    found = set()
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        reader = connection.makefile("rb")
        for _ in range(times):
            connection.sendall(request(origin))
            lines = list(iter(lambda: reader.readline().decode().rstrip(), ""))
            length = next(int(line.split()[1]) for line in lines if line.startswith("content-length"))
            reader.read(length)
            changing = ("date", "server-timing", "x-request-id", "content-length")
            found.add("\n".join(sorted(line for line in lines if not line.startswith(changing))))
        reader.close()
    return found


@pytest.fixture(scope="module", params=[None, f"{LAB},{LOCAL}"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    settings = {} if request.param is None else {"cors_origins": request.param}
    with serving(**settings) as service:
        yield service


def test_answers_straight_from_the_socket_have_the_headers_of_the_others(service: Process) -> None:
    for origin in (None, LAB, OTHER):
        before = metrics(service)
        (head,) = heads(service, origin)
        moved = counts.changes(before, metrics(service), "attention_requests_total")
        assert moved["rope", "/attention", "200"] == 8
        assert "x-content-type-options: nosniff" in head
        allowed = "vary: Accept, Origin" in head and origin == LAB
        assert (f"access-control-allow-origin: {LAB}" in head) == allowed


def test_what_is_refused_before_it_is_a_request_says_so_too(service: Process) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(b"FROB / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"\r\nx-content-type-options: nosniff\r\n" in connection.recv(10_000)


def test_a_file_of_the_page_is_told_once_what_it_is(service: Process) -> None:
    assert Path("service/playground/main.js").is_file()
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(b"GET /playground/main.js HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.recv(10_000).count(b"nosniff") == 1
