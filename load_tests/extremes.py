"""The largest requests that a service takes, of every encoding: `python -m load_tests.extremes [ENCODING ...]`.

A service of its own, with the settings that it has unless told otherwise, answers one request after the other: a query
against 32,768 keys, and all queries of 4,096 keys and 8 heads; comparisons of as many tokens as the limit allows.
Prints a Markdown table: the slowest answer and the most memory of each kind of request, and which encodings these were
of. What went wrong or took more than 1.5 GB is listed, and the exit code is 1. `--all` prints every request, `--json`
writes them.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from load_tests.__main__ import served
from load_tests.bench.report import table
from load_tests.bodies import as_npy
from load_tests.server import Started, started_service
from load_tests.watch import Resident

HEADS = 8
KEYS, TOKENS = 32_768, 4_096
WIDTHS = {KEYS: 256, TOKENS: 512}
CELLS = HEADS * TOKENS * TOKENS
"""What one request may compute."""
PAUSE = 0.02
"""Seconds between two looks at the memory."""
MOST = 1500.0
"""MB that all of it has to be answered in."""
UNDEFINED = 422
"""What an encoding that is defined for causal attention only, or whose table has fewer rows, says to the others."""


@dataclass(frozen=True)
class Kind:
    """What is asked, of so many tokens; `others` are compared with, one after the other from the list."""

    name: str
    query: str
    tokens: int = TOKENS
    others: int = 0


def kinds() -> Iterator[Kind]:
    for causal in ("true", "false"):
        for dtype in ("float32", "float16"):
            asked = f"heads={HEADS}&causal={causal}&dtype={dtype}"
            said = f"{'causal, ' if causal == 'true' else ''}{dtype}"
            yield Kind(f"1 x 32,768 weights, scores; {said}", f"{asked}&return=weights,scores&rows=-1", KEYS)
            yield Kind(f"1 x 32,768 summary, top_k=8; {said}", f"{asked}&return=summary,weights&top_k=8&rows=-1", KEYS)
            yield Kind(f"4,096 x 4,096 summary; {said}", f"{asked}&return=summary")
            yield Kind(f"4,096 x 4,096 top_k=8; {said}", f"{asked}&return=weights&top_k=8")
        for others in (1, 2):
            asked = f"heads={HEADS}&causal={causal}&return=comparison,summary"
            tokens = math.isqrt(CELLS // HEADS // (1 + others) // 2) // 64 * 64
            name = f"{tokens:,} x {tokens:,} comparison of {1 + others}{'; causal' if causal == 'true' else ''}"
            yield Kind(name, asked, tokens, others)


@dataclass(frozen=True)
class Answer:
    """`megabytes` is the most that all processes together had meanwhile, `before` what they had."""

    kind: str
    encoding: str
    status: int
    seconds: float
    before: float
    megabytes: float
    said: str


def asked(service: Started, resident: Resident, kind: Kind, encoding: str, path: str, body: bytes) -> Answer:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection(urlsplit(service.address).netloc, timeout=300)
    headers = {"Content-Type": "application/x-npy", "Accept": "application/vnd.safetensors"}
    before, over = resident.megabytes(), threading.Event()
    most = [before]

    def look() -> None:
        while not over.wait(PAUSE):
            most.append(resident.megabytes())

    watch = threading.Thread(target=look)
    watch.start()
    try:
        began = time.monotonic()
        connection.request("POST", path, body=body, headers=headers)
        answer = connection.getresponse()
        content = answer.read()
        seconds = time.monotonic() - began
    finally:
        over.set()
        watch.join()
        connection.close()
    said = "" if answer.status == 200 else str(json.loads(content).get("detail"))
    return Answer(kind.name, encoding, answer.status, round(seconds, 2), before, max(most), said)


def asked_for(address: str, causal: str) -> set[str]:
    """The encodings whose cards have this under `causal`."""
    with urllib.request.urlopen(f"{address}/encodings", timeout=10) as answer:
        return {encoding["id"] for encoding in json.load(answer)["encodings"] if encoding["causal"] == causal}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m load_tests.extremes", description=__doc__)
    parser.add_argument("encodings", nargs="*", metavar="ENCODING", help="all that are served unless named")
    parser.add_argument("--only", default="", help="kinds of requests whose name has this")
    parser.add_argument("--all", action="store_true", help="print every request")
    parser.add_argument("--json", type=Path, help="a file for every request")
    options = parser.parse_args(arguments)
    found: list[Answer] = []
    bodies: dict[int, bytes] = {}
    with started_service(log_level="error") as service:
        resident = Resident(service.pid)
        every = served(service.address)
        causal_only = asked_for(service.address, "required")
        for kind in kinds():
            if options.only not in kind.name:
                continue
            shape = kind.tokens, WIDTHS.get(kind.tokens, WIDTHS[TOKENS])
            if kind.tokens not in bodies:
                bodies[kind.tokens] = as_npy(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))
            for i, encoding in enumerate(every):
                if options.encodings and encoding not in options.encodings:
                    continue
                path = f"/attention?encoding={encoding}&{kind.query}"
                if kind.others:
                    able = [one for one in every if "causal=true" in kind.query or one not in causal_only]
                    others = [able[(i + 1 + j) % len(able)] for j in range(1 + kind.others)]
                    path += "&compare=" + ",".join([one for one in others if one != encoding][: kind.others])
                found.append(asked(service, resident, kind, encoding, path, bodies[kind.tokens]))
                if options.all:
                    one = found[-1]
                    memory = f"{one.before:.0f} -> {one.megabytes:.0f} MB"
                    print(f"{one.kind}: {encoding} {one.status} {one.seconds} s, {memory} {one.said}", flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    print(table(("asked", "answered", "median s", "slowest, s", "most memory, MB"), rows(found)))
    for said in sorted({one.said for one in found if one.status == UNDEFINED}):
        print(f"undefined: {said}")
    bad = [one for one in found if one.status not in (200, UNDEFINED) or one.megabytes > MOST]
    for one in bad:
        print(f"{one.kind}: {one.encoding}: {one.status}, {one.megabytes:,.0f} MB: {one.said}", file=sys.stderr)
    return 1 if bad else 0


def rows(found: list[Answer]) -> Iterator[list[str]]:
    for name in dict.fromkeys(one.kind for one in found):
        asked = [one for one in found if one.kind == name]
        answered = [one for one in asked if one.status == 200]
        if not answered:
            continue
        slowest, most = max(answered, key=lambda one: one.seconds), max(answered, key=lambda one: one.megabytes)
        yield [
            name,
            f"{len(answered)} of {len(asked)}",
            f"{float(np.median([one.seconds for one in answered])):.2f}",
            f"{slowest.seconds:.2f} ({slowest.encoding})",
            f"{most.megabytes:,.0f} ({most.encoding})",
        ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
