"""What a newcomer meets."""

from __future__ import annotations

import re
import urllib.request

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from service.pictures.colours import Scale
from service.routes.playground import FOLDER
from tests.service.playground.browser import Watched

SHAPE = (21, 21)


def test_a_newcomer_sees_encodings_side_by_side_without_typing(watched: Watched) -> None:
    watched.open()
    page = watched.page
    names = page.locator(".panel h3").all_text_contents()
    assert names == ["none", "rope", "alibi", "sinusoidal"]
    assert len(watched.asked) >= 1
    for name in names:
        assert len(np.unique(watched.cells(name).reshape(-1, 4), axis=0)) > 5
    expect(page.locator(".reading")).to_contain_text("row")
    expect(page.locator("#about-input")).to_contain_text("The nurse told the girl")
    expect(page.locator(".inspected")).to_have_count(4)
    expect(page.locator("#latency")).to_contain_text("compute")
    expect(page.locator(".thumb")).to_have_count(4 * 9)


def test_nothing_comes_from_elsewhere_and_nothing_is_said_on_the_console(watched: Watched) -> None:
    watched.open()
    for tab in ("positions", "pairs", "metrics", "table", "about", "distance"):
        watched.page.locator(f"#tab-{tab}").click()
        expect(watched.page.locator(f"#tabpanel-{tab} > *").first).to_be_visible()
    watched.page.locator("#theme").click()
    watched.page.locator("#tab-positions").click()
    expect(watched.page.locator("#tabpanel-positions .chart").first.locator("path.line")).to_have_count(4)
    watched.rested()
    assert watched.foreign == []
    assert watched.said == []


def test_all_modules_are_loaded_at_once_and_not_one_after_the_other(address: str) -> None:
    page = urllib.request.urlopen(address).read().decode()
    preloaded = set(re.findall(r'rel="modulepreload" href="playground/([\w.]+)"', page))
    modules = {path.name for path in FOLDER.glob("*.js")}
    assert preloaded == modules - {"main.js", "theme.js", "worker.js"}


@pytest.mark.parametrize("path", ["/", "/playground/main.js", "/playground/style.css", "/playground/worker.js"])
def test_the_page_is_served_with_its_policy(address: str, path: str) -> None:
    with urllib.request.urlopen(address + path) as answer:
        headers = answer.headers
    assert headers["Content-Security-Policy"].startswith("default-src 'self'")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-cache"
    again = urllib.request.Request(address + path, headers={"If-None-Match": headers["ETag"]})
    with pytest.raises(urllib.error.HTTPError, match="304"):
        urllib.request.urlopen(again)


def test_the_same_weight_has_the_same_colour_in_every_panel(watched: Watched) -> None:
    """Every cell of two panels has the colour that the service's own scale gives the weight in it."""
    watched.open("#enc=rope,alibi&preset=sentence&h=1")
    page = watched.page
    high = float(page.locator("#vmax").input_value())
    scale = Scale("sequential", 0.0, high)
    for name in ("rope", "alibi"):
        answer = page.evaluate(
            """async (name) => {
              const body = await (await fetch("presets/sentence")).text();
              const headers = { "Content-Type": "application/json" };
              const question = `attention?encoding=${name}&heads=8&return=weights`;
              const answer = await fetch(question, { method: "POST", body, headers });
              return (await answer.json()).results[0].weights[1];
            }""",
            name,
        )
        weights = np.array(answer, np.float32)
        image = watched.cells(name)
        side = image.shape[0] // SHAPE[0]
        middles = image[side // 2 :: side, side // 2 :: side][: SHAPE[0], : SHAPE[1], :3]
        expected = scale.table[scale.entries(weights)]
        # A number on the border of two colours may be rounded to either side of it.
        assert np.abs(middles.astype(int) - expected).max() <= 4
        assert (middles == expected).all(-1).mean() > 0.98


def test_the_theme_changes_the_page_but_no_cell(browser: Browser, address: str) -> None:
    seen = {}
    for theme in ("light", "dark"):
        watched = Watched.new(browser, address, color_scheme=theme)
        watched.open("#enc=rope,alibi&mask=causal")
        background = watched.page.evaluate("getComputedStyle(document.body).backgroundColor")
        images = [watched.cells("rope"), watched.cells("alibi"), watched.pixels(watched.page.locator("canvas.bar"))]
        seen[theme] = (background, images)
        watched.close()
    assert seen["light"][0] != seen["dark"][0]
    for one, other in zip(seen["light"][1], seen["dark"][1], strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("theme", "tabs"), [("light", ("about", "metrics", "table", "positions")), ("dark", ("about", "pairs"))]
)
def test_axe_finds_nothing_serious(browser: Browser, address: str, theme: str, tabs: tuple[str, ...]) -> None:
    watched = Watched.new(browser, address, color_scheme=theme, bypass_csp=True)  # axe is put into the page
    watched.open("#mask=causal&tab=about")
    page = watched.page
    expect(page.locator(".card .formula")).to_have_count(4)
    for tab in tabs:
        page.locator(f"#tab-{tab}").click()
        expect(page.locator(f"#tabpanel-{tab} > *").first).to_be_visible()
        watched.drawn()
        _check(watched)
    page.locator("#add").click()
    expect(page.locator("#picker-list li").first).to_be_visible()
    _check(watched)
    watched.close()


def test_axe_finds_nothing_serious_on_a_telephone(browser: Browser, address: str) -> None:
    watched = Watched.new(browser, address, bypass_csp=True)
    watched.page.set_viewport_size({"width": 360, "height": 740})
    watched.open()
    _check(watched)
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= 360
    watched.close()


def _check(watched: Watched) -> None:
    found = Axe().run(watched.page)
    serious = [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found.response["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
    assert serious == []


@pytest.mark.parametrize("width", [360, 900, 1280, 2560])
def test_the_page_fits_every_width(watched: Watched, width: int) -> None:
    watched.page.set_viewport_size({"width": width, "height": 900})
    watched.open()
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
    box = watched.map("rope").bounding_box()
    assert box is not None
    assert box["width"] >= 160
