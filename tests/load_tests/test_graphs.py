from __future__ import annotations

import json
from pathlib import Path

import pytest

from load_tests.graphs import ASKED, NONE, Bench, main


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("load_tests.graphs.ENOUGH", 0.0)
    monkeypatch.setattr("load_tests.graphs.SHORT", 0.0)


def test_jobs_are_those_of_the_encoding_alone_and_are_run_again() -> None:
    bench = Bench(heads=2, head_dim=4)
    jobs = bench.jobs("alibi", "default", 8, causal=True)
    assert {job.graph.name for job in jobs} == {"identity.alibi"}
    assert all(job.masked and "summary.row_sum" in job.outputs for job in jobs)
    mine, others = bench.pair(jobs, bench.jobs(NONE, "default", 8, causal=True))
    assert mine > 0
    assert others > 0


@pytest.mark.parametrize("asked", ASKED)
def test_operators_are_those_that_run(asked: str) -> None:
    bench = Bench(heads=2, head_dim=4)
    spent = bench.profile(bench.jobs("shaw", asked, 8, causal=False), runs=2)
    kinds = {name.split()[0] for name in spent}
    assert "GatherElements" in kinds
    assert ("Softmax" in kinds) is (asked != "terms")


def test_encodings_that_are_causal_only_are_left_out_elsewhere() -> None:
    bench = Bench(heads=2, head_dim=4)
    assert "cope" in bench.served(causal=True)
    assert "cope" not in bench.served(causal=False)


def test_ratios_are_written_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "ratios.json"
    asked = ["alibi", "--outputs", "weights", "--tokens", "4", "--heads", "2", "--head-dim", "4", "--operators", "1"]
    assert main([*asked, "--out", str(out)]) == 0
    assert list(json.loads(out.read_text())) == ["weights 4 none alibi", "weights 4 causal alibi"]
    assert "us" in capsys.readouterr().out
