"""Regions of one process and of several, and memory that goes while it is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest

from service.errors import InvalidInput, NotFound, UnknownName
from service.routes.open_inference_regions import is_local
from service.shared_memory.lending import Lending
from service.shared_memory.regions import Regions
from service.wire.open_inference_places import Place


@pytest.fixture
def memory() -> Iterator[Path]:
    """An object of three pages."""
    path = Path(f"/dev/shm/attention-test-{os.getpid()}")
    path.write_bytes(bytes(12288))
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def regions(tmp_path: Path, memory: Path) -> Regions:
    regions = Regions(tmp_path)
    regions.register("one", f"/{memory.name}", 0, 12288)
    return regions


def test_what_is_registered_is_known_in_every_process_that_has_the_folder(
    regions: Regions, tmp_path: Path, memory: Path
) -> None:
    other = Regions(tmp_path)
    assert other.all() == regions.all()
    first, second = regions.mapping("one", ""), other.mapping("one", "")
    first.view(8, 4, "")[:] = b"text"
    assert bytes(second.view(8, 4, "")) == b"text"
    other.unregister("one")
    assert not regions.holds(first)
    with pytest.raises(InvalidInput, match="none is registered"):
        regions.mapping("one", "/embeddings")
    other.register("one", memory.name, 4096, 4096)
    assert regions.mapping("one", "") is not first
    assert regions.mapping("one", "").region == other.get("one")
    with pytest.raises(InvalidInput, match="already"):
        regions.register("one", memory.name, 0, 1)
    with pytest.raises(UnknownName, match="one"):
        regions.mapping("on", "")
    regions.clear()
    with pytest.raises(NotFound):
        other.get("one")


def test_of_many_who_register_one_name_one_succeeds(tmp_path: Path, memory: Path) -> None:
    folders = [Regions(tmp_path) for _ in range(8)]
    refusals: list[str] = []

    def register(regions: Regions, offset: int) -> None:
        try:
            regions.register("same", memory.name, offset, 8)
        except InvalidInput as error:
            refusals.append(error.detail)

    threads = [threading.Thread(target=register, args=(one, 8 * i)) for i, one in enumerate(folders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refusals) == 7
    assert len({one.get("same") for one in folders}) == 1


def test_what_is_unregistered_stays_for_those_who_use_it_and_goes_with_them(regions: Regions, memory: Path) -> None:
    def mapped() -> int:
        return sum(memory.name in one.path for one in psutil.Process().memory_maps(grouped=False))

    view = np.frombuffer(regions.mapping("one", "").view(0, 4096, ""), np.uint8)
    files = psutil.Process().num_fds()
    regions.unregister("one")
    memory.unlink()
    assert not view.any()
    assert mapped() == 1
    del view
    assert mapped() == 0
    assert psutil.Process().num_fds() == files - 1


def test_a_sweep_lets_go_of_what_another_process_has_unregistered(regions: Regions, tmp_path: Path) -> None:
    files = psutil.Process().num_fds()
    Regions(tmp_path).unregister("one")
    regions.sweep()
    assert psutil.Process().num_fds() == files - 1


def test_memory_that_goes_reads_as_nothing_and_is_noticed(regions: Regions, memory: Path) -> None:
    mapping = regions.mapping("one", "")
    array = np.frombuffer(mapping.view(0, 12288, ""), np.uint8)
    array[:] = 7
    os.truncate(memory, 4096)
    with pytest.raises(InvalidInput, match="has 4096 now"):
        mapping.view(0, 1, "")
    before = mapping.watched.lost
    assert (array[:4096] == 7).all()
    assert not array[4096:].any()
    assert (before, mapping.watched.lost) == (False, True)
    array[:] = 9
    assert (array == 9).all()
    assert memory.read_bytes() == bytes([9] * 4096)
    os.truncate(memory, 12288)
    with pytest.raises(InvalidInput, match="unregister the region"):
        mapping.check()


def test_memory_that_goes_under_many_threads_harms_none(regions: Regions, memory: Path) -> None:
    array = np.frombuffer(regions.mapping("one", "").view(0, 12288, ""), np.float32)
    over = threading.Event()
    sums: list[float] = []

    def add() -> None:
        while not over.is_set():
            sums.append(float(np.add.reduce(array)))
            array[:] = 1.0

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for size in (8192, 4096, 0):
        os.truncate(memory, size)
    while len(sums) < 1000:
        pass
    over.set()
    for thread in threads:
        thread.join()
    assert max(sums) <= 3072


ELSEWHERE = """
import mmap, os, sys
from service.shared_memory.faults import faults
faults()
fd = os.open(sys.argv[1], os.O_RDWR)
os.truncate(sys.argv[1], 4096)
other = mmap.mmap(fd, 4096)
os.truncate(sys.argv[1], 0)
print("still here", flush=True)
other[0]
print("never", flush=True)
"""


def test_every_other_fault_ends_the_process_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    ended = subprocess.run([sys.executable, "-c", ELSEWHERE, str(path)], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGBUS
    assert ended.stdout == "still here\n"


def lend(regions: Regions, *steps: Callable[[Lending], object]) -> str:
    """What the last step is refused with."""
    lending = Lending(regions)
    for step in steps[:-1]:
        step(lending)
    with pytest.raises(InvalidInput) as raised:
        steps[-1](lending)
    return raised.value.detail


def test_what_is_written_overlaps_with_nothing_else_of_the_request(regions: Regions) -> None:
    def reads(start: int, end: int) -> Callable[[Lending], object]:
        return lambda lending: lending.read(Place("one", start, end - start), 4, "/a")

    def writes(start: int, end: int) -> Callable[[Lending], object]:
        return lambda lending: lending.write(Place("one", start, end - start), end - start, 4, "/b")

    lending = Lending(regions)
    for step in (reads(0, 8), reads(4, 12), writes(12, 16), writes(16, 20), reads(20, 20), reads(8, 12)):
        step(lending)
    assert len(lending.mappings) == 1
    assert "bytes 8 to 16" in lend(regions, reads(0, 12), writes(8, 16))
    assert "overlap" in lend(regions, writes(0, 100), writes(40, 44))
    assert "overlap" in lend(regions, writes(40, 44), reads(0, 100))


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:192.0.2.1", False),
        ("192.0.2.1", False),
        ("172.17.0.1", False),
        ("0.0.0.0", False),
        ("fe80::1", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_only_the_loopback_interface_is_local(host: str, local: bool) -> None:
    assert is_local(host) is local
