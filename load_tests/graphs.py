"""`python -m load_tests.graphs`: what a run of each encoding takes beside one of no encoding, and which operators take
it.

Everything is as in the service on a CPU: its requests, its jobs (a large one in blocks of rows), its sessions. Only
runs are timed, in processor time of the thread, so that a machine which others use gives the same figures. Encodings
and the one without are run in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnxruntime

from service.catalogue import Catalogue
from service.engine.assembly import assemble
from service.engine.device import quiet_options
from service.engine.job import Job, JobResult
from service.engine.permuting import WIDEST
from service.engine.session import Sessions
from service.records import AttentionInput, AttentionOptions, Timings
from service.scoring import Scoring
from service.settings import EXPORTED
from service.tables import TableCache

NONE = "none"
ASKED = {
    "weights": AttentionOptions(returns=("weights",)),
    "scores": AttentionOptions(returns=("weights", "scores")),
    "summary": AttentionOptions(returns=("summary",)),
    "default": AttentionOptions(returns=None),
    "terms": AttentionOptions(returns=("terms",)),
    "top_k": AttentionOptions(returns=("weights", "scores"), top_k=8),
}
"""Requests by a name: of a matrix, of its numbers, of what it is the sum of."""
ENOUGH = 0.15
"""Seconds of runs of each of the two, in all rounds."""
MODEL = "identity"


@dataclass(slots=True)
class Recorder:
    """Runs jobs where they are asked for, as the service's engine does, and keeps them."""

    sessions: Sessions
    jobs: list[Job] = field(default_factory=list)

    async def run(self, jobs: Sequence[Job], deadline: float | None = None) -> list[JobResult]:
        self.jobs += jobs
        return [JobResult(self.sessions.run(*_arguments(job))) for job in jobs]


def _arguments(job: Job):
    return job.graph, job.outputs, job.masked, assemble([job]), job.switches


class Bench:
    """The service's scoring, without a service."""

    def __init__(self, heads: int, head_dim: int, seed: int = 0) -> None:
        self.heads, self.head_dim = heads, head_dim
        self.sessions = Sessions("cpu")
        self.catalogue = Catalogue.read([EXPORTED])
        self.encodings = sorted(self.catalogue.models[MODEL].encodings)
        self._seed = seed
        self._narrow = head_dim <= WIDEST

    def jobs(self, encoding: str, asked: str, tokens: int, causal: bool) -> list[Job]:
        """What the service runs for such a request, once what it keeps is kept; of its own graph only."""
        x = np.random.default_rng(self._seed).standard_normal((tokens, self.heads * self.head_dim), dtype=np.float32)
        recorder = Recorder(self.sessions)
        scoring = Scoring(self.catalogue, recorder, TableCache(self.sessions, 1 << 30))
        options = replace(ASKED[asked], model=MODEL, encoding=encoding, heads=self.heads, causal=causal)
        asyncio.run(scoring.score(AttentionInput(embeddings=x), options, Timings()))
        return [job for job in recorder.jobs if job.graph.name == f"{MODEL}.{encoding}"]

    def once(self, jobs: Sequence[Job]) -> float:
        """Seconds of the processor for runs of all of these."""
        spent = 0.0
        for job in jobs:
            session = self.sessions.session(job.graph, job.outputs, job.masked, job.switches, self._narrow)
            feeds = assemble([job])
            began = time.thread_time()
            session.run(job.outputs, feeds)
            spent += time.thread_time() - began
        return spent

    def pair(self, jobs: Sequence[Job], plain: Sequence[Job]) -> tuple[float, float]:
        """Medians of both, in turns."""
        times: tuple[list[float], list[float]] = ([], [])
        count = max(1, int(0.002 / max(1e-6, self.once(plain))))
        self.once(jobs)
        while len(times[0]) < 5 or sum(times[1]) * count < ENOUGH:
            for found, some in zip(times, (jobs, plain), strict=True):
                found.append(sum(self.once(some) for _ in range(count)) / count)
        return float(np.median(times[0])), float(np.median(times[1]))

    def profile(self, jobs: Sequence[Job], runs: int) -> Counter[str]:
        """Microseconds of each operator in one run of all these, by name, kind and shape of what it gives."""
        spent: Counter[str] = Counter()
        for job in jobs:
            settings = job.graph, job.outputs, job.masked, job.switches
            found = self.sessions.model(*settings, self._narrow) or self.sessions.model(*settings, False)
            assert found is not None
            model, _ = found
            options = quiet_options(1)
            options.enable_profiling = True
            with tempfile.TemporaryDirectory() as folder:
                options.profile_file_prefix = str(Path(folder) / "profile")
                session = onnxruntime.InferenceSession(
                    model.SerializeToString(), options, providers=["CPUExecutionProvider"]
                )
                feeds = assemble([job])
                fed = {value.name: feeds[value.name] for value in session.get_inputs()}
                for _ in range(runs + 1):
                    session.run(job.outputs, fed)
                events = json.loads(Path(session.end_profiling()).read_text())
            found: dict[str, list[float]] = {}
            for event in events:
                if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                    a = event["args"]
                    shape = [next(iter(s.values())) for s in a.get("output_type_shape", [])]
                    found.setdefault(
                        f"{a['op_name']:<18} {event['name'].removesuffix('_kernel_time')[:40]:<40} {shape[:1]}", []
                    ).append(event["dur"])
            for name, durations in found.items():
                spent[name] += float(np.median(durations))
        return spent


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m load_tests.graphs", description=__doc__)
    parser.add_argument("encodings", nargs="*", help="all unless named")
    parser.add_argument("--outputs", nargs="+", choices=ASKED, default=["weights", "default"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[32, 128, 512])
    parser.add_argument("--mask", nargs="+", choices=("none", "causal"), default=["none", "causal"])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="the N costliest operators of each")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    bench = Bench(asked.heads, asked.head_dim)
    table: dict[str, float] = {}
    for outputs in asked.outputs:
        for tokens in asked.tokens:
            for causal in (mask == "causal" for mask in asked.mask):
                plain = bench.jobs(NONE, outputs, tokens, causal)
                for encoding in asked.encodings or bench.encodings:
                    try:
                        jobs = bench.jobs(encoding, outputs, tokens, causal)
                    except Exception as error:
                        if "causal" in str(error):
                            continue
                        raise
                    mine, others = bench.pair(jobs, plain)
                    key = f"{outputs} {tokens} {'causal' if causal else 'full'} {encoding}"
                    table[key] = mine / others
                    print(
                        f"{key:<45} {mine / others:6.2f}   {mine * 1e3:9.3f} ms  none {others * 1e3:9.3f} ms",
                        flush=True,
                    )
                    if asked.profile:
                        spent = bench.profile(jobs, 7)
                        total = sum(spent.values())
                        for name, duration in spent.most_common(asked.profile):
                            print(f"    {duration:10.0f} us {duration / total:6.1%}  {name}")
    if asked.json:
        asked.json.write_text(json.dumps(table, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
