"""Several processes behind one port, as they run."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from service.wire import media
from tests.service import counts, samples
from tests.service.process import Process, command, serving

PATIENCE = 30.0
BODY = samples.npy(np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32))
WRONG = samples.npy(np.ones(3, np.float32))
HEADERS = {"content-type": media.NPY, "accept": media.SAFETENSORS}


def connect(service: Process) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE)


def ask(service: Process, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes, str]:
    """The status, the content, and the name of the process that answered, over a connection of its own."""
    connection = connect(service)
    try:
        connection.request(method, path, body, HEADERS)
        answer = connection.getresponse()
        return answer.status, answer.read(), (answer.getheader("x-request-id") or "").rpartition("-")[0]
    finally:
        connection.close()


def metrics(service: Process) -> dict[counts.Key, float]:
    return counts.parse(ask(service, "GET", "/metrics")[1].decode())


def open_over(connection: http.client.HTTPConnection) -> int:
    """How many connections all processes have open, asked over one of them."""
    connection.request("GET", "/metrics")
    return int(counts.total(counts.parse(connection.getresponse().read().decode()), "attention_connections"))


def ready(service: Process) -> int:
    """How many processes take work."""
    try:
        status, content, _ = ask(service, "GET", "/health/ready")
    except ConnectionError:  # it was about to be answered by a process that is killed
        return 0
    return int(json.loads(content)["processes"]["ready"]) if status == 200 else 0


def workers(service: Process) -> list[int]:
    """Their process ids."""
    return [
        int(pid) for pid in Path(f"/proc/{service.child.pid}/task/{service.child.pid}/children").read_text().split()
    ]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@dataclass
class Load:
    """Clients that keep their connections for some time, and take a new one where one breaks."""

    service: Process
    path: str = "/attention?heads=4"
    renewed: float = 0.02
    """After so many of the answers a client takes a new connection."""
    statuses: Counter[int] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    refused: int = 0
    ids: set[str] = field(default_factory=set)
    """Of the requests that were answered."""
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def names(self) -> set[str]:
        """Of the processes that answered."""
        return {one.rpartition("-")[0] for one in self.ids.copy()}

    def client(self, requests: int | None = None) -> None:
        dice = random.Random(requests)
        while not self.over.is_set() and requests != 0:
            connection, served = connect(self.service), False
            try:
                while not self.over.is_set() and requests != 0:
                    connection.request("POST", self.path, BODY if dice.random() < 0.9 else WRONG, HEADERS)
                    answer = connection.getresponse()
                    answer.read()
                    self.statuses[answer.status] += 1
                    self.ids.add(answer.getheader("x-request-id") or "")
                    served = True
                    requests = requests if requests is None else requests - 1
                    if answer.getheader("connection") == "close" or dice.random() < self.renewed:
                        break
            except (OSError, http.client.HTTPException) as error:
                if served:
                    self.broken.append(repr(error))
                else:
                    self.refused += 1
                    self.over.wait(0.01)
            finally:
                connection.close()


@pytest.fixture(scope="module")
def service() -> Iterator[Process]:
    with serving(processes="2") as service:
        until(lambda: ready(service) == 2)
        yield service
        service.child.send_signal(signal.SIGTERM)
        assert service.wait(15) == 0


def test_all_processes_answer_and_their_answers_are_the_same(service: Process) -> None:
    answers: dict[str, dict[str, np.ndarray]] = {}
    for _ in range(200):
        status, content, name = ask(service, "POST", "/attention?heads=4&compare=t5,shaw&return=weights,scores", BODY)
        assert status == 200
        answers.setdefault(name, safetensors.numpy.load(content))
        if len(answers) == 2:
            break
    first, second = answers.values()
    assert set(first) == set(second)
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])


def test_request_ids_are_nobody_elses(service: Process) -> None:
    found = [http_id(service) for _ in range(60)]
    assert len(set(found)) == 60
    assert len({one.rpartition("-")[0] for one in found}) == 2


def http_id(service: Process) -> str:
    connection = connect(service)
    try:
        return id_over(connection)
    finally:
        connection.close()


def id_over(connection: http.client.HTTPConnection) -> str:
    connection.request("GET", "/models")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    return answer.getheader("x-request-id") or ""


def name(connection: http.client.HTTPConnection) -> str:
    """Of the process that answers."""
    return id_over(connection).rpartition("-")[0]


def test_the_counts_of_clients_are_those_of_the_metrics_whichever_process_tells(service: Process) -> None:
    before = metrics(service)
    load = Load(service)
    with ThreadPoolExecutor(16) as threads:
        for client in [threads.submit(load.client, 40) for _ in range(16)]:
            client.result()
    assert load.broken == []
    assert load.statuses.total() == 16 * 40
    assert len(load.names) == 2, "both processes had work"
    right, wrong = load.statuses[200], load.statuses[422]
    assert right + wrong == 16 * 40

    def told() -> list[dict[tuple[str, ...], int]]:
        after = metrics(service)
        requests, durations, rejected, jobs = (
            dict(counts.changes(before, after, name))
            for name in (
                "attention_requests_total",
                "attention_request_duration_seconds_count",
                "attention_rejected_total",
                "attention_batch_requests_sum",
            )
        )
        for scraped in (requests, durations):
            for key in [key for key in scraped if key[1] == "/metrics"]:
                del scraped[key]
        # What summaries are compared with is computed too, once for each shape, and is nobody's request.
        return [requests, durations, rejected, {key: count for key, count in jobs.items() if key == ("rope",)}]

    due = [
        {("rope", "/attention", "200"): right, ("rope", "/attention", "422"): wrong},
        {("rope", "/attention", "s"): right, ("rope", "/attention", ""): wrong},
        {("invalid",): wrong},
        {("rope",): right},
    ]
    # A request counts once its answer has been handed over, and by then another process may have been asked.
    until(lambda: told() == due)
    for _ in range(6):
        assert told() == due


def test_statistics_of_the_protocol_are_those_of_all(service: Process) -> None:
    def inferences() -> int:
        report = json.loads(ask(service, "GET", "/v2/models/identity.alibi/stats")[1])
        return int(report["model_stats"][0]["inference_count"])

    before = inferences()
    for _ in range(20):
        assert ask(service, "POST", "/attention?encoding=alibi", BODY)[0] == 200
    until(lambda: inferences() == before + 20)  # the last one counts once its answer has been handed over
    assert {inferences() for _ in range(6)} == {before + 20}


def test_the_present_of_all_is_told(service: Process) -> None:
    time.sleep(1.2)  # the others have told of theirs
    after = metrics(service)
    assert after["attention_ready", ()] == 1
    assert after["attention_processes", (("state", "ready"),)] == 2
    assert after["attention_processes", (("state", "not_ready"),)] == 0
    assert counts.total(after, "attention_inflight_requests") == 1, "this question itself"
    assert counts.total(after, "attention_queue_requests") == 0
    resident = [after["attention_process_resident_bytes", (("process", str(i)),)] for i in range(2)]
    assert after["process_resident_memory_bytes", ()] == sum(resident)
    assert min(resident) > 30 << 20
    sessions = [key for key in after if key[0] == "attention_session_info"]
    assert {dict(labels)["encoding"] for _, labels in sessions} >= {"rope", "alibi", "t5"}
    served = {(dict(labels)["model"], dict(labels)["encoding"]) for _, labels in sessions}
    assert len(sessions) == len(served), "once, not for each process"


def test_the_start_is_told_once(service: Process) -> None:
    text = "".join(service.output)
    assert text.count(f"http://127.0.0.1:{service.port}\n") == 1
    assert "2 processes" in text


def test_an_idle_group_does_nothing(service: Process) -> None:
    def ticks() -> int:
        found = 0
        for pid in (service.child.pid, *workers(service)):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found += int(fields[11]) + int(fields[12])
        return found

    before = ticks()
    time.sleep(4)
    assert (ticks() - before) / os.sysconf("SC_CLK_TCK") < 0.01 * 4 + 0.01  # a hundredth, and what a tick rounds


def test_a_process_that_is_killed_under_load_comes_back_and_the_others_serve_on() -> None:
    with serving(processes="2") as service, ThreadPoolExecutor(16) as threads:
        until(lambda: ready(service) == 2)
        load = Load(service)
        clients = [threads.submit(load.client) for _ in range(16)]
        try:
            time.sleep(0.5)
            doomed, other = workers(service)
            os.kill(doomed, signal.SIGKILL)
            killed = time.monotonic()
            until(lambda: ready(service) < 2)
            answered = load.statuses.total()
            time.sleep(0.5)
            assert load.statuses.total() > answered, "the other one serves on"
            until(lambda: ready(service) == 2)
            assert time.monotonic() - killed < PATIENCE
            until(lambda: len(load.names) == 3)
        finally:
            load.over.set()
        for client in clients:
            client.result(PATIENCE)
        kept = [connect(service) for _ in range(8)]
        until(lambda: open_over(kept[0]) == 1)
        assert set(Counter(map(name, kept)).values()) == {4}, "it takes its part of what is opened then"
        for connection in kept:
            connection.close()
        assert len(load.broken) <= 16, "at most what was under way at the process that was killed"
        assert set(load.statuses) == {200, 422}
        assert other in workers(service)
        assert doomed not in workers(service)
        after = metrics(service)
        moved = counts.changes({}, after, "attention_requests_total")
        counted = moved["rope", "/attention", "200"] + moved["rope", "/attention", "422"]
        # Some were counted and not received, some received and not counted: at most one for each connection.
        assert abs(counted - load.statuses.total()) <= 16
        assert any("was killed by SIGKILL" in line for line in service.output)
        service.child.send_signal(signal.SIGTERM)
        assert service.wait(15) == 0


def test_sigterm_under_load_loses_no_request_of_any_process() -> None:
    with serving(processes="2") as service, ThreadPoolExecutor(12) as threads:
        until(lambda: ready(service) == 2)
        load = Load(service)
        clients = [threads.submit(load.client) for _ in range(12)]
        try:
            time.sleep(0.7)
            service.child.send_signal(signal.SIGTERM)
            assert service.wait(15) == 0, "".join(service.output)
        finally:
            load.over.set()
        for client in clients:
            client.result(PATIENCE)
        assert load.broken == []
        assert set(load.statuses) == {200, 422, 503}
        assert len(load.names) == 2


def test_sigterm_while_each_request_has_a_connection_of_its_own_loses_none_that_was_read() -> None:
    """Many of them are handed from one process to the other, also while both drain."""
    with (
        serving(processes="2", access_log="true", log_format="json") as service,
        ThreadPoolExecutor(12) as threads,
    ):
        until(lambda: ready(service) == 2)
        load = Load(service, renewed=1.0)
        clients = [threads.submit(load.client) for _ in range(12)]
        try:
            until(lambda: load.statuses[200] > 200)
            service.child.send_signal(signal.SIGTERM)
            assert service.wait(15) == 0, "".join(service.output)
        finally:
            load.over.set()
        for client in clients:
            client.result(PATIENCE)
    lines = [json.loads(line) for line in service.output if line.startswith("{")]
    logged = {line["request_id"]: line["status"] for line in lines if line.get("endpoint") == "/attention"}
    assert set(logged.values()) == {200, 422, 503}
    assert set(logged) == load.ids


def test_processes_end_when_their_supervisor_is_killed() -> None:
    with serving(processes="2") as service:
        until(lambda: ready(service) == 2)
        pids = workers(service)
        service.child.kill()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_a_second_service_cannot_take_the_port(service: Process) -> None:
    done = command(device="cpu", port=str(service.port), processes="2")
    assert done.returncode == 1
    assert f"127.0.0.1:{service.port}" in done.stderr
