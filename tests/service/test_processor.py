"""The cores that the service takes, and the time it takes on them: real processes, and the sessions that they make."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from service.wire import media
from tests.service import samples
from tests.service.process import Process, serving

CORES = sorted(os.sched_getaffinity(0))
HEADERS = {"content-type": media.NPY, "accept": media.SAFETENSORS}
GROUPS = Path("/sys/fs/cgroup")
SMALL = samples.npy(np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32))
LARGE = samples.npy(np.random.default_rng(0).standard_normal((400, 16)).astype(np.float32))
"""Needs a worker."""

several = pytest.mark.skipif(len(CORES) < 2, reason="this process may use one core only")


def test_no_session_makes_threads_of_its_own_or_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime#8313: by default it makes a thread for each core of the machine, and binds it to that core."""
    made: list[Any] = []

    class Recorded(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            made.append(self)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Recorded)
    app = create_app(Settings(device="cpu", workers=1))
    with TestClient(app) as client:
        body = {"embeddings": np.ones((4, 16)).tolist()}
        assert client.post("/attention?compare=t5&causal=true", json=body).status_code == 200
        assert client.get("/encodings/shaw/positions").status_code == 200
        app.state.service.sessions.give_back()
    assert len(made) > 50, "of scores and of positions, of summaries and comparisons, and the one that gives back"
    for session in made:
        options = session.get_session_options()
        assert options.intra_op_num_threads == options.inter_op_num_threads == 1
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def tasks(service: Process) -> list[Path]:
    """The threads of all of its processes."""
    pid = service.child.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [task for one in (str(pid), *children) for task in Path(f"/proc/{one}/task").iterdir()]


def ask(service: Process, body: bytes, times: int = 1, every: float = 0.0) -> None:
    """So many requests on one connection, each so many seconds after the one before."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    due = time.monotonic()
    for _ in range(times):
        due += every
        connection.request("POST", "/attention?heads=4&return=output", body, HEADERS)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
        time.sleep(max(0.0, due - time.monotonic()))
    connection.close()


@contextmanager
def group(quota: float) -> Iterator[Path]:
    """A control group with the time of so many cores, for whoever writes his process id into the file."""
    name = f"attention-test-{os.getpid()}"
    first, second = GROUPS / "cpu" / name, GROUPS / name
    folder = first if (GROUPS / "cpu").is_dir() else second
    try:
        folder.mkdir()
        if folder is first:
            (folder / "cpu.cfs_period_us").write_text("100000")
            (folder / "cpu.cfs_quota_us").write_text(str(int(quota * 100_000)))
        else:
            (folder / "cpu.max").write_text(f"{int(quota * 100_000)} 100000")
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    try:
        yield folder / "cgroup.procs"
    finally:
        deadline = time.monotonic() + 10
        while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        folder.rmdir()


def said(service: Process) -> str:
    return "".join(service.output)


@several
def test_a_process_bound_to_one_core_serves_there_with_one_process() -> None:
    before = f"import os\nos.sched_setaffinity(0, {{{CORES[-1]}}})"
    with serving(processes="0", before=before) as service:
        ask(service, SMALL, 20)
        ask(service, LARGE, 5)
        assert "1 process, 1 worker thread each" in said(service)
        allowed = {
            task: (task / "status").read_text().partition("Cpus_allowed_list:")[2].split()[0] for task in tasks(service)
        }
        assert set(allowed.values()) == {str(CORES[-1])}
        assert "affinity" not in said(service)


@several
def test_a_process_with_the_quota_of_one_core_makes_no_more_processes_or_threads() -> None:
    with group(1.0) as processes:
        before = f"import os\nopen({str(processes)!r}, 'w').write(str(os.getpid()))"
        with serving(processes="0", before=before) as service:
            ask(service, SMALL, 20)
            ask(service, LARGE, 5)
            assert "1 process, 1 worker thread each" in said(service)
            # The event loop, its worker, and those that read bodies and look at folders: none for each session.
            assert len(tasks(service)) < 16


def spent(service: Process) -> float:
    """Seconds of the processor."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks(service)) / 1e9


@pytest.fixture(scope="module")
def service() -> Iterator[Process]:
    with serving(processes="2") as service:
        yield service


def test_a_service_that_nobody_asks_does_nothing(service: Process) -> None:
    """LitServe polled. The metrics are not asked: that takes time."""
    ask(service, LARGE, 5)
    time.sleep(0.5)
    before = spent(service)
    time.sleep(5)
    assert spent(service) - before < 0.01 * 5


@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["on the event loop", "by a worker"])
def test_requests_with_pauses_between_them_cost_what_they_cost_without(service: Process, body: bytes) -> None:
    """Threads that spin while they wait cost ten times as much at 20 requests/s."""
    ask(service, body, 30)
    before = spent(service)
    ask(service, body, 60)
    busy = spent(service) - before
    before = spent(service)
    ask(service, body, 60, every=1 / 20)
    # Caches are cold after each pause, and clocks are slow.
    assert spent(service) - before < 4 * busy + 0.1
