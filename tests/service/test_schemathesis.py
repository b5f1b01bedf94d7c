"""The OpenAPI document against the service as it runs: schemathesis makes requests out of the one and sends them to the
other. Its schemas allow no members that they do not name, so answers are held to them closely."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.service.process import Process, serving
from tests.service.test_process import get

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    "missing_required_header",
)
"""Not `positive_data_acceptance`: whether heads divide a width, or all rows are as long, no schema says."""
ADMINISTRATION = "^/v2/(repository/models|systemsharedmemory)/"
"""Would unload what others ask for next, and is 501 where no memory is shared."""


def run(service: Process, at: Path, *options: str) -> None:
    """Schemathesis' own report is what a failure shows."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{service.port}/openapi.json"),
            *("--checks", ",".join(CHECKS), "--seed", "1", "--phases", "examples,coverage,fuzzing"),
            *("--continue-on-failure", "--no-color", "--generation-database", "none", *options),
        ],
        cwd=at,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    assert get(service, "/health/ready")[0] == 200


def test_the_service_is_what_its_openapi_document_says(tmp_path: Path) -> None:
    with serving(workers="1", max_body_bytes="4MiB", request_cells="4000000", watch_seconds="0") as service:
        run(service, tmp_path, "--exclude-path-regex", ADMINISTRATION, "--max-examples", "20")


def test_so_are_its_models_and_the_memory_that_it_shares(tmp_path: Path) -> None:
    with serving(workers="1", watch_seconds="0", shared_memory="true") as service:
        run(service, tmp_path, "--include-path-regex", ADMINISTRATION, "--max-examples", "20")
