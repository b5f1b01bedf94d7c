"""`python -m load_tests [SCENARIO]`: start a service, put load on it, stop it, say what was found.

Exit code 0: every check passed. 1: one failed. 3: the run is invalid, which is said by name, and nothing is known of
the service's speed; counts and answers were right.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from load_tests import verdict
from load_tests.bench.machine import commit
from load_tests.markdown import written
from load_tests.metrics import Metrics
from load_tests.scenarios import SCENARIOS, Scenario, chosen
from load_tests.server import Started, started_service
from load_tests.tied import tied
from load_tests.watch import Watch, cores, slope, spent, within

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
RESULTS = Path(__file__).resolve().parent.parent / "results"
NICE = 5
"""The generator goes before the service: on one machine it would else measure its own waiting for a core."""
PATIENCE = 60.0
"""Seconds beyond what a scenario lasts, for its last answers."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m load_tests", description=__doc__)
    parser.add_argument("scenario", nargs="?", default="smoke", choices=SCENARIOS, metavar="SCENARIO")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long its open steps last all together")
    parser.add_argument(
        "--capacity", type=float, default=0.0, help="answers a second to go by, in place of those found"
    )
    parser.add_argument("--seed", type=int, default=0, help="of every random choice")
    parser.add_argument("--out", type=Path, help="a folder for report.md and summary.json")
    parser.epilog = "; ".join(f"{name}: {scenario.about}" for name, scenario in SCENARIOS.items())
    asked = parser.parse_args(arguments)
    if asked.seconds < 0 or (asked.seconds and SCENARIOS[asked.scenario].open_seconds == 0):
        parser.error("--seconds is above 0, and for scenarios that have an open loop")
    scenario = chosen(asked.scenario, asked.seconds)
    out = asked.out or RESULTS / scenario.name
    out.mkdir(parents=True, exist_ok=True)
    # Told to end, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))

    print(f"{scenario.name}: {scenario.about}; up to {scenario.seconds:.0f} s; seed {asked.seed}", flush=True)
    # An idle connection that is closed as its next request is sent would be neither the service's fault nor counted.
    with started_service(log_level="warning", nice=NICE, keep_alive_seconds="3600") as service:
        summary = ran(scenario, service, asked.seconds, asked.seed, asked.capacity, out)
    if summary is None:
        return 1
    summary["arguments"] = arguments
    found = verdict.checks(summary)
    summary["invalid"] = verdict.invalid(summary["parts"])
    summary["findings"] = verdict.findings(summary)
    summary["checks"] = [asdict(check) for check in found]
    report = written(summary, found)
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    (out / "report.md").write_text(report)
    print(report, flush=True)
    print(f"written: {out / 'report.md'}, {out / 'summary.json'}")
    return verdict.exit_code(found, bool(summary["invalid"]), scenario.speed_decides)


def ran(
    scenario: Scenario, service: Started, seconds: float, seed: int, capacity: float, out: Path
) -> dict[str, Any] | None:
    """All that was found in one run; None where the generator did not come to its end."""
    encodings = served(service.address)
    generated = out / "generated.json"
    generated.unlink(missing_ok=True)
    variables = {
        "LOAD_SCENARIO": scenario.name,
        "LOAD_SECONDS": str(seconds),
        "LOAD_SEED": str(seed),
        "LOAD_CAPACITY": str(capacity),
        "LOAD_FOUND": str(generated),
        "LOAD_ENCODINGS": ",".join(encodings),
    }
    command = [sys.executable, "-m", "locust", "--locustfile", str(LOCUSTFILE), "--host", service.address]
    options = ["--headless", "--only-summary", "--loglevel", "WARNING", "--json-file", str(out / "locust")]
    before = Metrics.read(service.address)
    generator = subprocess.Popen(tied([*command, *options]), env=os.environ | variables)
    watch = Watch(service.address, service.pid, generator.pid)
    files = {"before": watch.open_files()}
    watch.start()
    try:
        code = generator.wait(scenario.seconds + PATIENCE)
    except subprocess.TimeoutExpired:
        code = -signal.SIGKILL
    finally:
        generator.kill()
        generator.wait()
        watch.end()
    left_behind = still_under_way(service.address)
    files["after"] = watch.open_files()
    delta = Metrics.read(service.address) - before
    if code or not generated.exists():
        print(f"the generator ended with exit code {code}", file=sys.stderr)
        return None
    found = json.loads(generated.read_text())
    sent: Counter[str] = Counter()
    for part in found["parts"]:
        sent.update(part["statuses"])
        part |= of_the_service(watch, part["began"], part["began"] + part["seconds"])
    # Memory after it has settled, which a short run never does.
    settled = [part for part in found["parts"] if part["judged"] and part["name"] != "settling"]
    opened = [part["began"] for part in found["parts"] if part["rate"] is not None]
    during = within(watch.samples, settled[0]["began"], settled[-1]["began"] + settled[-1]["seconds"])
    return {
        "scenario": scenario.name,
        "about": scenario.about,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "seed": seed,
        "encodings": len(encodings),
        "providers": sorted(delta.by("attention_session_info", "provider")),
        **found,
        "sent": dict(sorted(sent.items())),
        "told": dict(sorted(delta.statuses().items())),
        "left_behind": left_behind,
        "service": {
            **delta.figures(),
            "resident_mb_per_minute": slope(during),
            "resident_mb": {"first": _mb(during[0]), "last": _mb(during[-1])} if during else None,
            "open_files": files,
            "open_cpu_seconds": spent(watch.samples, min(opened, default=math.inf)),
        },
    }


def _mb(sample: Any) -> float:
    return float(round(sample.resident_bytes / 1e6, 1))


def of_the_service(watch: Watch, began: float, ended: float) -> dict[str, Any]:
    """Processor time and batches of one part; None where it was too short to tell."""
    used = cores(within(watch.samples, began, ended))
    scrapes = [metrics for at, metrics in watch.scrapes if began <= at <= ended]
    figures = (scrapes[-1] - scrapes[0]).figures() if len(scrapes) > 1 else {}
    return {
        "service_cores": used and used[0],
        "generator_cores": used and used[1],
        "batches": figures.get("batches"),
        "jobs_per_batch": figures.get("jobs_per_batch"),
        "stage_means_ms": figures.get("stage_means_ms", {}),
    }


def still_under_way(address: str, patience: float = 30.0) -> float:
    """Requests and jobs that the service still has some time after the last one was sent."""
    deadline = time.monotonic() + patience
    while True:
        now = Metrics.read(address)
        left = now.total("attention_queue_requests") + now.total("attention_inflight_requests", endpoint="/attention")
        if left == 0 or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def served(address: str) -> list[str]:
    """The encodings that are served, RoPE first: it is asked for most."""
    with urllib.request.urlopen(f"{address}/encodings", timeout=10) as answer:
        listed = [encoding["id"] for encoding in json.load(answer)["encodings"]]
    return sorted(listed, key=lambda name: name != "rope")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
