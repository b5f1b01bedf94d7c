"""Asking: inputs, links, and what goes wrong."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Route, expect

from tests.service.playground.browser import Held, Watched
from tests.service.process import serving


def test_a_slow_answer_never_paints_over_a_later_one(watched: Watched) -> None:
    """Not even where the browser could not give the first request up any more."""
    watched.page.add_init_script("AbortController.prototype.abort = () => {};")
    watched.open("#enc=none,rope")
    page = watched.page
    held: list[Route] = []

    def hold(route: Route) -> None:
        """The first question waits until the second has been answered."""
        if held:
            route.continue_()
        else:
            held.append(route)

    page.route("**/attention?**causal=true**weights*", hold)
    page.locator('input[name="mask"][value="causal"]').check()
    expect(page.locator("#latency")).to_have_attribute("data-state", "busy")
    page.locator("#preset").select_option("repeat")
    label = "rope, head 0 of 8, 64 queries by 64 keys"
    expect(watched.map("rope")).to_have_attribute("aria-label", label)
    assert len(held) == 1
    shown = watched.cells("rope")
    with page.expect_response("**/attention?**") as late:
        held[0].continue_()
    assert late.value.status == 200
    watched.drawn()
    assert np.array_equal(watched.cells("rope"), shown)
    assert watched.map("rope").get_attribute("aria-label") == label


def test_when_the_service_is_busy_the_page_counts_down_and_asks_again(watched: Watched) -> None:
    watched.open("#enc=none,rope")
    page = watched.page
    refused: list[str] = []
    relieved = False

    def refuse(route: Route) -> None:
        if relieved:
            route.continue_()
            return
        refused.append(route.request.url)
        route.fulfill(
            status=429,
            headers={"Retry-After": "2", "X-Request-ID": "busy-1", "Content-Type": "application/problem+json"},
            body='{"title": "Overloaded", "status": 429, "detail": "the queue is full", "request_id": "busy-1"}',
        )

    page.route("**/attention?**causal=true**", refuse)
    page.locator('input[name="mask"][value="causal"]').check()
    problem = page.locator("#problem")
    expect(problem).to_contain_text("429 Overloaded")
    expect(problem).to_contain_text("the queue is full")
    expect(problem).to_contain_text("request busy-1")
    expect(problem.locator(".countdown")).to_contain_text("trying again in")
    expect(page.locator("#latency")).to_have_text("error 429")
    expect(page.locator(".panel")).to_have_count(2)  # what was there stays, paler
    relieved = True
    expect(page.locator("#latency")).to_have_attribute("data-state", "done")
    expect(problem).to_be_hidden()
    watched.drawn()
    assert len(refused) >= 1
    assert "causal=true" in watched.asked[-1]


def test_a_refusal_shows_what_was_wrong_where_and_how_to_ask_from_a_command_line(watched: Watched) -> None:
    watched.page.goto(f"{watched.address}/#enc=rope&rope.theta=-5")
    problem = watched.page.locator("#problem")
    expect(problem).to_contain_text("422 Parameter out of range")
    expect(problem).to_contain_text("rope.theta")
    expect(problem).to_contain_text("at query:rope.theta")
    expect(problem).to_contain_text("request ")
    problem.locator("summary").click()
    expect(problem.locator("pre")).to_contain_text("curl -s")
    expect(watched.page.locator(".blank")).to_contain_text("Nothing to show yet")


def test_a_service_that_is_gone_shows_in_the_chip(watched: Watched) -> None:
    watched.open("#enc=none,rope")
    page = watched.page
    page.route("**/attention?**", lambda route: route.abort())
    page.locator("#run").click()
    expect(page.locator("#latency")).to_have_text("service unreachable")
    expect(page.locator("#problem")).to_contain_text("did not answer")
    page.unroute("**/attention?**")
    page.get_by_role("button", name="Try again").click()
    watched.drawn()
    expect(page.locator("#problem")).to_be_hidden()


def test_too_much_to_draw_is_said_with_both_numbers_and_blanks_nothing(watched: Watched) -> None:
    watched.open("#enc=none,rope&preset=repeat&n=32")
    before = watched.cells("rope")
    asked = len(watched.asked)
    watched.page.locator("#n").fill("4096")
    watched.page.locator("#n").press("Tab")
    watched.settled()
    problem = watched.page.locator("#problem")
    expect(problem).to_contain_text("268,435,456 numbers")
    expect(problem).to_contain_text("67,108,864")
    assert np.array_equal(watched.cells("rope"), before)
    assert [path for path in watched.asked[asked:] if "weights" in path] == []


def test_a_link_shows_the_same_again_and_back_goes_back(watched: Watched) -> None:
    fragment = "#v=1&preset=repeat&n=24&seed=7&heads=4&enc=rope,alibi&ref=alibi&h=2&mask=causal&view=diff&vmax=0.1"
    watched.open(fragment + "&q=17&k=4&z=2,2,20,20&tab=pairs")
    image = watched.cells("rope")
    page = watched.page
    url = page.url
    other = watched.page.context.new_page()
    other.close()
    page.goto("about:blank")
    page.goto(url)
    watched.drawn()
    assert np.array_equal(watched.cells("rope"), image)
    given = dict(part.split("=", 1) for part in fragment[1:].split("&"))
    assert watched.fragment() == given | {"q": "17", "k": "4", "z": "2,2,20,20", "tab": "pairs"}
    page.locator("#seed").fill("8")
    page.locator("#seed").press("Tab")
    watched.drawn()
    assert watched.fragment()["seed"] == "8"
    assert not np.array_equal(watched.cells("rope"), image)
    page.go_back()
    expect(page.locator("#seed")).to_have_value("7")
    watched.drawn()
    assert np.array_equal(watched.cells("rope"), image)


def test_what_a_link_has_wrong_is_said_and_left_out(watched: Watched) -> None:
    watched.open("#enc=rope&h=-3&scale=jet&future=1&vmax=zero")
    notes = watched.page.locator(".notice")
    expect(notes).to_have_count(3)
    expect(watched.page.locator("#scale")).to_have_value("shared")


def test_an_encoding_that_is_causal_only_makes_the_mask_causal_and_says_so(watched: Watched) -> None:
    watched.open("#enc=rope,cope")
    expect(watched.page.locator(".notice")).to_contain_text("cope is defined for causal attention only")
    expect(watched.page.locator('input[name="mask"][value="causal"]')).to_be_checked()
    expect(watched.page.locator(".panel")).to_have_count(2)


def test_encodings_are_added_and_removed(watched: Watched) -> None:
    watched.open("#enc=none,rope")
    page = watched.page
    page.locator("#add").click()
    page.locator("#picker-filter").fill("linear biases")
    page.locator("#picker-list input").first.check()
    page.keyboard.press("Escape")
    expect(page.locator(".panel")).to_have_count(3)
    watched.drawn()
    asked = len(watched.asked)
    page.get_by_role("button", name="Remove: rope").click()
    expect(page.locator(".panel h3")).to_have_text(["none", "alibi"])
    watched.rested()
    # Nothing new had to be asked for.
    assert len([path for path in watched.asked[asked:] if "terms" not in path]) == 0


def test_the_focus_stays_where_it_was_when_a_list_is_written_anew(watched: Watched) -> None:
    watched.open("#enc=rope,alibi&tab=about")
    page = watched.page
    theta = page.locator("#card-rope").get_by_label("theta")
    theta.fill("100")
    theta.press("Tab")
    watched.drawn()
    assert watched.fragment()["rope.theta"] == "100"
    expect(page.locator("#card-rope").get_by_label("layout")).to_be_focused()
    page.locator("#chips").get_by_role("button", name="alibi", exact=True).press("Enter")
    expect(watched.panel("alibi")).to_have_count(0)
    expect(page.locator("#chips").get_by_role("button", name="alibi", exact=True)).to_be_focused()
    page.locator("#chips").get_by_role("button", name="alibi", exact=True).press("Enter")
    expect(watched.panel("alibi")).to_be_visible()


@pytest.mark.parametrize("name", ["x.npy", "x.csv", "x.json"])
def test_own_vectors_come_from_files_and_never_stand_in_the_address(
    watched: Watched, tmp_path: Path, name: str
) -> None:
    x = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    names = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
    path = tmp_path / name
    if name.endswith("npy"):
        np.save(path, np.asfortranarray(x.astype(np.float16)))
    elif name.endswith("csv"):
        lines = [",".join([one, *map(str, row)]) for one, row in zip(names, x.tolist(), strict=True)]
        path.write_text("\n".join(lines))
    else:
        path.write_text(f'{{"embeddings": {x.tolist()}, "tokens": {names}}}'.replace("'", '"'))
    watched.open("#enc=rope,alibi")
    page = watched.page
    page.locator("#own").click()
    page.locator("#own-file").set_input_files(path)
    expect(page.locator("#own-said")).to_contain_text("6 tokens, 8 numbers each")
    page.locator("#own-use").click()
    expect(page.locator("#about-input")).to_contain_text("SHA-256")
    watched.drawn()
    assert watched.map("rope").get_attribute("aria-label") == "rope, head 0 of 4, 6 queries by 6 keys"
    if not name.endswith("npy"):
        page.mouse.click(*watched.point("rope", 1, 2, (6, 6)))
        expect(page.locator(".part.query strong")).to_have_text("beta (1)")
    assert "0." not in page.evaluate("decodeURIComponent(location.hash)")


def test_back_leaves_own_vectors_and_forward_returns_to_them(watched: Watched) -> None:
    watched.open("#enc=rope&preset=repeat&n=12")
    page = watched.page
    watched.paste("1 0\n0 1\n1 1")
    watched.drawn()
    of_own = "rope, head 0 of 1, 3 queries by 3 keys"
    expect(watched.map("rope")).to_have_attribute("aria-label", of_own)
    page.go_back()
    expect(watched.map("rope")).to_have_attribute("aria-label", "rope, head 0 of 8, 12 queries by 12 keys")
    watched.drawn()
    page.go_forward()
    expect(watched.map("rope")).to_have_attribute("aria-label", of_own)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1, 2\n3", "row 1 has 1 numbers, row 0 has 2"),
        ("1, x\n3, 4", 'row 0, column 1 is "x"'),
        ('{"embeddings": [[1, 2], [3, 4]], "tokens": ["a"]}', "1 names came for 2 keys"),
        ('{"embeddings": [[1, 2], [3, 4]], "mask": [1, 1, 1]}', "mask has the shape [3]; read are [2] and [2, 2]"),
        ('{"embedings": [[1, 2]]}', "embedings is not read here"),
        ('{"queries": [[1, 2]], "keys": [[1, 2, 3]]}', "queries are 2 wide and keys 3"),
        ("[1, 2", "not JSON"),
        ("[]", "empty list"),
    ],
)
def test_what_is_wrong_with_own_vectors_is_said_with_both_numbers(modules: Watched, text: str, message: str) -> None:
    said = modules.page.evaluate(
        """async (text) => {
          const { fromText } = await import("/playground/given.js");
          try { fromText(text); } catch (error) { return error.message; }
          return null;
        }""",
        text,
    )
    assert message in said


def test_queries_and_keys_have_labels_of_their_own(watched: Watched) -> None:
    watched.open("#enc=none")
    page = watched.page
    watched.paste(
        '{"queries": [[1, 0], [0, 1]], "keys": [[1, 0], [0, 1], [1, 1], [2, 0], [0, 2]],'
        ' "tokens": ["a", "b", "c", "d", "e"]}'
    )
    expect(page.locator("#about-input")).to_contain_text("2 × 2 queries and 5 keys")
    watched.drawn()
    page.mouse.click(*watched.point("none", 1, 3, (2, 5)))
    expect(page.locator(".part.query strong")).to_have_text("1")
    expect(page.locator(".part.key strong")).to_have_text("d (3)")


def test_names_are_text_and_never_markup(watched: Watched) -> None:
    evil = "<img src=x onerror=alert(1)>"
    watched.open("#enc=none,rope")
    page = watched.page
    page.on("dialog", lambda dialog: watched.said.append(f"dialog: {dialog.message}"))
    watched.paste(f'{{"embeddings": [[1, 0], [0, 1]], "tokens": ["{evil}", "{evil}"]}}')
    expect(page.locator("#about-input")).to_contain_text("2 × 2")
    watched.drawn()
    page.mouse.click(*watched.point("rope", 1, 0, (2, 2)))
    for tab in ("pairs", "metrics", "table", "about"):
        page.locator(f"#tab-{tab}").click()
    expect(page.locator(".part.query strong")).to_have_text(f"{evil} (1)")
    expect(page.locator("#tabpanel-table")).to_contain_text(evil)
    assert page.locator("img[src=x]").count() == 0
    page.goto("about:blank")
    page.goto(f"{watched.address}/#enc=rope&preset={evil}&rope.theta={evil}")
    expect(page.locator("#problem")).to_be_visible()
    assert page.locator("img[src=x]").count() == 0
    assert [line for line in watched.said if "422" not in line] == []


def test_dropping_a_file_anywhere_reads_it(watched: Watched) -> None:
    watched.open("#enc=none")
    content = io.BytesIO()
    np.save(content, np.eye(3, 4))
    watched.page.evaluate(
        """(bytes) => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], "eye.npy"));
          document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
        }""",
        list(content.getvalue()),
    )
    expect(watched.page.locator("#own-said")).to_have_text("eye.npy: 3 tokens, 4 numbers each.")


def test_a_large_run_is_decoded_by_the_worker_pooled_and_answers_clicks(browser: Browser, address: str) -> None:
    """1,024 tokens under 8 heads and 2 encodings: 16.8 million weights."""
    watched = Watched.new(browser, address)
    workers: list[str] = []
    watched.page.on("worker", lambda worker: workers.append(worker.url))
    watched.open("#enc=rope,alibi&preset=repeat&n=1024&mask=causal&scale=lift")
    page = watched.page
    assert workers == [f"{address}/playground/worker.js"]
    assert "dtype=float16" in watched.asked[0]
    expect(watched.panel("rope").locator(".note")).to_contain_text("the largest of up to")
    page.mouse.click(*watched.point("alibi", 900, 450, (1024, 1024)))
    expect(page.locator(".part.query strong")).to_have_text(re.compile(r"\((89|90)\d\)"))  # a cell is under a pixel
    assert watched.cells("rope").shape[0] < 1024
    expect(page.locator(".thumb")).to_have_count(18)
    assert watched.said == []
    watched.close()


def test_many_runs_leave_the_memory_as_it_was(browser: Browser, address: str) -> None:
    watched = Watched.new(browser, address)
    watched.open("#enc=rope,alibi&preset=repeat&n=96")
    page = watched.page
    inside = page.context.new_cdp_session(page)
    used = []
    for seed in range(12):
        page.locator("#seed").fill(str(seed + 1))
        page.locator("#seed").press("Tab")
        watched.drawn()
        if seed in (1, 11):
            inside.send("HeapProfiler.collectGarbage")
            usage = inside.send("Runtime.getHeapUsage")
            used.append(usage["usedSize"] + usage["backingStorageSize"])
    assert used[1] < 1.5 * used[0]
    watched.close()


def test_a_model_with_a_tokenizer_takes_text_which_never_stands_in_the_address(watched: Watched) -> None:
    watched.open("#enc=none,rope,alibi")
    page = watched.page
    expect(page.locator("#text")).to_be_hidden()
    page.locator("#model").select_option("words")
    expect(page.locator("#text")).to_be_visible()
    expect(page.locator(".panel h3")).to_have_text(["rope", "alibi"])  # it has no other encodings
    watched.drawn()
    page.locator("#text").fill("hello")
    page.locator("#text").press("Tab")
    expect(watched.map("rope")).to_have_attribute("aria-label", "rope, head 0 of 2, 5 queries by 5 keys")
    watched.drawn()
    page.mouse.click(*watched.point("rope", 1, 4, (5, 5)))
    expect(page.locator(".part.query strong")).to_have_text("e (1)")
    expect(page.locator(".part.key strong")).to_have_text("o (4)")
    watched.rested()
    assert "hello" not in page.evaluate("location.href")
    assert watched.fragment()["model"] == "words"
    expect(page.locator("#heads")).to_be_disabled()
    page.locator("#add").click()
    expect(page.locator("#picker-list li")).to_have_count(2)
    assert watched.said == []


@pytest.mark.parametrize("text", [False, True])
def test_one_token_is_drawn_and_has_no_distances_to_profile(watched: Watched, text: bool) -> None:
    watched.open("#enc=rope,alibi")
    page = watched.page
    if text:
        page.locator("#model").select_option("words")
        page.locator("#text").fill("h")
        page.locator("#run").click()
    else:
        watched.paste("1,2")
    expect(watched.map("rope")).to_have_attribute("aria-label", re.compile("1 queries by 1 keys"))
    watched.drawn()
    distances = page.locator("#tabpanel-distance")
    expect(distances).to_have_text(re.compile("^There is nothing to profile: no counted row sees two keys or more"))
    for tab in ("positions", "pairs", "metrics", "table"):
        page.locator(f"#tab-{tab}").click()
        expect(page.locator(f"#tabpanel-{tab} > *").first).to_be_visible()
        watched.rested()
    expect(page.locator("#tabpanel-positions")).not_to_contain_text("could not be had")
    assert watched.said == []


def test_without_an_order_of_positions_the_distances_say_why_there_are_none(watched: Watched) -> None:
    watched.open("#enc=rope,alibi")
    page = watched.page
    watched.paste('{"embeddings": [[1, 2], [3, 4]], "positions": [5, 5]}')
    expect(page.locator("#tabpanel-distance")).to_contain_text("There is nothing to profile: key positions")


def test_a_service_that_asks_for_a_key_is_given_one_and_no_command_holds_it(browser: Browser, tmp_path: Path) -> None:
    key = "a-key-of-many-letters"
    (tmp_path / "keys").write_text(key)
    with serving(api_keys_file=str(tmp_path / "keys")) as process:
        watched = Watched.new(browser, f"http://127.0.0.1:{process.port}")
        page = watched.page
        page.goto(f"{watched.address}/#enc=none,rope")
        problem = page.locator("#problem")
        expect(problem).to_contain_text("401")
        problem.get_by_label("API key").fill("another-one-of-letters")
        problem.get_by_role("button", name="Use it").click()
        watched.settled()
        expect(problem).to_contain_text("401")
        problem.get_by_label("API key").fill(key)
        problem.get_by_role("button", name="Use it").click()
        watched.drawn()
        expect(page.locator(".panel .subtitle").first).to_have_text("No positional encoding")
        expect(page.locator("#preset option")).to_have_count(7)
        page.locator("#export").click()
        for button in ("#copy-curl", "#copy-python"):
            page.locator(button).click()
            text = page.locator("#export-text").input_value()
            assert key not in text
            command = ["bash", "-c", text] if "curl" in button else [sys.executable, "-c", text]
            done = subprocess.run(
                command, capture_output=True, check=True, timeout=60, env={**os.environ, "API_KEY": key}
            )
            assert b"rope" in done.stdout
        page.reload()
        watched.drawn()
        assert key not in page.evaluate("location.href")
        watched.close()


def test_what_is_being_typed_is_kept_when_an_answer_comes(watched: Watched) -> None:
    watched.open("#enc=rope,alibi&preset=random&n=16&tab=about")
    page = watched.page
    held = Held(page, "**/attention?**causal=true**weights*")
    page.locator('input[name="mask"][value="causal"]').check()
    expect(page.locator("#latency")).to_have_attribute("data-state", "busy")
    page.locator("#n").fill("24")
    held.release()
    watched.drawn()
    expect(page.locator("#n")).to_have_value("24")
    page.locator("#n").press("Tab")
    expect(watched.map("rope")).to_have_attribute("aria-label", "rope, head 0 of 8, 24 queries by 24 keys")


def test_what_is_being_typed_is_kept_when_a_card_comes(watched: Watched) -> None:
    watched.open("#enc=rope,alibi&tab=about")
    page = watched.page
    held = Held(page, "**/encodings/t5")
    page.locator("#add").click()
    page.locator("#picker-filter").fill("t5")
    page.locator("#picker-list input").first.check()
    page.keyboard.press("Escape")
    expect(page.locator("#card-t5")).to_contain_text("Asking")
    theta = page.locator("#card-rope").get_by_label("theta")
    theta.fill("500")
    held.release()
    watched.drawn()
    expect(theta).to_have_value("500")
    expect(theta).to_be_focused()
    theta.press("Enter")  # tells of it, and adds no variant
    watched.drawn()
    assert watched.fragment()["rope.theta"] == "500"
    expect(page.locator("#card-rope").get_by_label("theta")).to_be_focused()
    expect(page.locator("#card-t5 .formula")).to_be_visible()


def test_a_click_on_run_does_not_cancel_the_run_that_leaving_the_field_began(watched: Watched) -> None:
    watched.open("#enc=none,rope&preset=random&n=16")
    page = watched.page
    held = Held(page, "**/presets/random?n=24**")
    page.locator("#n").fill("24")
    page.locator("#run").click()
    expect(page.locator("#latency")).to_have_attribute("data-state", "busy")
    page.locator("#run").click()  # it says Run, so it stops nothing
    held.release()
    watched.drawn()
    assert watched.map("rope").get_attribute("aria-label") == "rope, head 0 of 8, 24 queries by 24 keys"
    assert watched.fragment()["n"] == "24"
    assert len(held.routes) == 1


def test_enter_in_a_field_asks_once_and_again_where_nothing_was_changed(watched: Watched) -> None:
    watched.open("#enc=none,rope&preset=random&n=16")
    page = watched.page
    asked = len(watched.asked)
    page.locator("#n").fill("24")
    page.locator("#n").press("Enter")
    watched.drawn()
    assert watched.map("rope").get_attribute("aria-label") == "rope, head 0 of 8, 24 queries by 24 keys"
    assert len([path for path in watched.asked[asked:] if "weights" in path]) == 1
    page.locator("#n").press("Enter")
    watched.drawn()
    assert len([path for path in watched.asked[asked:] if "weights" in path]) == 2


def test_after_a_run_was_stopped_the_page_says_that_what_is_drawn_is_of_other_settings(watched: Watched) -> None:
    watched.open("#enc=none,rope&preset=random&n=16")
    page = watched.page
    expect(page.locator("#stop")).to_be_hidden()
    held = Held(page, "**/presets/random?n=24**")
    page.locator("#n").fill("24")
    page.locator("#n").press("Tab")
    page.locator("#stop").click()
    expect(page.locator("#latency")).to_have_text("cancelled")
    expect(page.locator("#notes")).to_contain_text("What is drawn is an earlier answer")
    expect(page.locator("#panels")).to_have_class(re.compile("outdated"))
    expect(page.locator("#stop")).to_be_hidden()
    expect(page.locator("#run")).to_be_focused()
    assert watched.map("rope").get_attribute("aria-label") == "rope, head 0 of 8, 16 queries by 16 keys"
    page.locator("#export").click()
    expect(page.locator("#export-said")).to_contain_text("earlier answer")
    page.keyboard.press("Escape")
    page.unroute(held.pattern)
    page.locator("#run").click()
    watched.drawn()
    expect(watched.map("rope")).to_have_attribute("aria-label", "rope, head 0 of 8, 24 queries by 24 keys")
    expect(page.locator("#notes")).to_be_hidden()
    expect(page.locator("#panels")).not_to_have_class(re.compile("outdated"))


def test_after_a_run_has_failed_the_page_says_that_what_is_drawn_is_an_earlier_answer(watched: Watched) -> None:
    watched.open("#enc=none,rope&preset=random&n=16")
    page = watched.page
    page.route("**/attention?**", lambda route: route.abort())
    page.locator("#seed").fill("3")
    page.locator("#run").click()
    expect(page.locator("#latency")).to_have_text("service unreachable")
    expect(page.locator("#notes")).to_contain_text("What is drawn is an earlier answer")
    page.unroute("**/attention?**")
    page.locator("#run").click()
    watched.drawn()
    expect(page.locator("#notes")).to_be_hidden()


@pytest.mark.parametrize(
    ("name", "typed", "said"),
    [
        ("n", "99999", "Tokens must be a whole number from 1 to 32768: 99999 came, so it stays 16."),
        ("n", "0", "Tokens must be a whole number from 1 to 32768: 0 came, so it stays 16."),
        ("n", "2.5", "Tokens must be a whole number from 1 to 32768: 2.5 came, so it stays 16."),
        ("n", "-", "Tokens must be a whole number from 1 to 32768: what was typed is no number, so it stays 16."),
        ("d", "8193", "Width must be a whole number from 1 to 8192: 8193 came, so it stays 64."),
        ("seed", "-1", "Seed must be a whole number from 0 to 4294967295: -1 came, so it stays 0."),
        ("seed", "-", "Seed must be a whole number from 0 to 4294967295: what was typed is no number, so it stays 0."),
        ("vmax", "0", "The end of the scale must be a number above 0: 0 came, so it stays "),
    ],
)
def test_a_number_that_cannot_be_is_refused_with_what_can(watched: Watched, name: str, typed: str, said: str) -> None:
    watched.open("#enc=none,rope&preset=random&n=16")
    field = watched.page.locator(f"#{name}")
    before, setting = field.input_value(), watched.fragment().get(name)
    watched.page.route("**/attention?**weights**", lambda route: route.abort())  # nothing is asked
    field.fill("")
    field.press_sequentially(typed)
    field.press("Tab")
    expect(watched.page.locator("#notes")).to_contain_text(said)
    watched.drawn()
    assert field.input_value() == before
    assert field.evaluate("({ validity }) => validity.badInput") is False
    assert watched.fragment().get(name) == setting
    watched.page.unroute("**/attention?**weights**")
    field.fill("4")
    field.press("Tab")
    watched.drawn()
    expect(watched.page.locator("#notes")).to_be_hidden()
    assert watched.fragment()[name] == "4"


def test_an_empty_number_is_the_presets_own(watched: Watched) -> None:
    watched.open("#enc=none,rope&preset=random&n=16")
    watched.page.locator("#n").fill("")
    watched.page.locator("#n").press("Tab")
    watched.drawn()
    assert watched.map("rope").get_attribute("aria-label") == "rope, head 0 of 8, 64 queries by 64 keys"
    expect(watched.page.locator("#notes")).to_be_hidden()
