from __future__ import annotations

import math
from pathlib import Path

import pytest

from service.engine.cores import quota


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.mark.parametrize(("text", "cores"), [("max 100000\n", math.inf), ("150000 100000\n", 1.5), ("5000 10000", 0.5)])
def test_a_group_of_the_second_version_says_its_quota(tmp_path: Path, text: str, cores: float) -> None:
    write(tmp_path / "pod" / "one", cpu__max=text)
    assert quota("0::/pod/one\n", tmp_path) == cores


@pytest.mark.parametrize(("most", "cores"), [("-1", math.inf), ("400000", 4.0)])
@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
def test_a_group_of_the_first_version_says_its_quota(tmp_path: Path, most: str, cores: float, controllers: str) -> None:
    write(tmp_path / controllers / "pod", cpu__cfs_quota_us=most, cpu__cfs_period_us="100000\n")
    assert quota(f"9:memory:/else\n4:{controllers}:/pod\n0::/\n", tmp_path) == cores


def test_a_group_has_no_more_than_those_around_it(tmp_path: Path) -> None:
    write(tmp_path / "a", cpu__max="200000 100000")
    write(tmp_path / "a" / "b", cpu__max="max 100000")
    write(tmp_path / "a" / "b" / "c", cpu__max="800000 100000")
    assert quota("0::/a/b/c\n", tmp_path) == 2


@pytest.mark.parametrize("groups", ["0::/docker/4711\n", "4:cpu,cpuacct:/docker/4711\n", "0::/../..\n"])
def test_in_a_container_its_own_group_is_what_is_mounted(tmp_path: Path, groups: str) -> None:
    folder = tmp_path / "cpu,cpuacct" if "cpuacct" in groups else tmp_path
    write(folder, cpu__max="300000 100000")
    assert quota(groups, tmp_path) == 3


@pytest.mark.parametrize("text", ["", "lots", "max", "100000 0 0"])
def test_what_cannot_be_read_limits_nothing(tmp_path: Path, text: str) -> None:
    write(tmp_path, cpu__max=text)
    assert quota("0::/\n", tmp_path) == math.inf
    assert quota("", tmp_path) == math.inf
