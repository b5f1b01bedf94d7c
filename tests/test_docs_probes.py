"""docs/probes.md shows what its own lines print."""

from __future__ import annotations

import contextlib
import io
import re
from itertools import pairwise
from pathlib import Path

from tests.service.process import serving

PAGE = (Path(__file__).parent.parent / "docs" / "probes.md").read_text()
PRECISION = 3e-4
"""Of numbers with four decimals, which another machine may round another way."""


def blocks() -> list[tuple[str, str | None]]:
    """Each program with what is shown to be printed by it."""
    found = [(match[1], match[2]) for match in re.finditer(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)]
    return [
        (code, shown if language == "" else None)
        for (kind, code), (language, shown) in pairwise([*found, ("python", "")])
        if kind == "python"
    ]


def test_the_page_shows_what_its_lines_print() -> None:
    with serving() as service:
        names: dict[str, object] = {}
        for code, shown in blocks():
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(code.replace("127.0.0.1:8000", f"127.0.0.1:{service.port}"), names)
            assert_same(printed.getvalue(), shown or "")


def assert_same(printed: str, shown: str) -> None:
    """Words alike, numbers to the precision that is shown."""
    assert len(printed.split()) == len(shown.split()), printed
    for one, other in zip(printed.split(), shown.split(), strict=True):
        try:
            assert abs(float(one) - float(other)) <= PRECISION, printed
        except ValueError:
            assert one == other, printed
