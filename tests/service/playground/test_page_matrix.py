"""Looking at a matrix: crosshair, zoom, keys, scales."""

from __future__ import annotations

import csv
import json
import re
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import Float64
from playwright.sync_api import Browser, Locator, expect
from transformers.models.t5.modeling_t5 import T5Attention

from service.pictures.colours import HATCH, MASKED, NAN, SIGNED, WHITE, Scale
from tests.service.playground.browser import Watched

SHAPE = (21, 21)
COUNT_PAINTS = """
window.paints = 0;
const put = CanvasRenderingContext2D.prototype.putImageData;
CanvasRenderingContext2D.prototype.putImageData = function (...given) {
  if (this.canvas.className === "cells") window.paints++;
  return put.apply(this, given);
};
"""


def test_the_crosshair_stands_in_every_panel_and_hovering_paints_no_cell_and_moves_nothing(watched: Watched) -> None:
    watched.page.add_init_script(COUNT_PAINTS)
    watched.open()
    page = watched.page
    before = [panel.bounding_box() for panel in page.locator(".panel").all()]
    painted = page.evaluate("window.paints")
    box = watched.map("none").bounding_box()
    assert box is not None
    for step in range(50):
        query, key = step % 21, (3 * step) % 21
        page.mouse.move(
            box["x"] + (key + 0.5) * box["width"] / 21,
            box["y"] + (query + 0.5) * box["height"] / 21,
        )
    expect(page.locator(".part.query strong")).to_have_text("had (7)")
    expect(page.locator(".part.key strong")).to_have_text("the (0)")
    readouts = page.locator(".readout")
    expect(readouts).to_have_count(4)
    for readout in readouts.all():
        expect(readout).to_contain_text("rank")
    for panel in page.locator(".panel").all():
        overlay = watched.pixels(panel.locator("canvas.overlay"))
        assert overlay[..., 3].any()
    assert page.evaluate("window.paints") == painted
    after = [panel.bounding_box() for panel in page.locator(".panel").all()]
    assert after == before


def test_a_click_keeps_the_cell_and_escape_frees_it(watched: Watched) -> None:
    watched.open()
    page = watched.page
    page.mouse.click(*watched.point("rope", 6, 4, SHAPE))
    expect(page.locator(".part.query strong")).to_have_text("she (6)")
    page.mouse.move(*watched.point("alibi", 10, 12, SHAPE))
    watched.rested()
    expect(page.locator(".part.query strong")).to_have_text("she (6)")
    assert (watched.fragment()["q"], watched.fragment()["k"]) == ("6", "4")
    page.keyboard.press("Escape")
    page.mouse.move(*watched.point("alibi", 10, 11, SHAPE))
    expect(page.locator(".part.query strong")).to_have_text("key (10)")
    expect(page.locator(".part.key strong")).to_have_text(", (11)")


def test_a_drag_zooms_every_panel_and_a_double_click_shows_all(watched: Watched) -> None:
    watched.open()
    page = watched.page
    whole = watched.cells("alibi")
    box = watched.map("alibi").bounding_box()
    page.mouse.move(*watched.point("none", 2, 3, SHAPE))
    page.mouse.down()
    page.mouse.move(*watched.point("none", 5, 5, SHAPE), steps=3)
    page.mouse.move(*watched.point("none", 9, 8, SHAPE), steps=3)
    page.mouse.up()
    expect(page.locator(".unzoom").first).to_be_visible()
    assert watched.fragment()["z"] == "2,3,10,9"
    watched.drawn()
    zoomed = watched.cells("alibi")
    # The middle of the window's first cell has the colour that cell (2, 3) has in the whole.
    cell = whole.shape[0] // 21
    assert tuple(zoomed[4, 4]) == tuple(whole[2 * cell + cell // 2, 3 * cell + cell // 2])
    assert watched.map("alibi").bounding_box() == box
    page.mouse.dblclick(*watched.point("none", 5, 5, SHAPE))
    expect(page.locator(".unzoom").first).to_be_hidden()
    watched.drawn()
    assert np.array_equal(watched.cells("alibi"), whole)


def test_the_wheel_zooms_only_with_control(watched: Watched) -> None:
    watched.open("#enc=none,rope&q=10&k=10")
    page = watched.page
    page.mouse.move(*watched.point("none", 10, 10, SHAPE))
    wheel(watched)
    assert "z" not in watched.fragment()
    page.mouse.move(*watched.point("none", 10, 10, SHAPE))
    page.keyboard.down("Control")
    wheel(watched)
    page.keyboard.up("Control")
    expect(page.locator(".unzoom").first).to_be_visible()
    q0, k0, q1, k1 = map(int, watched.fragment()["z"].split(","))
    assert q0 <= 10 < q1 < 22
    assert k0 <= 10 < k1
    assert q1 - q0 < 21


def wheel(watched: Watched) -> None:
    """Turns it up, until the page has been told and has scrolled."""
    page = watched.page
    page.evaluate("void (window.turned = new Promise((done) => addEventListener('wheel', () => done())))")
    page.mouse.wheel(0, -200)
    page.evaluate("window.turned")
    page.evaluate(
        """async () => {
          for (let before = NaN; before !== scrollY; ) {
            before = scrollY;
            await new Promise((done) => setTimeout(() => requestAnimationFrame(done), 50));
          }
        }"""
    )
    watched.settled()


def test_the_keyboard_does_what_the_mouse_does(watched: Watched) -> None:
    watched.open("#q=6&k=4")
    page = watched.page
    watched.map("rope").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".part.query strong")).to_have_text("had (7)")
    expect(page.locator(".part.key strong")).to_have_text("that (5)")
    expect(page.locator("#live")).to_contain_text("rope: query 7 'had', key 5 'that'")
    expect(page.locator("#live")).to_contain_text("of 21")
    page.keyboard.press("Shift+ArrowDown")
    expect(page.locator(".part.query strong")).to_have_text("had (17)")
    page.keyboard.press("End")
    expect(page.locator(".part.key strong")).to_have_text(". (20)")
    page.keyboard.press("Home")
    expect(page.locator(".part.key strong")).to_have_text("the (0)")
    page.keyboard.press("PageUp")
    expect(page.locator(".part.query strong")).to_have_text("nurse (1)")
    page.keyboard.press("]")
    expect(page.locator("#head")).to_have_value("1")
    page.keyboard.press("[")
    page.keyboard.press("[")
    expect(page.locator("#head")).to_have_value("mean")
    page.keyboard.press("c")
    expect(page.locator("#scale")).to_have_value("row")
    page.keyboard.press("d")
    expect(page.locator('input[name="view"][value="diff"]')).to_be_checked()
    page.keyboard.press("4")
    expect(page.locator(".panel")).to_have_count(3)
    page.keyboard.press("4")
    expect(page.locator(".panel")).to_have_count(4)
    page.keyboard.press("?")
    expect(page.locator("#help-dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help-dialog")).to_be_hidden()
    # Outside of a matrix single keys do nothing.
    page.locator("#tab-distance").focus()
    expect(page.locator("#tab-distance")).to_be_focused()
    page.keyboard.press("c")
    watched.settled()
    expect(page.locator("#scale")).to_have_value("row")


def test_space_shows_the_reference_for_as_long_as_it_is_held(watched: Watched) -> None:
    watched.open("#enc=rope,alibi")
    rope, alibi = watched.cells("rope"), watched.cells("alibi")
    assert not np.array_equal(rope, alibi)
    watched.map("alibi").focus()
    watched.page.keyboard.down("Space")
    expect(watched.panel("alibi").locator(".tag")).to_have_text("shows rope")
    assert np.array_equal(watched.cells("alibi"), rope)
    watched.page.keyboard.up("Space")
    expect(watched.panel("alibi").locator(".tag")).to_be_hidden()
    assert np.array_equal(watched.cells("alibi"), alibi)


def test_a_difference_is_white_at_zero_and_the_reference_stays_what_it_is(watched: Watched) -> None:
    watched.open("#enc=rope,rope@same,alibi")
    reference = watched.cells("rope")
    watched.page.locator('input[name="view"][value="diff"]').check()
    expect(watched.page.locator(".scale figcaption").first).to_have_text("weight less rope's")
    watched.drawn()
    assert np.array_equal(watched.cells("rope"), reference)
    same = watched.cells("rope@same")
    assert (same[..., :3] == WHITE).all()
    other = watched.cells("alibi")[..., :3].reshape(-1, 3)
    table = {tuple(colour) for colour in SIGNED.tolist()}
    assert {tuple(colour) for colour in np.unique(other, axis=0).tolist()} <= table


@pytest.mark.parametrize(
    ("scale", "unit", "first", "last"),
    [
        ("row", "weight / largest weight of its row", "0", "1"),
        ("log", "attention weight, logarithmic", "1e-6", "1"),
        ("lift", "weight / uniform weight", "÷", "×"),
        ("logits", "score less its row's mean", "−", ""),
    ],
)
def test_the_legend_says_what_the_scale_is_of(watched: Watched, scale: str, unit: str, first: str, last: str) -> None:
    watched.open(f"#enc=rope,alibi&mask=causal&scale={scale}")
    expect(watched.page.locator(".scale figcaption")).to_have_text(unit)
    labels = watched.page.locator(".bar-labels span").all_text_contents()
    assert labels[0].startswith(first)
    assert last in labels[-1]
    expect(watched.page.locator(".marks")).to_contain_text("masked")


def test_a_pinned_scale_gives_a_weight_the_same_colour_for_another_input(watched: Watched) -> None:
    scale = Scale("sequential", 0.0, 0.5)
    for preset in ("constant", "repeat"):
        watched.open(f"#enc=none&preset={preset}&n=2&d=8&heads=1&vmax=0.5")
        assert float(watched.page.locator("#vmax").input_value()) == 0.5
        expect(watched.page.locator("#pin")).to_have_attribute("aria-pressed", "true")
        # Two equal tokens: every weight is 1/2, whatever the vectors are.
        assert tuple(watched.cells("none")[3, 3, :3]) == scale.colour(0.5)


def test_masked_and_broken_cells_are_told_apart_and_disturb_no_other(watched: Watched) -> None:
    """Embeddings so large that scores overflow: the row of one token is not a number, the others are."""
    watched.open("#enc=none&mask=causal")
    _own(watched, "1, 0\n0, 1\n3e38, 3e38\n1, 1")
    page = watched.page
    expect(page.locator(".notice")).to_contain_text("not finite")
    expect(page.locator(".marks")).to_contain_text("not a number")
    image = watched.cells("none")
    side = image.shape[0] // 4
    inside = image[side // 3 :: side, side // 2 :: side, :3]  # beside the cross
    assert tuple(inside[2, 0]) == NAN
    assert tuple(inside[0, 0]) not in (NAN, MASKED)
    masked = image[0:side, 2 * side : 3 * side, :3].reshape(-1, 3)
    assert {tuple(colour) for colour in masked.tolist()} == {MASKED, HATCH}


def test_terms_of_the_cell_are_asked_for_by_row_and_sum_to_the_score(watched: Watched) -> None:
    watched.open("#q=14&k=4&enc=rope,alibi")
    page = watched.page
    expect(page.locator('.inspected[data-name="rope"] .terms li')).to_have_count(4)
    asked = [path for path in watched.asked if "terms" in path]
    assert len(asked) == 1
    assert "rows=14" in asked[0]
    assert "head=0" in asked[0]

    def numbers(root: Locator) -> list[float]:
        return [float(text.replace("−", "-")) for text in root.all_text_contents()]

    for name in ("rope", "alibi"):
        block = page.locator(f'.inspected[data-name="{name}"]')
        score = numbers(block.locator(".facts dd").nth(1))
        assert sum(numbers(block.locator(".terms .value"))) == pytest.approx(score[0], abs=0.02)
    # Another key of the same row needs no other question.
    page.mouse.click(*watched.point("rope", 14, 9, SHAPE))
    expect(page.locator(".part.key strong")).to_have_text("the (9)")
    watched.rested()
    expect(page.locator('.inspected[data-name="rope"] .terms li')).to_have_count(4)
    assert len([path for path in watched.asked if "terms" in path]) == 1


def test_heads_are_chosen_in_the_strip(watched: Watched) -> None:
    watched.open("#enc=alibi,rope")
    page = watched.page
    watched.panel("alibi").get_by_role("button", name="Head 5").click()
    expect(page.locator("#head")).to_have_value("5")
    for name in ("alibi", "rope"):
        expect(watched.panel(name).get_by_role("button", name="Head 5")).to_have_attribute("aria-pressed", "true")


def test_heads_are_sorted_by_a_metric_of_the_service(watched: Watched) -> None:
    watched.open("#enc=alibi,rope&preset=random&n=40")
    page = watched.page
    page.locator("#sort").select_option("effective_keys")
    # ALiBi's slopes fall from head to head, so each looks wider than the one before.
    expect(watched.panel("alibi").locator(".thumb span")).to_have_text([*map(str, range(7, -1, -1)), "mean"])
    expect(watched.panel("rope").locator(".thumb span")).to_have_text([*map(str, range(7, -1, -1)), "mean"])


def test_the_metrics_shown_are_the_services(watched: Watched, tmp_path: Path) -> None:
    """The table, its CSV and the lines under the pictures hold what the client reads from the same service."""
    watched.open("#enc=rope,alibi&preset=repeat&n=32&mask=causal&tab=metrics&h=1")
    page = watched.page
    body = urllib.request.urlopen(f"{watched.address}/presets/repeat?n=32").read()
    answer = json.load(
        urllib.request.urlopen(
            urllib.request.Request(
                f"{watched.address}/attention?encoding=rope&compare=alibi&heads=8&causal=true&return=summary,comparison",
                data=body,
                headers={"Content-Type": "application/json"},
            )
        )
    )
    expect(page.locator("#tabpanel-metrics tbody tr")).to_have_count(16)
    with page.expect_download() as coming:
        page.locator("#tabpanel-metrics").get_by_role("button", name="CSV").click()
    with Path(coming.value.path()).open(newline="") as lines:
        rows = {(row["encoding"], int(row["head"])): row for row in csv.DictReader(lines)}
    for result in answer["results"]:
        for head in range(8):
            row = rows[result["name"], head]
            for name in ("effective_keys", "mean_distance_ratio", "alpha_0"):
                assert float(row[name]) == pytest.approx(result["summary"][name]["mean"][head], rel=1e-5)
    assert float(rows["alibi", 1]["jsd"]) == pytest.approx(
        answer["comparison"]["against"]["alibi"]["jsd"]["mean"][1], rel=1e-5
    )
    assert rows["rope", 1]["jsd"] == ""
    keys = answer["results"][0]["summary"]["effective_keys"]["mean"][1]
    expect(watched.panel("rope").locator(".measures dd").first).to_have_text(f"{keys:.{1 if keys >= 10 else 2}f}")
    page.get_by_role("button", name="effective keys").click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("effective keys")
    header = page.locator("#tabpanel-metrics thead th").all_text_contents()
    column = page.locator(f"#tabpanel-metrics tbody tr > :nth-child({header.index('effective keys') + 1})")
    shown = [float(text) for text in column.all_text_contents()]
    assert shown == sorted(shown, reverse=True)


def test_what_position_does_is_probed_with_the_input_that_is_shown(watched: Watched) -> None:
    watched.open("#enc=alibi,sinusoidal&preset=random&n=32&h=2&tab=positions")
    root = watched.page.locator("#tabpanel-positions")
    curves = root.locator(".chart").first
    expect(curves.locator("path.line")).to_have_count(2)
    alibi, sinusoidal = root.locator("tbody tr").all()
    share, chance, near, far, order = alibi.locator("td").all_text_contents()
    assert float(share.rstrip("% ")) > 2 * float(chance.rstrip("% "))
    assert (near, far) == ("0", "0")  # distances alone count
    assert float(order.removesuffix(" bits")) > 0
    assert float(sinusoidal.locator("td").nth(2).text_content().removesuffix(" bits")) > 0  # type: ignore[union-attr]
    # ALiBi's curve is a straight line on either side, as far down at -31 as at 31.
    points = _points(curves.locator("path.line").first)
    assert len(points) == 63
    assert points[0, 1] == pytest.approx(points[-1, 1], abs=0.3)
    assert np.ptp(np.diff(points[31:, 1])) < 0.4


def test_curves_of_position_alone_have_what_papers_say_and_what_softmax_makes_of_them(watched: Watched) -> None:
    """ALiBi's dots lie on its line, T5's marks where transformers begins a bucket; weights are those of float64."""
    n, head = 32, 2
    watched.open(f"#enc=alibi,t5,rope&preset=random&n={n}&h={head}&mask=causal&tab=positions")
    scores, weights = watched.page.locator("#tabpanel-positions .chart").all()
    expect(watched.page.locator("#tabpanel-positions .chart-legend li")).to_have_text(["alibi", "t5", "rope"])
    said = watched.page.locator("#tabpanel-positions .papers li")
    expect(said).to_contain_text(
        ["ALiBi slopes (formula; dots)", "T5 buckets (steps; marks", "RoPE bound (upper bound;"]
    )

    line = _points(scores.locator("path.line").first)
    dots = scores.locator('[data-kind="formula"] circle')
    places = dots.evaluate_all("(all) => all.map((one) => [one.cx.baseVal.value, one.cy.baseVal.value])")
    assert len(places) > 10
    for x, y in places:
        assert np.interp(x, line[:, 0], line[:, 1]) == pytest.approx(y, abs=0.2)

    unit = np.ptp(line[:, 0]) / (n - 1)
    marks = scores.locator('[data-kind="steps"] line').evaluate_all("(all) => all.map((one) => one.x1.baseVal.value)")
    buckets = T5Attention._relative_position_bucket(
        -torch.arange(n), bidirectional=False, num_buckets=32, max_distance=128
    )
    assert [round((x - line[0, 0]) / unit) for x in marks] == [d for d in range(1, n) if buckets[d] != buckets[d - 1]]

    expect(weights.locator("path.line")).to_have_count(4)  # and that of equal weights
    found = _points(weights.locator("path.line.hue-0"))[:, 1]
    foot = weights.evaluate("(svg) => svg.height.baseVal.value") - 40
    rows = [np.exp(-(2.0 ** -(head + 1)) * np.arange(q + 1)) for q in range(n)]  # by distance
    # Over all rows that see two keys or more.
    expected = [sum(row[d] / row.sum() for row in rows[1:] if len(row) > d) / (n - 1) for d in range(n)]
    assert (foot - found) / (foot - found[0]) == pytest.approx(np.array(expected) / expected[0], abs=0.005)


def _points(line: Locator) -> Float64[np.ndarray, "points 2"]:
    """Of a path in a chart, in its pixels."""
    path = line.get_attribute("d")
    assert path is not None
    return np.array(re.findall(r"[ML]([\d.]+) ([\d.]+)", path), float)


def test_parameters_are_edited_and_a_variant_stands_beside_the_original(watched: Watched) -> None:
    watched.open("#enc=rope,alibi&tab=about")
    page = watched.page
    card = page.locator("#card-rope")
    card.get_by_label("Label of a variant of rope").fill("fast")
    card.get_by_role("button", name="Add").click()
    expect(page.locator(".panel")).to_have_count(3)
    watched.drawn()
    page.locator("[id='card-rope@fast']").get_by_label("theta").fill("2")
    page.locator("[id='card-rope@fast']").get_by_label("theta").press("Tab")
    expect(watched.panel("rope@fast").locator(".subtitle")).to_contain_text("theta 2")
    watched.drawn()
    assert watched.fragment()["rope@fast.theta"] == "2"
    assert not np.array_equal(watched.cells("rope@fast"), watched.cells("rope"))


def test_the_numbers_are_a_table_too(watched: Watched) -> None:
    watched.open("#tab=table&preset=repeat&n=64&d=16&enc=rope&mask=causal&z=0,0,40,40")
    table = watched.page.locator("#tabpanel-table table")
    expect(table.locator("tbody tr")).to_have_count(32)
    expect(table.locator("thead th")).to_have_count(32)
    expect(table.locator("tbody th").first).to_have_attribute("scope", "row")
    expect(table).to_contain_text("masked")


def test_tall_labels_do_not_touch(modules: Watched) -> None:
    """Axes of 128 named tokens at every zoom: no two labels are closer than a label is high."""
    gaps = modules.page.evaluate(
        """async () => {
          const { axes, frame, FONT } = await import("/playground/figure.js");
          const context = document.createElement("canvas").getContext("2d");
          context.font = FONT;
          const measure = (text) => context.measureText(text).width;
          const names = Array.from({ length: 128 }, (_, i) => `token-${i}`);
          const run = { queries: 128, keys: 128, queryNames: names, keyNames: names };
          const found = [];
          for (const size of [128, 96, 64, 40, 24, 12, 4]) {
            const at = frame(run, 420, measure, 640, 1);
            const window = { q0: 3, k0: 5, q1: 3 + Math.min(size, 125), k1: 5 + Math.min(size, 123) };
            const { row, column } = axes(context, at, window, run, { ink: "#000", muted: "#000" });
            for (const labels of [row, column]) {
              for (let i = 1; i < labels.length; i++) found.push(labels[i][2] - labels[i - 1][2]);
            }
            found.push(row.length ? 100 : 0);
          }
          return found;
        }"""
    )
    assert min(gaps) >= 9.5


def _own(watched: Watched, text: str) -> None:
    watched.paste(text)
    expect(watched.page.locator("#about-input")).to_contain_text("Your own data")
    watched.drawn()


def test_a_window_of_another_screen_has_sharp_cells(browser: Browser, address: str) -> None:
    watched = Watched.new(browser, address, device_scale_factor=2)
    watched.open("#enc=rope,alibi")
    canvas = watched.panel("rope").locator("canvas.cells")
    width, css = canvas.evaluate("(canvas) => [canvas.width, canvas.getBoundingClientRect().width]")
    assert width == pytest.approx(2 * css, abs=1)
    assert width % 21 == 0
    watched.close()
