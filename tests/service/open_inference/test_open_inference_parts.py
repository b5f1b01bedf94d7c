"""Content codings and statistics, each on its own."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.job import Graph, Job, JobResult, Tables
from service.engine.observer import Unobserved
from service.errors import MalformedBody, ModelFailed, PayloadTooLarge, UnsupportedMediaType
from service.routes.open_inference_statistics import Counted, Observers, Refusals, Statistics
from service.wire import open_inference_coding as coding

PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
UNPACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}


@given(st.binary(max_size=500), st.sampled_from(list(PACKERS)))
def test_what_others_packed_is_unpacked_and_they_unpack_what_is_packed_here(content: bytes, name: str) -> None:
    packed = PACKERS[name](content)
    assert coding.inflate(packed, name, len(content)) == content
    assert UNPACKERS[name](coding.deflate([content[:100], memoryview(content)[100:]], name)) == content


@pytest.mark.parametrize("name", PACKERS)
def test_no_more_than_the_limit_is_ever_unpacked(name: str) -> None:
    packed = PACKERS[name](bytes(10_000))
    assert len(coding.inflate(packed, name, 10_000)) == 10_000
    with pytest.raises(PayloadTooLarge):
        coding.inflate(packed, name, 9_999)


@given(st.data())
def test_a_packed_body_that_is_cut_off_or_followed_by_more_is_refused(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(PACKERS)))
    packed = PACKERS[name](b"some numbers" * 20)
    with pytest.raises(MalformedBody):
        coding.inflate(packed[: data.draw(st.integers(0, len(packed) - 1))], name, 1000)
    with pytest.raises(MalformedBody, match="follow"):
        coding.inflate(packed + b"x", name, 1000)
    with pytest.raises(MalformedBody):
        coding.inflate(b"plain", name, 1000)


@pytest.mark.parametrize(
    ("sent", "expected"), [(None, None), ("", None), ("Identity", None), ("GZIP", "gzip"), ("x-gzip", "gzip")]
)
def test_the_coding_of_a_body_has_a_name(sent: str | None, expected: str | None) -> None:
    assert coding.coding(sent) == expected


@pytest.mark.parametrize("sent", ["br", "zstd", "gzip, deflate"])
def test_a_coding_that_is_not_read_is_refused(sent: str) -> None:
    with pytest.raises(UnsupportedMediaType, match="gzip"):
        coding.coding(sent)


@pytest.mark.parametrize(
    ("accepted", "json", "binary"),
    [
        (None, None, None),
        ("", None, None),
        ("*", None, None),
        ("identity", None, None),
        ("gzip", "gzip", "gzip"),
        ("deflate, identity", "deflate", "deflate"),
        ("gzip;q=0", None, None),
        ("gzip;q=wrong", None, None),
        ("gzip, deflate", "gzip", None),
        ("gzip;q=0.5, deflate", "deflate", None),
        ("gzip, deflate, br, zstd", "gzip", None),
        ("br", None, None),
    ],
)
def test_answers_are_packed_as_the_client_prefers_and_tensors_only_if_it_means_it(
    accepted: str | None, json: str | None, binary: str | None
) -> None:
    assert coding.negotiate(accepted, binary=False) == json
    assert coding.negotiate(accepted, binary=True) == binary


def job(name: str = "identity.rope") -> Job:
    array = np.zeros((1, 2, 1, 2), np.float32)
    return Job(Graph(name, Path("x"), "d"), Tables("t", {}), ("weights",), array, array, None, 4)


class Engine:
    """Answers what it is told to."""

    def __init__(self, *results: JobResult | Exception) -> None:
        self.results = results

    async def run(self, jobs: Sequence[Job], deadline: float | None = None) -> list[JobResult]:
        for result in self.results:
            if isinstance(result, Exception):
                raise result
        return [result for result in self.results if isinstance(result, JobResult)]


def test_a_request_is_divided_into_stages_that_sum_to_it() -> None:
    statistics = Statistics(wall_clock=lambda: 1234.5)
    ticks = iter([10.0, 11.0])
    engine = Engine(JobResult({}, queue=0.25, batch_assembly=0.125, compute=0.5))
    asyncio.run(Counted(engine, statistics, lambda: next(ticks)).run([job()]))
    report = statistics.report("identity.rope", "1")
    assert report["inference_count"] == 1
    assert report["last_inference"] == 1_234_500
    assert {name: one["ns"] for name, one in report["inference_stats"].items() if one["count"]} == {
        "success": 1_000_000_000,
        "queue": 250_000_000,
        "compute_input": 125_000_000,
        "compute_infer": 500_000_000,
        "compute_output": 125_000_000,
    }


def test_of_several_encodings_at_once_each_is_counted_without_its_wait_for_the_others() -> None:
    statistics = Statistics()
    ticks = iter([0.0, 1.0])
    engine = Engine(JobResult({}, compute=0.25), JobResult({}, queue=0.25, compute=0.5))
    asyncio.run(Counted(engine, statistics, lambda: next(ticks)).run([job("a"), job("b")]))
    assert statistics.report("a", "1")["inference_stats"]["success"]["ns"] == 500_000_000
    assert statistics.report("b", "1")["inference_stats"]["success"]["ns"] == 1_000_000_000


def test_a_failure_is_counted_once_wherever_it_happens() -> None:
    statistics = Statistics()
    counted = Counted(Engine(ModelFailed("no")), statistics)

    async def ask(reach: bool) -> None:
        with Refusals(statistics, "identity.rope"):
            if reach:
                await counted.run([job()])
            raise MalformedBody("no")

    for i, reach in enumerate((True, False, True, False)):
        with pytest.raises((ModelFailed, MalformedBody)):
            asyncio.run(ask(reach))
        assert statistics.report("identity.rope", "1")["inference_stats"]["fail"]["count"] == i + 1
    assert statistics.report("identity.rope", "1")["inference_count"] == 0


def test_executions_are_counted_by_their_size_and_forgotten_when_told_to() -> None:
    statistics = Statistics()
    observers = Observers(Unobserved(), statistics, iter(itertools.count(0.0, 1.0)).__next__)
    for jobs in (1, 4, 4):
        observers.batch_started("m", jobs, "idle")
        observers.batch_finished("m", jobs, 0.75, "CPUExecutionProvider", "idle")
    observers.batch_started("m", 2, "idle")
    observers.batch_failed("m", 2, "idle")
    report = statistics.report("m", "1")
    assert report["execution_count"] == 3
    assert [(one["batch_size"], one["compute_infer"]) for one in report["batch_stats"]] == [
        (1, {"count": 1, "ns": 750_000_000}),
        (4, {"count": 2, "ns": 1_500_000_000}),
    ]
    assert report["batch_stats"][0]["compute_input"] == {"count": 1, "ns": 250_000_000}
    statistics.clear()
    assert statistics.report("m", "1")["execution_count"] == 0
