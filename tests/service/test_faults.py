"""What breaks below the service, in real processes: each outcome is the one that docs/operating.md states."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import pytest

from load_tests.server import free_port
from tests.service import counts, samples
from tests.service.process import START_SECONDS, Process, environment, serving
from tests.service.test_process import get, post
from tests.service.test_processes import Load, metrics, ready, until, workers

SMALL = samples.npy(np.ones((8, 16), np.float32))
LONG = samples.npy(np.ones((400, 16), np.float32))
"""Needs a worker."""
MARK = 3.0
FAILING = f"""
import service.engine.session as session
run = session.Sessions.run

def failing(self, graph, outputs, masked, feeds, *rest, **named):
    if (feeds["queries"] == {MARK}).any():
        raise FAILURE
    return run(self, graph, outputs, masked, feeds, *rest, **named)

session.Sessions.run = failing
"""
"""Runs fail whose input has a marked number."""


def marked(rows: int) -> bytes:
    return samples.npy(np.full((rows, 16), MARK, np.float32))


@pytest.mark.parametrize("failure", ["MemoryError()", "RuntimeError('std::bad_alloc')"])
def test_memory_that_cannot_be_had_fails_that_request_alone(failure: str) -> None:
    with serving(workers="1", before=FAILING.replace("FAILURE", failure)) as service:
        for rows, good in ((8, SMALL), (400, LONG)):
            for _ in range(3):  # the second comes straight from the socket where it is small
                status, content = post(service, marked(rows), "return=output")
                assert status == 500
                problem = json.loads(content)
                assert problem["title"] == "The model failed"
                assert "Traceback" not in problem["detail"]
                for _ in range(3):
                    assert post(service, good, "return=output")[0] == 200
        assert get(service, "/health/ready")[0] == 200
        found = counts.changes({}, metrics(service), "attention_rejected_total")
        assert found["model_failed",] == 6
        service.child.send_signal(signal.SIGTERM)
        assert service.wait(15) == 0


def test_a_worker_thread_that_dies_ends_its_process_and_another_is_started() -> None:
    """Those whose work it had are told; no one else notices."""
    with (
        serving(processes="2", workers="1", before=FAILING.replace("FAILURE", "SystemExit(1)")) as service,
        ThreadPoolExecutor(8) as threads,
    ):
        until(lambda: ready(service) == 2)
        before = workers(service)
        load = Load(service)
        clients = [threads.submit(load.client) for _ in range(8)]
        try:
            until(lambda: load.statuses.total() > 100)
            status, content = post(service, marked(400), "return=output")
            assert status in (500, 503), content
            until(lambda: len(set(before) - set(workers(service))) == 1)
            until(lambda: ready(service) == 2)
            answered = load.statuses.total()
            until(lambda: load.statuses.total() > answered + 100)
        finally:
            load.over.set()
        for client in clients:
            client.result(30)
        assert set(load.statuses) <= {200, 422, 503}
        assert any("a worker thread died" in line for line in service.output)
        service.child.send_signal(signal.SIGTERM)
        assert service.wait(15) == 0


def test_a_worker_thread_that_dies_turns_a_single_process_dead_and_says_so() -> None:
    """Whoever watches its liveness starts another."""
    with serving(workers="1", before=FAILING.replace("FAILURE", "SystemExit(1)")) as service:
        assert post(service, marked(400), "return=output")[0] in (500, 503)
        for path in ("/health/live", "/health/ready", "/v2/health/live"):
            status, content = get(service, path)
            assert status == 503
            assert b"worker" in content
        assert post(service, LONG, "return=output")[0] == 503
        assert get(service, "/metrics")[0] == 200


def test_a_folder_of_models_that_goes_away_takes_its_models_and_brings_them_back(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    shutil.copytree(Path("exported") / "identity", folder / "identity")
    with serving(processes="2", models=str(folder), watch_seconds="0.1") as service:
        until(lambda: ready(service) == 2)
        folder.rename(tmp_path / "away")
        outcomes = Counter[int]()

        def answered(expected: set[int]) -> bool:
            answers = [post(service, SMALL) for _ in range(12)]
            outcomes.update(status for status, _ in answers)
            assert not any(str(tmp_path).encode() in content for _, content in answers)
            return {status for status, _ in answers} == expected

        until(lambda: not answered({200}))
        until(lambda: {get(service, "/health/ready")[0] for _ in range(12)} == {503})
        assert answered({503})
        assert get(service, "/health/live")[0] == 200
        assert b"no exported models" in get(service, "/health/ready")[1]
        (tmp_path / "away").rename(folder)
        until(lambda: answered({200}))
        until(lambda: ready(service) == 2)  # the others have told of it
        assert set(outcomes) == {200, 503}


def test_nothing_is_written_to_a_disk() -> None:
    """So a disk that is full, or may not be written to, is no matter: in containers all is read-only."""
    nowhere = dict.fromkeys(("TMPDIR", "TEMP", "TMP", "HOME", "XDG_CACHE_HOME"), "/nonexistent")
    with serving(processes="2", variables={**nowhere, "PYTHONDONTWRITEBYTECODE": "1"}) as service:
        until(lambda: ready(service) == 2)
        for _ in range(10):
            assert post(service, LONG, "encoding=t5&compare=rope,alibi")[0] == 200
        assert get(service, "/presets/sentence")[0] == 200
        assert get(service, "/encodings/rope/positions")[0] == 200
        written = [path for pid in (service.child.pid, *workers(service)) for path in written_by(pid)]
        assert written == []


def written_by(pid: int) -> list[str]:
    """Files with a name that a process has open to write to, devices and pipes left out."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
            about = Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text().splitlines()
        except FileNotFoundError:  # closed meanwhile
            continue
        flags = next(int(line.split()[1], 8) for line in about if line.startswith("flags"))
        if (
            flags & os.O_ACCMODE != os.O_RDONLY
            and target.startswith("/")
            and not target.startswith(("/dev/", "/memfd:"))
        ):
            found.append(target)
    return found


@contextmanager
def logging_to(descriptor: int, **settings: str) -> Iterator[Process]:
    """A service that is ready, with a line in its log for each request, whose standard error is this."""
    port = free_port()
    child = subprocess.Popen(
        [sys.executable, "-m", "service"],
        env=environment(device="cpu", port=str(port), processes="2", access_log="true", **settings),
        stdout=subprocess.DEVNULL,
        stderr=descriptor,
        text=True,
    )
    service = Process(child, port=port)

    def takes_work() -> bool:
        assert child.poll() is None
        try:
            return ready(service) == 2
        except OSError:  # it does not listen yet
            return False

    try:
        deadline = time.monotonic() + START_SECONDS
        while not takes_work():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield service
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("fault", ["disk full", "pipe closed", "pipe not read"])
def test_a_log_that_cannot_be_written_holds_nobody_up(fault: str) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 8192)  # full after some lines
    with open("/dev/full", "wb") as full:
        log = full.fileno() if fault == "disk full" else writer
        with logging_to(log, log_format="json" if fault == "pipe not read" else "text") as service:
            os.close(writer)
            if fault == "pipe closed":
                os.close(reader)
            first = workers(service)
            for _ in range(40):
                assert post(service, SMALL)[0] == 200
                assert post(service, SMALL, "heads=3")[0] == 422
            assert post(service, LONG, "return=output")[0] == 200
            assert get(service, "/health/live")[0] == 200
            assert workers(service) == first, "no process has ended"
            if fault == "pipe not read":  # until now
                os.set_blocking(reader, False)
                found = os.read(reader, 1 << 16)

                def told_again() -> bool:
                    nonlocal found
                    assert post(service, SMALL)[0] == 200
                    with suppress(BlockingIOError):  # its line comes a moment after its answer
                        found += os.read(reader, 1 << 16)
                    return b"were lost" in found

                until(told_again)
            service.child.send_signal(signal.SIGTERM)
            assert service.wait(15) == 0
    if fault != "pipe closed":
        os.close(reader)


def test_a_tokenizer_that_breaks_takes_text_away_and_nothing_else(tmp_path: Path) -> None:
    shutil.copytree(Path("exported") / "tiny", tmp_path / "tiny")
    tokenizer = tmp_path / "tiny" / "text" / "tokenizer.json"
    whole, embeddings = tokenizer.read_text(), samples.npy(np.ones((8, 64), np.float32))
    with serving(workers="1", models=str(tmp_path), watch_seconds="0.1") as service:

        def of_text() -> int:
            return httpx.post(
                f"http://127.0.0.1:{service.port}/attention", json={"text": "abc"}, timeout=20
            ).status_code

        assert of_text() == 200
        tokenizer.write_text(whole[: len(whole) // 2])
        until(lambda: of_text() == 422)
        assert post(service, embeddings, "model=tiny")[0] == 200
        assert get(service, "/health/ready")[0] == 200
        assert not json.loads(get(service, "/models")[1])["models"][0]["takes_text"]
        assert any("tokenizer.json cannot be read" in line for line in service.output)
        tokenizer.write_text(whole)
        until(lambda: of_text() == 200)


def test_every_fault_of_the_documentation_is_tested() -> None:
    """The table of docs/operating.md names the test of each."""
    text = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    _, _, after = text.partition("| What breaks |")
    rows = after.partition("\n\n")[0].splitlines()[2:]
    assert len(rows) >= 8
    for row in rows:
        file, _, name = row.rsplit("`", 2)[1].partition("::")
        assert f"def {name}(" in (Path(__file__).parents[2] / "tests" / "service" / file).read_text(), row
