"""What can be taken away: pictures, numbers, commands."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Download, expect

from service.pictures.colours import VIRIDIS
from tests.service.playground.browser import Watched


def press(watched: Watched, button: str) -> Download:
    with watched.page.expect_download() as coming:
        watched.page.locator(button).click()
    return coming.value


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_picture_has_the_screens_cells_with_title_axes_and_legend(watched: Watched, size: int) -> None:
    watched.open("#enc=none,rope&mask=causal")
    page = watched.page
    screen = watched.cells("rope")[..., :3]
    page.locator("#export").click()
    page.locator("#export-size").select_option(str(size))
    image = np.asarray(Image.open(press(watched, "#export-png").path()).convert("RGB"))
    expect(page.locator("#export-said")).to_have_text(f"The picture has {image.shape[1]} × {image.shape[0]} pixels.")
    # Every colour of a cell on the screen is in the picture, as a block of one colour of a cell's size.
    side = screen.shape[0] // 21
    for query, key in ((0, 0), (5, 5), (14, 4), (20, 20)):
        colour = screen[query * side + side // 2, key * side + side // 2]
        assert (image == colour).all(-1).sum() > 60 * size**2
    # Title above, legend below: its bar runs through the table, left to right.
    top = image[: 50 * size]
    assert (top.min(-1) < 100).any()
    bars = [row for row in image[-80 * size :] if _in_order(row)]
    assert len(bars) >= 8 * size


def _in_order(row: np.ndarray) -> bool:
    """Whether the colours of viridis stand in it one after the other."""
    place = 0
    for colour in row.tolist():
        while place < 256 and colour != VIRIDIS[place].tolist() and place % 16:
            place += 1
        if place < 256 and colour == VIRIDIS[place].tolist():
            place += 1
    return place >= 250


def test_csv_and_npz_hold_what_the_service_answers(watched: Watched) -> None:
    watched.open("#enc=rope,alibi&h=2&preset=repeat&n=12&d=16&heads=4&mask=causal")
    watched.page.locator("#export").click()
    archive = np.load(press(watched, "#export-npz").path())
    weights, scores = archive["alibi/weights"], archive["alibi/scores"]
    assert weights.shape == (4, 12, 12)
    with Path(press(watched, "#export-csv").path()).open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 2 * 12 * 12
    for row in rows:
        if row["encoding"] == "alibi":
            query, key = int(row["query"]), int(row["key"])
            assert float(row["weight"]) == pytest.approx(weights[2, query, key], abs=1e-7)
            assert float(row["score"]) == pytest.approx(scores[2, query, key], abs=1e-5)
            assert row["visible"] == ("1" if key <= query else "0")
            assert row["query_token"] == f"t{query % 6}"


def test_the_commands_that_are_copied_work(watched: Watched, tmp_path: Path) -> None:
    watched.open("#enc=rope,alibi&preset=needle&n=16&heads=4&rope.theta=500&q=15&k=4")
    page = watched.page
    page.locator("#export").click()
    page.locator("#copy-curl").click()
    text = page.locator("#export-text").input_value()
    answer = json.loads(subprocess.run(["bash", "-c", text], capture_output=True, check=True, timeout=60).stdout)
    assert [one["name"] for one in answer["results"]] == ["rope", "alibi"]
    assert answer["results"][0]["parameters"]["theta"] == 500
    shown = page.evaluate("document.querySelector('.panel .readout strong').textContent")
    query, key = int(watched.fragment()["q"]), int(watched.fragment()["k"])
    assert 100 * answer["results"][0]["weights"][0][query][key] == pytest.approx(float(shown.rstrip("% ")), rel=0.01)
    page.locator("#copy-python").click()
    code = page.locator("#export-text").input_value()
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60, text=True).stdout
    assert re.findall(r"^(\w+) \(4, 16, 16\)", output, re.MULTILINE) == ["rope", "alibi"]


def test_commands_for_own_data_read_the_file_that_is_offered(watched: Watched, tmp_path: Path) -> None:
    watched.open("#enc=rope,alibi")
    page = watched.page
    watched.paste("a 1 0 2 1\nb 0 1 1 3\nc 1 1 0 0")
    expect(page.locator("#about-input")).to_contain_text("3 × 4")
    watched.drawn()
    page.locator("#export").click()
    press(watched, "#export-input").save_as(tmp_path / "input.safetensors")
    page.locator("#copy-curl").click()
    text = page.locator("#export-text").input_value()
    done = subprocess.run(["bash", "-c", text], capture_output=True, check=True, timeout=60, cwd=tmp_path)
    assert json.loads(done.stdout)["shape"]["keys"] == 3
    page.locator("#copy-python").click()
    code = page.locator("#export-text").input_value()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=tmp_path)
    page.locator("#copy-link").click()
    expect(page.locator("#export-said")).to_contain_text("your data is not in it")
    settings = json.loads(Path(press(watched, "#export-settings").path()).read_text())
    assert len(settings["input"]["sha256"]) == 12


def test_a_table_that_is_too_long_is_refused_with_the_limit(watched: Watched) -> None:
    watched.open("#enc=rope,alibi&preset=random&n=800&heads=1")
    watched.page.locator("#export").click()
    watched.page.locator("#export-csv").click()
    expect(watched.page.locator("#export-said")).to_contain_text("1,280,000 lines; the limit is 1,000,000")
