"""What a real service writes to its log."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from typing import Any

import httpx
import numpy as np

from tests.service import samples
from tests.service.process import Process, environment, serving


def lines(process: Process) -> list[dict[str, Any]]:
    """Those that are JSON: at the start, the address is told to people."""
    return [json.loads(line) for line in process.output if line.startswith("{")]


def test_each_request_is_a_line_of_json_with_its_id_and_its_times() -> None:
    with serving(log_format="json", access_log="true", workers="1") as process:
        sent = []
        with httpx.Client(base_url=f"http://127.0.0.1:{process.port}", timeout=20) as client:
            body = samples.npy(np.ones((5, 8), np.float32))
            headers = {"content-type": "application/x-npy", "accept": "application/vnd.safetensors"}
            for _ in range(6):  # the later ones are answered straight from the socket
                answer = client.post("/attention?encoding=t5&return=weights", content=body, headers=headers)
                sent.append((answer.headers["x-request-id"], answer.status_code, len(answer.content)))
            own = client.post("/attention", json={}, headers={"x-request-id": "mine"})
            assert own.status_code == 422
            client.get("/nowhere")
        process.child.terminate()
        assert process.wait() == 0
    found = {line["request_id"]: line for line in lines(process) if line["logger"] == "service.requests"}
    for request_id, status, size in sent:
        line = found[request_id]
        assert (line["status"], line["bytes_out"], line["bytes_in"]) == (status, size, len(body))
        assert (line["method"], line["endpoint"], line["encoding"], line["tokens"]) == ("POST", "/attention", "t5", 5)
        assert line["level"] == "info"
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
        stages = sum(
            line.get(f"{stage}_ms", 0) for stage in ("decode", "queue", "batch_assembly", "compute", "serialize")
        )
        assert 0 < stages <= line["milliseconds"] + 0.01
    assert found["mine"]["reason"] == "invalid"
    assert found["mine"]["status"] == 422
    assert any(line["endpoint"] == "other" and line["status"] == 404 for line in found.values())


def test_lines_for_people_say_the_same_and_none_are_written_unless_asked_for() -> None:
    for wanted in ("true", "false"):
        with serving(access_log=wanted, workers="1") as process:
            answer = httpx.get(f"http://127.0.0.1:{process.port}/encodings", timeout=20)
            process.child.terminate()
            assert process.wait() == 0
        assert (answer.headers["x-request-id"] in "".join(process.output).replace("\n", "")) == (wanted == "true")


def test_an_unknown_format_is_refused_by_name() -> None:
    command, variables = [sys.executable, "-m", "service"], environment(log_format="xml")
    found = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode != 0
    assert "ATTENTION_LOG_FORMAT" in found.stderr + found.stdout
