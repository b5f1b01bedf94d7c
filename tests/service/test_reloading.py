"""Models come and go while the service runs, in all of its processes, and no request is lost."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import psutil  # type: ignore[import-untyped]
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from service.reloading import signature
from tests.service.process import Process, serving

IDENTITY = Path(__file__).parents[2] / "exported" / "identity"
X = {"embeddings": [[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0], [0.5, -1.0, 2.0, 0.0]]}


def put(folder: Path, *encodings: str) -> None:
    """Copies, as a user would, files in place."""
    folder.mkdir(parents=True, exist_ok=True)
    for encoding in encodings:
        for suffix in (".positions.onnx", ".onnx"):
            shutil.copy(IDENTITY / f"{encoding}{suffix}", folder)


def rename(folder: Path, model: str) -> None:
    """Makes the files there those of a model of that name."""
    for path in folder.glob("*.onnx"):
        proto = onnx.load(path)
        for entry in proto.metadata_props:
            entry.value = entry.value.replace('"model": "identity"', f'"model": "{model}"')
            entry.value = entry.value.replace('"model":"identity"', f'"model":"{model}"')
        onnx.save(proto, path)


@pytest.fixture(params=["1", "2"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Process, Path]]:
    put(tmp_path / "identity", "rope", "alibi")
    with serving(processes=request.param, models=str(tmp_path), watch_seconds="0.2", workers="1") as process:
        yield process, tmp_path


def post(process: Process, **query: str) -> httpx.Response:
    """Over a connection of its own, so that any of the processes may answer."""
    return httpx.post(f"http://127.0.0.1:{process.port}/attention", params=query, json=X, timeout=20)


def everywhere(process: Process, holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Waits until it holds in whichever process answers."""
    end, row = time.monotonic() + seconds, 0
    while row < 12:
        row = row + 1 if holds() else 0
        assert time.monotonic() < end, "".join(process.output)
        if not row:
            time.sleep(0.05)


def index(process: Process) -> dict[str, dict[str, str]]:
    answer = httpx.post(f"http://127.0.0.1:{process.port}/v2/repository/index", timeout=20)
    return {entry["name"]: entry for entry in answer.json()}


def test_files_that_come_change_and_go_are_followed(served: tuple[Process, Path]) -> None:
    process, folder = served
    assert post(process, encoding="t5").status_code == 422
    put(folder / "identity", "t5")
    everywhere(process, lambda: post(process, encoding="t5").status_code == 200)

    put(folder / "second", "kerple")
    rename(folder / "second", "second")
    everywhere(process, lambda: post(process, model="second", encoding="kerple").status_code == 200)
    stats = httpx.get(f"http://127.0.0.1:{process.port}/v2/models/second.kerple/stats", timeout=20).json()
    assert stats["model_stats"][0]["inference_count"] >= 12

    (folder / "identity" / "t5.onnx").write_bytes(b"no graph")
    everywhere(process, lambda: post(process, encoding="t5").status_code == 422)
    assert post(process, encoding="rope").status_code == 200
    entry = index(process)["identity.t5"]
    assert entry["state"] == "UNAVAILABLE"
    assert "cannot be read as ONNX" in entry["reason"]

    put(folder / "identity", "t5")
    everywhere(process, lambda: post(process, encoding="t5").status_code == 200)
    shutil.rmtree(folder / "second")
    everywhere(process, lambda: post(process, model="second").status_code == 422)
    listed = httpx.get(f"http://127.0.0.1:{process.port}/models", timeout=20).json()["models"]
    assert [one["name"] for one in listed] == ["identity"]


def test_a_graph_that_fails_its_first_job_is_not_served(served: tuple[Process, Path]) -> None:
    """Its file can be read, and says all that it should."""
    process, folder = served
    put(folder / "identity", "t5")
    everywhere(process, lambda: post(process, encoding="t5").status_code == 200)
    path = folder / "identity" / "t5.onnx"
    proto = onnx.load(path)
    for node in proto.graph.node:
        if node.op_type == "Softmax":
            node.op_type = "NoSuchOperator"
    onnx.save(proto, path)
    everywhere(process, lambda: index(process)["identity.t5"]["state"] == "UNAVAILABLE")
    assert "warm-up failed" in index(process)["identity.t5"]["reason"]
    assert post(process, encoding="t5").status_code == 422
    assert post(process, encoding="rope").status_code == 200
    assert httpx.get(f"http://127.0.0.1:{process.port}/health/ready", timeout=20).status_code == 200


def test_a_client_unloads_and_loads(served: tuple[Process, Path]) -> None:
    process, folder = served
    client = triton.InferenceServerClient(f"127.0.0.1:{process.port}")
    assert "model_repository" in client.get_server_metadata()["extensions"]
    client.unload_model("identity.alibi")
    for _ in range(12):  # it holds in all processes once it is answered
        assert post(process, encoding="alibi").status_code == 422
        assert index(process)["identity.alibi"] == {
            "name": "identity.alibi",
            "version": "1",
            "state": "UNAVAILABLE",
            "reason": "unloaded",
        }
    assert not client.is_model_ready("identity.alibi")
    client.load_model("identity.alibi")
    for _ in range(12):
        assert post(process, encoding="alibi").status_code == 200
    assert client.is_model_ready("identity.alibi")

    client.unload_model("identity")
    assert {entry["state"] for entry in index(process).values()} == {"UNAVAILABLE"}
    client.load_model("identity")
    assert {entry["state"] for entry in index(process).values()} == {"READY"}

    # What is new is there at once, whether or not anybody watches.
    put(folder / "identity", "fire")
    client.load_model("identity.fire")
    assert post(process, encoding="fire").status_code == 200

    with pytest.raises(InferenceServerException, match=r"did you mean identity\.rope"):
        client.load_model("identity.rop")
    with pytest.raises(InferenceServerException, match=r"did you mean identity\.rope"):
        client.unload_model("identity.rop")
    with pytest.raises(InferenceServerException, match="parameter 'config' is not taken"):
        client.load_model("identity.rope", config="{}")
    with pytest.raises(InferenceServerException, match="unload_dependents must be true or false"):
        client.unload_model("identity.rope", unload_dependents="no")
    (folder / "identity" / "fire.positions.onnx").write_bytes(b"no graph")
    with pytest.raises(InferenceServerException, match="cannot be read as ONNX"):
        client.load_model("identity.fire")
    client.close()


def test_no_request_is_lost_while_models_come_and_go(served: tuple[Process, Path]) -> None:
    process, folder = served
    over, statuses, wrong = threading.Event(), [], []

    def ask(body: Any) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{process.port}", timeout=30) as client:
            due = None
            while not over.is_set():
                answer = client.post("/attention?encoding=rope&return=weights", json=body)
                statuses.append(answer.status_code)
                found = np.array(answer.json()["results"][0]["weights"])
                due = found if due is None else due
                if not np.allclose(found, due, atol=1e-6):
                    wrong.append(found)

    numbers = np.random.default_rng(0)
    threads = [
        threading.Thread(target=ask, args=({"embeddings": numbers.normal(size=(4, 8)).tolist()},)) for _ in range(4)
    ]
    for one in threads:
        one.start()
    client = triton.InferenceServerClient(f"127.0.0.1:{process.port}")
    for turn in range(6):
        put(folder / "identity", "rope", "t5")  # a new time of writing, so rope itself is read anew
        client.load_model("identity.rope")
        client.unload_model("identity.alibi")
        (folder / "identity" / "t5.onnx").unlink()
        client.load_model("identity.alibi")
        assert turn < 6
    over.set()
    for one in threads:
        one.join()
    client.close()
    assert set(statuses) == {200}
    assert len(statuses) > 20
    assert wrong == []


def test_a_process_that_is_started_again_serves_what_the_others_do(tmp_path: Path) -> None:
    put(tmp_path / "identity", "rope", "alibi")
    with serving(processes="2", models=str(tmp_path), watch_seconds="0", workers="1") as process:
        client = triton.InferenceServerClient(f"127.0.0.1:{process.port}")
        client.unload_model("identity.alibi")
        for child in psutil.Process(process.child.pid).children():
            child.kill()
            child.wait(10)
        end = time.monotonic() + 30
        while True:
            try:
                ready = httpx.get(f"http://127.0.0.1:{process.port}/health/ready", timeout=5).json()
                if ready["processes"]["ready"] == 2:
                    break
            except httpx.HTTPError:
                pass
            assert time.monotonic() < end
            time.sleep(0.1)
        for _ in range(12):
            assert post(process, encoding="alibi").status_code == 422
            assert post(process, encoding="rope").status_code == 200
        client.load_model("identity.alibi")
        for _ in range(12):
            assert post(process, encoding="alibi").status_code == 200
        client.close()


def test_a_signature_tells_every_change(tmp_path: Path) -> None:
    put(tmp_path / "identity", "rope")
    seen = [signature([tmp_path])]
    put(tmp_path / "identity", "alibi")
    seen.append(signature([tmp_path]))
    (tmp_path / "identity" / "rope.onnx").write_bytes(b"x")
    seen.append(signature([tmp_path]))
    (tmp_path / "identity" / "rope.onnx").unlink()
    seen.append(signature([tmp_path]))
    (tmp_path / "identity" / "text").mkdir()
    (tmp_path / "identity" / "text" / "tokenizer.json").write_text("{}")
    seen.append(signature([tmp_path]))
    assert len(set(seen)) == 5
    assert signature([tmp_path]) == seen[-1]
    assert signature([tmp_path / "nowhere"]) == frozenset()
