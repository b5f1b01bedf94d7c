"""`python -m load_tests [SCENARIO]`: start a service, put load on it, stop it. Exit code 0 only if nothing failed."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from load_tests import overload
from load_tests.server import running_service

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
RESULTS = Path(__file__).resolve().parent.parent / "results"

# Arguments of locust, by scenario. Every run is bounded in time and in users.
SCENARIOS = {
    "smoke": ("--users", "10", "--spawn-rate", "10", "--run-time", "20s"),
}


def main(arguments: list[str]) -> int:
    scenario = arguments[0] if arguments else "smoke"
    if scenario == "overload" and len(arguments) == 1:
        return overload.main()
    if scenario not in SCENARIOS or len(arguments) > 1:
        known = ", ".join((*SCENARIOS, "overload"))
        print(f"unknown scenario {' '.join(arguments)!r}; known: {known}", file=sys.stderr)
        return 2
    with running_service(log_level="warning") as address:
        print(f"{scenario}: load on {address}, {' '.join(SCENARIOS[scenario])}", flush=True)
        command = [sys.executable, "-m", "locust", "--locustfile", str(LOCUSTFILE), "--host", address, "--headless"]
        # With a file for its figures locust prints no tables of its own.
        options = ["--only-summary", "--loglevel", "WARNING", "--json-file", str(RESULTS / scenario)]
        code = subprocess.run(
            [*command, *options, "--stop-timeout", "10", *SCENARIOS[scenario]], check=False
        ).returncode
        sent, counted = requests_sent(RESULTS / f"{scenario}.json"), requests_counted(address)
    if sent != counted:
        print(f"the clients sent {sent} requests to /attention, the service counted {counted}", file=sys.stderr)
        return 1
    return code


def requests_sent(results: Path) -> int:
    """How many requests the clients of a run sent to /attention."""
    return sum(entry["num_requests"] for entry in json.loads(results.read_text()) if "/attention" in entry["name"])


def requests_counted(address: str) -> int:
    """How many requests to /attention the service says it has had."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        samples = [sample for family in families for sample in family.samples]
    requests = (sample for sample in samples if sample.name == "attention_requests_total")
    return round(sum(sample.value for sample in requests if sample.labels["endpoint"] == "/attention"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
