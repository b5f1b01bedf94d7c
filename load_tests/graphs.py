"""`python -m load_tests.graphs`: what a run of each encoding takes beside one of no encoding, and which operators take
it.

Everything is as in the service on a CPU: its requests, its jobs (a large one in blocks of rows), its sessions. Only
runs are timed, in processor time of the thread, so that a machine which others use gives the same figures. Encodings
and the one without are run in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
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
from service.engine.device import CPU, quiet_options
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
"""Seconds of runs of no encoding, in all rounds."""
SHORT = 0.002
"""Seconds that one turn takes at the least."""
KERNEL = "_kernel_time"
"""How onnxruntime's profile ends the names of operators' own time."""
MODEL = "identity"


@dataclass(slots=True)
class Recorder:
    """Runs jobs where they are asked for, as the service's engine does, and keeps them."""

    sessions: Sessions
    jobs: list[Job] = field(default_factory=list)

    async def run(self, jobs: Sequence[Job], deadline: float | None = None) -> list[JobResult]:
        self.jobs += jobs
        return [
            JobResult(self.sessions.run(job.graph, job.outputs, job.masked, assemble([job]), job.switches))
            for job in jobs
        ]


class Bench:
    """The service's scoring, without a service."""

    def __init__(self, heads: int, head_dim: int, seed: int = 0) -> None:
        self.heads, self.head_dim = heads, head_dim
        self.sessions = Sessions("cpu")
        self.catalogue = Catalogue.read([EXPORTED])
        self._seed = seed
        self._narrow = head_dim <= WIDEST

    def served(self, causal: bool) -> list[str]:
        """The encodings that may be asked for under this mask."""
        encodings = self.catalogue.models[MODEL].encodings
        return sorted(name for name, one in encodings.items() if causal or one.causal != "required")

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
        count = max(1, int(SHORT / max(1e-6, self.once(plain))))
        self.once(jobs)
        while len(times[0]) < 5 or sum(times[1]) * count < ENOUGH:
            for found, some in zip(times, (jobs, plain), strict=True):
                found.append(sum(self.once(some) for _ in range(count)) / count)
        return float(np.median(times[0])), float(np.median(times[1]))

    def profile(self, jobs: Sequence[Job], runs: int = 9) -> Counter[str]:
        """Microseconds of each operator in one run of all these, by its kind, name and the shape of what it gives."""
        spent: Counter[str] = Counter()
        for job in jobs:
            settings = job.graph, job.outputs, job.masked, job.switches
            found = self.sessions.model(*settings, self._narrow) or self.sessions.model(*settings, False)
            assert found is not None
            for name, durations in _durations(found[0].SerializeToString(), job, runs).items():
                spent[name] += round(np.median(durations))
        return spent


def _durations(model: bytes, job: Job, runs: int) -> dict[str, list[float]]:
    options = quiet_options(1)
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(model, options, providers=[CPU])
        feeds = assemble([job])
        fed = {value.name: feeds[value.name] for value in session.get_inputs()}
        for _ in range(runs):
            session.run(job.outputs, fed)
        events = json.loads(Path(session.end_profiling()).read_text())
    found: dict[str, list[float]] = {}
    for event in events:
        name = event["name"]
        if event.get("cat") == "Node" and name.endswith(KERNEL):
            about = event["args"]
            shapes = [next(iter(one.values())) for one in about.get("output_type_shape", ())]
            key = f"{about['op_name']:<18} {name.removesuffix(KERNEL):<44} {shapes[0] if shapes else ''}"
            found.setdefault(key, []).append(event["dur"])
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m load_tests.graphs", description=__doc__)
    parser.add_argument("encodings", nargs="*", help="all unless named")
    parser.add_argument("--outputs", nargs="+", choices=ASKED, default=["weights", "default"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[32, 128, 512])
    parser.add_argument("--mask", nargs="+", choices=("none", "causal"), default=["none", "causal"])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--operators", type=int, default=0, metavar="N", help="tell the N costliest operators of each")
    parser.add_argument("--out", type=Path, help="a JSON file for the ratios")
    asked = parser.parse_args(arguments)
    bench = Bench(asked.heads, asked.head_dim)
    ratios: dict[str, float] = {}
    print(f"{'outputs tokens mask encoding':<46} {'ratio':>6} {'ms':>10} {'none, ms':>10}")
    for outputs, tokens, mask in itertools.product(asked.outputs, asked.tokens, asked.mask):
        plain = bench.jobs(NONE, outputs, tokens, mask == "causal")
        for encoding in asked.encodings or bench.served(mask == "causal"):
            jobs = bench.jobs(encoding, outputs, tokens, mask == "causal")
            mine, others = bench.pair(jobs, plain)
            key = f"{outputs} {tokens} {mask} {encoding}"
            ratios[key] = round(mine / others, 3)
            print(f"{key:<46} {mine / others:6.2f} {mine * 1e3:10.3f} {others * 1e3:10.3f}", flush=True)
            if asked.operators:
                spent = bench.profile(jobs)
                for name, duration in spent.most_common(asked.operators):
                    print(f"    {duration:8} us {duration / spent.total():6.1%}  {name}")
    if asked.out:
        asked.out.write_text(json.dumps(ratios, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
