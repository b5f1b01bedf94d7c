"""What breaks below the service, in real processes: each outcome is the one that docs/operating.md states."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.service import counts, samples
from tests.service.process import serving
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
        assert ready(service) == 2
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


def test_every_fault_of_the_documentation_is_tested() -> None:
    """The table of docs/operating.md names the test of each."""
    text = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    _, _, after = text.partition("| What breaks |")
    rows = after.partition("\n\n")[0].splitlines()[2:]
    assert len(rows) >= 8
    for row in rows:
        file, _, name = row.rsplit("`", 2)[1].partition("::")
        assert f"def {name}(" in (Path(__file__).parents[2] / "tests" / "service" / file).read_text(), row
