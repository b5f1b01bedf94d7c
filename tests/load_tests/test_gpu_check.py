"""The check of a GPU, on the CPU: every part of it runs, finds what is wrong, and needs no more than it says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from load_tests import gpu_check
from load_tests.gpu_check import BEGIN, END, NO_GPU, SMALLEST, Device
from service.comparisons import metrics as of_pairs
from service.engine.device import CPU, CUDA, Provider, cuda_problem
from service.engine.finiteness import FINITE
from service.engine.session import Sessions
from service.summaries import metrics as of_rows
from service.summaries.layout import Layout

ROOT = Path(__file__).parents[2]
SERVED = gpu_check.encodings()
ENCODINGS = {encoding.name: encoding for encoding in SERVED if encoding.model == "identity"}
ELSEWHERE = ("torch", "fastapi", "starlette", "pydantic", "orjson", "jaxtyping", "prometheus_client", "typer", "rich")


@pytest.fixture(scope="module")
def device() -> Device:
    return Device.host()


class Wrong:
    """Sessions that do to each output what a test tells them."""

    def __init__(self, sessions: Sessions, harm: Any) -> None:
        self._sessions, self._harm = sessions, harm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sessions, name)

    def run(self, *arguments: Any) -> Mapping[str, np.ndarray]:
        return {name: self._harm(name, array) for name, array in self._sessions.run(*arguments).items()}


def wrong(device: Device, harm: Any) -> Device:
    return replace(device, sessions=cast(Sessions, Wrong(device.sessions, harm)))


def test_it_runs_on_the_cpu_and_says_that_this_shows_nothing_about_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "table.md"
    assert gpu_check.main(["--quick", "--device", "cpu", "--out", str(out)]) == 0
    written = out.read_text()
    assert written in capsys.readouterr().out
    assert "nothing about a GPU" in written
    assert "no GPU: the CPU" in written
    for encoding in SERVED:
        assert f"| {encoding.model}.{encoding.name} | " in written
    assert written.count("| yes |") == len(SERVED)
    for bucket in SMALLEST.buckets:
        assert written.count(f"\n| {bucket} | ") == 4


@pytest.mark.skipif(cuda_problem(Provider(CUDA)) is None, reason="this machine has a GPU that works")
def test_without_a_gpu_it_says_so_and_exits_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([]) == NO_GPU == 3
    assert "no GPU to look at: " in capsys.readouterr().err


def test_it_needs_onnxruntime_onnx_numpy_and_this_repository_only() -> None:
    block = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {ELSEWHERE}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from load_tests import gpu_check\n"
        "assert gpu_check.encodings()\n"
    )
    done = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_exported_encoding_is_looked_at() -> None:
    files = {path.stem for path in (ROOT / "exported" / "identity").glob("*.onnx") if "." not in path.stem}
    assert set(ENCODINGS) >= files


@pytest.mark.parametrize("output", ["weights", "scores", "output"])
def test_what_does_not_agree_is_found(device: Device, output: str) -> None:
    def harm(name: str, array: np.ndarray) -> np.ndarray:
        return array * np.float32(1.001) if name == output else array

    found = gpu_check.agreement(wrong(device, harm), ENCODINGS["rope"], SMALLEST)
    assert not found.failed
    assert not found.agrees
    assert found.errors[output] > gpu_check.AGREES
    assert all(error <= gpu_check.AGREES for name, error in found.errors.items() if name != output)


@pytest.mark.parametrize("number", ["summary.entropy", "summary.diagonals", "summary.half_mass_distance", "w1", "kl"])
def test_numbers_of_rows_that_do_not_agree_are_found(device: Device, number: str) -> None:
    def harm(name: str, array: np.ndarray) -> np.ndarray:
        return array * np.float32(1.001) if name == number else array

    found = gpu_check.agreement(wrong(device, harm), ENCODINGS["rope"], SMALLEST)
    assert not found.failed
    assert not found.agrees
    errors = {**found.summaries, **found.comparisons}
    assert [name for name, error in errors.items() if error > gpu_check.AGREES] == [number]
    assert max(found.errors.values()) <= gpu_check.AGREES


def test_a_few_rows_may_be_a_step_off() -> None:
    expected = np.arange(1000.0).reshape(1, 1, 1000)
    found = expected.copy()
    found[..., :10] += 1
    assert gpu_check._rows_error("summary.half_mass_distance", found, expected) == 0
    found[..., 10] += 1
    assert gpu_check._rows_error("summary.half_mass_distance", found, expected) == pytest.approx(0.011)
    assert gpu_check._rows_error("summary.row_sum", found, expected) > gpu_check.AGREES


def test_what_is_infinite_must_be_so_on_both() -> None:
    one = np.array([[[1.0, np.inf]]])
    assert gpu_check._rows_error("kl", one, one.copy()) == 0
    assert gpu_check._rows_error("kl", np.ones_like(one), one) == np.inf


def test_what_is_measured_is_what_is_served_where_no_metrics_are_named() -> None:
    layout = Layout.first(4)
    assert of_rows.outputs_for(of_rows.DEFAULT, layout, masked=True, scored=True).rows == gpu_check.SUMMARY
    assert of_pairs.outputs_for(of_pairs.DEFAULT, layout, scored=True) == gpu_check.COMPARISON


def test_what_a_replayed_graph_gets_wrong_is_found(device: Device) -> None:
    runs = []

    def harm(name: str, array: np.ndarray) -> np.ndarray:
        runs.append(array)
        return runs[(len(runs) - 1) % 4]  # what the first run gave, and whether that was finite

    stale = replace(device, graphs=cast(Sessions, Wrong(device.graphs, harm)))
    found = gpu_check.agreement(stale, ENCODINGS["rope"], SMALLEST)
    assert max(found.errors.values()) <= gpu_check.AGREES
    assert found.replayed is not None
    assert found.replayed > gpu_check.AGREES
    assert not found.agrees


def test_a_run_that_fails_does_not_end_the_measurements_of_the_others(device: Device) -> None:
    def harm(name: str, array: np.ndarray) -> np.ndarray:
        raise RuntimeError("out of memory")

    broken = replace(device, graphs=cast(Sessions, Wrong(device.graphs, harm)))
    speed = gpu_check.measure(broken, ENCODINGS["rope"], 16, SMALLEST)
    assert np.isnan([speed.graph, speed.alone_graph]).all()
    assert np.isfinite([speed.bound, speed.alone, speed.half, speed.plain]).all()
    assert set(speed.failed) == {"RuntimeError: out of memory"}


def test_what_is_not_a_number_does_not_agree(device: Device) -> None:
    found = gpu_check.agreement(
        wrong(device, lambda name, array: array if name == FINITE else np.full_like(array, np.nan)),
        ENCODINGS["t5"],
        SMALLEST,
    )
    assert not found.agrees
    assert found.errors["weights"] == float("inf")


def test_what_the_device_calls_not_finite_is_a_failure(device: Device) -> None:
    flags = wrong(device, lambda name, array: np.full_like(array, np.nan) if name == FINITE else array)
    found = gpu_check.agreement(flags, ENCODINGS["rope"], SMALLEST)
    assert not found.agrees
    assert "not all numbers are finite" in found.failed


def test_a_graph_that_fails_is_named_and_the_others_are_still_looked_at(device: Device) -> None:
    def harm(name: str, array: np.ndarray) -> np.ndarray:
        raise RuntimeError("no kernel image is available")

    found = gpu_check.agreement(wrong(device, harm), ENCODINGS["t5"], SMALLEST)
    assert found.failed == "RuntimeError: no kernel image is available"
    assert not found.agrees


def test_padded_requests_are_compared_with_what_they_are_alone(device: Device) -> None:
    batches: list[tuple[int, ...]] = []

    def harm(name: str, array: np.ndarray) -> np.ndarray:
        if name == "weights":
            batches.append(array.shape)
        return array

    gpu_check.agreement(wrong(device, harm), ENCODINGS["rope"], SMALLEST)
    padded, longer = [(3, 2, 48, 48), (1, 2, 48, 48)], [(1, 2, 256, 256), (1, 2, 256, 256)]
    assert batches == [*padded, *padded, *longer]  # the shorter without and with a summary
    batches.clear()
    gpu_check.agreement(wrong(device, harm), ENCODINGS["rope-dynamic"], SMALLEST)
    padded, longer = ([(1, 2, length, length) for length in some] for some in ((33, 40, 47, 48), (200, 256)))
    assert batches == [*padded, *padded, *longer]


def test_the_nodes_that_a_provider_leaves_to_the_cpu_are_counted() -> None:
    left = gpu_check.placement(ENCODINGS["rope"], Provider(CPU))
    assert left is not None
    assert {"MatMul", "Softmax", "Where"} <= left.keys()


def test_a_page_with_marks_keeps_what_is_around_them(tmp_path: Path) -> None:
    path = tmp_path / "gpu.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    gpu_check.write(path, "new\n")
    assert path.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"


def test_a_page_without_marks_is_written_whole(tmp_path: Path) -> None:
    for text in ("first\n", "second\n"):
        gpu_check.write(tmp_path / "table.md", text)
        assert (tmp_path / "table.md").read_text() == text


def test_the_documentation_has_a_place_for_the_tables() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text()
    assert page.count(BEGIN) == page.count(END) == 1
    assert page.index(BEGIN) < page.index(END)


def test_the_median_is_taken_of_calls_that_are_warm() -> None:
    calls: list[int] = []
    gpu_check.seconds_of(lambda: calls.append(1), 0.0)
    assert len(calls) == 4 + 3
