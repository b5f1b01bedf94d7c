"""docs/lessons.md names tests that there are, and says what makes each fail."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "lessons.md").read_text()


def rows() -> list[list[str]]:
    """The cells of each row of its tables."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_lesson_names_a_test_that_there_is_and_what_makes_it_fail() -> None:
    heading = ["What went wrong elsewhere", "What this service does", "Test", "What makes it fail"]
    found = [row for row in rows() if row != heading]
    assert len(found) >= 40
    for row in found:
        assert len(row) == len(heading), row
        assert all(row), row
        named = re.fullmatch(r"`([\w/]+\.py)::(\w+)`", row[2])
        assert named is not None, row
        file, name = named.groups()
        text = (ROOT / "tests" / "service" / file).read_text()
        assert re.search(rf"^(def|class) {name}\b", text, re.MULTILINE), row


def test_tests_name_no_other_lessons_than_the_page() -> None:
    """So whoever reads of one in a test finds the rest there."""
    thread = re.compile(
        r"\b(?:infinity|ray|LitServe|vllm|MLServer|BentoML|TEI|triton|fastapi|sentence-transformers|onnxruntime)#\d+"
    )
    told = set(thread.findall(PAGE))
    for path in sorted((ROOT / "tests").rglob("*.py")):
        assert set(thread.findall(path.read_text())) <= told, path


def test_other_pages_lead_there() -> None:
    for page in ("docs/architecture.md", "README.md"):
        assert "lessons.md" in (ROOT / page).read_text(), page
