"""This service and its peers: how each is started, and the settings that each is tried with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from load_tests.bench import job
from load_tests.bench.environments import CACHE, python_of
from load_tests.bench.job import Format, Post
from load_tests.bench.processes import Server, running
from load_tests.server import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
PEERS = Path(__file__).with_name("peers")
MODEL = CACHE / "model"
LOGS = CACHE / "logs"
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Setting:
    """How a server is set up. `batch` and `wait_ms` mean what each peer's documentation calls them."""

    label: str
    batch: int = 0
    wait_ms: float = 0.0
    workers: int = CORES
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """A server in the comparison. `settings`: the first is the documentation's, the rest are tried as well."""

    name: str
    package: str
    command: tuple[str, ...]
    settings: tuple[Setting, ...]
    variables: dict[str, str] = field(default_factory=dict)
    both: bool = False
    """One server answers both formats."""
    batch_axis: bool = False
    """Its JSON has a batch axis."""

    @property
    def ours(self) -> bool:
        return not self.package

    @property
    def python(self) -> str:
        return sys.executable if self.ours else str(python_of(self.package))

    def post(self, format: Format) -> Post:
        return job.to_service(format) if self.ours else job.to_peer(format, batched=self.batch_axis)

    @contextmanager
    def running(self, setting: Setting, format: Format) -> Iterator[Server]:
        """Raises StartFailed."""
        port = free_port()
        variables = {
            **self.variables,
            **setting.variables,
            "ATTENTION_HOST": "127.0.0.1",
            "ATTENTION_PORT": str(port),
            "ATTENTION_LOG_LEVEL": "warning",
            "BENCH_FOLDER": str(MODEL),
            "BENCH_PORT": str(port),
            "BENCH_FORMAT": format,
            "BENCH_WORKERS": str(setting.workers),
            "BENCH_BATCH": str(setting.batch),
            "BENCH_WAIT_MS": f"{setting.wait_ms:g}",
            "OMP_NUM_THREADS": "1",
        }
        command = [part.format(python=self.python, service=format.capitalize(), port=port) for part in self.command]
        log = LOGS / f"{self.package or 'service'}-{format}.log"
        folder = ROOT if self.ours else PEERS
        with running(command, variables, log, f"http://127.0.0.1:{port}", self.post(format), folder) as server:
            yield server


SERVICE = Contender(
    name="this service",
    package="",
    command=("{python}", "-m", "service"),
    settings=(Setting("defaults"),),
    both=True,
)

MOSEC = Contender(
    name="mosec",
    package="mosec",
    command=("{python}", "serve_mosec.py"),
    settings=(
        Setting("batch 16, wait 10 ms", 16, 10),
        Setting("batch 16, wait 1 ms", 16, 1),
        Setting("batch 32, wait 1 ms", 32, 1),
        Setting("batch 16, wait 1 ms, 1 worker", 16, 1, workers=1),
        Setting("no batching", 1, 1),
    ),
)

LITSERVE = Contender(
    name="LitServe",
    package="litserve",
    command=("{python}", "serve_litserve.py"),
    settings=(
        Setting("batch 16, timeout 10 ms", 16, 10),
        Setting("batch 16, timeout 1 ms", 16, 1),
        Setting("batch 16, timeout 0", 16, 0),
        Setting("no batching", 1, 0),
    ),
    variables={"LITSERVE_DISABLE_VERSION_CHECK": "1"},
)

BENTOML = Contender(
    name="BentoML",
    package="bentoml",
    command=(
        "{python}",
        "-m",
        "bentoml",
        "serve",
        "serve_bentoml:{service}",
        "--port",
        "{port}",
        "--host",
        "127.0.0.1",
    ),
    settings=(
        Setting("defaults: batch 100, latency 60 s", 100, 60_000),
        Setting("batch 16, latency 1 s", 16, 1_000),
    ),
    variables={"BENTOML_DO_NOT_TRACK": "True", "BENTOML_HOME": str(CACHE / "bentoml-home")},
    batch_axis=True,
)

THROUGHPUT = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0"}
HAPROXY = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1"}

RAY = Contender(
    name="Ray Serve",
    package="ray",
    command=("{python}", "serve_ray.py"),
    settings=(
        Setting("batch 10, wait 10 ms", 10, 10),
        Setting("batch 16, wait 1 ms, throughput-optimised behind HAProxy", 16, 1, variables=THROUGHPUT | HAPROXY),
    ),
    both=True,
    variables={"RAY_USAGE_STATS_ENABLED": "0", "RAY_SERVE_LOG_TO_STDERR": "0", "RAY_DEDUP_LOGS": "0"},
)

PEER_LIST = (MOSEC, LITSERVE, BENTOML, RAY)
