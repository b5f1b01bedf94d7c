"""The clients with their tensors in shared memory, against a service that runs."""

from __future__ import annotations

import http.client

import pytest

from load_tests.bench import report, shared
from load_tests.bench.records import Bare, BareRow
from load_tests.bench.wrk import RunFailed
from tests.service.process import Process, serving


def requests(process: Process) -> int:
    """That were answered, as the service counts them."""
    connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=30)
    connection.request("GET", "/v2/models/identity.rope/stats")
    text = connection.getresponse().read().decode()
    connection.close()
    return int(text.partition('"inference_count":')[2].partition(",")[0])


@pytest.mark.parametrize(("tokens", "sequences"), [(16, 1), (300, 1), (16, 3)])
def test_what_is_counted_was_answered_and_is_right(tokens: int, sequences: int) -> None:
    """The clients compare the weights with the formula, and fail where they are wrong."""
    with serving(shared_memory="true") as process:
        rate = shared.load(f"http://127.0.0.1:{process.port}", tokens, 4, 0.5, sequences)
        assert 0 < rate / sequences * 0.5 <= requests(process) * 1.5


def test_a_service_that_shares_nothing_fails_the_run() -> None:
    with serving() as process, pytest.raises(RunFailed, match="501"):
        shared.load(f"http://127.0.0.1:{process.port}", 16, 2, 0.2)


def test_the_page_has_their_ratio_to_the_bare_model_where_it_was_measured() -> None:
    when = {"date": "2026-01-02 03:04", "commit": "abc1234", "busy": 0.25, "seconds": 12.0}
    row = BareRow(
        tokens=128,
        megabytes=1.05,
        service=[50.0, 90.0, 70.0],
        bare=[100.0, 100.0, 140.0],
        sending=[200.0, 200.0, 200.0],
        others=[0.0, 0.0, 0.0],
    )
    found = Bare.model_validate({**when, "rows": [row], "connections": 8, "heads": 8, "width": 256})
    assert "shared memory" not in report.bare_section(found)
    row = row.model_copy(update={"shared": [60.0, 80.0, 70.0], "shared_others": [0.1, 0.2, 0.3]})
    found = Bare.model_validate({**when, "rows": [row], "connections": 8, "heads": 8, "width": 256})
    (line,) = [line for line in report.bare_section(found).splitlines() if "0.50 to 0.80" in line]
    assert line == "| 128 | 1 | 70.0 | 60.0 to 80.0 | 0.60 | 0.50 to 0.80 | 0.86 | 20% |"
    more = {"together": 8, "shared_together": [90.0, 90.0, 70.0], "together_others": [0.0, 0.0, 0.0]}
    found = Bare.model_validate({**found.model_dump(), "rows": [row.model_copy(update=more)]})
    (line,) = [line for line in report.bare_section(found).splitlines() if "0.50 to 0.90" in line]
    assert line == "| 128 | 8 | 90.0 | 70.0 to 90.0 | 0.90 | 0.50 to 0.90 | 1.29 | 0% |"
