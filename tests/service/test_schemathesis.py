"""The OpenAPI document against the service as it runs: schemathesis makes requests out of the one and sends them to the
other."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.process import serving
from tests.service.test_process import get

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed in this environment"
)

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
CHECKS += "response_schema_conformance,negative_data_rejection,unsupported_method"
LEFT_OUT = "^/v2/(repository/models|systemsharedmemory)/"
"""It would unload what it asks for next; and what is switched off is 501."""


def test_the_service_is_what_its_openapi_document_says(tmp_path: Path) -> None:
    with serving(workers="1", max_body_bytes="4MiB", request_cells="4000000", watch_seconds="0") as service:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{service.port}/openapi.json"),
                *("--checks", CHECKS, "--exclude-path-regex", LEFT_OUT, "--max-examples", "15", "--seed", "1"),
                *("--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--no-color"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
        assert get(service, "/health/ready")[0] == 200
