"""`python -m load_tests [SCENARIO]`: start a service, put load on it, stop it. Exit code 0 only if nothing failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from load_tests.server import running_service

LOCUSTFILE = Path(__file__).with_name("locustfile.py")

# Arguments of locust, by scenario. Every run is bounded in time and in users.
SCENARIOS = {
    "smoke": ("--users", "10", "--spawn-rate", "10", "--run-time", "20s"),
}


def main(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "smoke"
    if name not in SCENARIOS or len(arguments) > 1:
        print(f"unknown scenario {' '.join(arguments)!r}; known: {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    with running_service() as address:
        command = [sys.executable, "-m", "locust", "--locustfile", str(LOCUSTFILE), "--host", address, "--headless"]
        options = ["--only-summary", "--loglevel", "WARNING", "--stop-timeout", "10", *SCENARIOS[name]]
        return subprocess.run([*command, *options], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
