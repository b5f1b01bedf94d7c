"""How fast the page is: `python -m load_tests.page` starts a service and a Chromium of its own and prints what it saw.

Numbers are of this machine and this moment. From bytes to paint: from the answer's last byte until all panels are
painted; a click: until the crosshair is drawn; recolouring: from a change of the scale until all panels are painted.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable

from playwright.sync_api import Page, expect, sync_playwright

from load_tests.server import running_service

LARGE = "#preset=repeat&n=1024&enc=rope,alibi&mask=causal"
RUNS = 20
FROM_BYTES = """() => {
  const answers = performance.getEntriesByType("resource").filter(({ name }) => /attention\\?.*weights/.test(name));
  const painted = performance.getEntriesByName("painted").map(({ startTime }) => startTime);
  const end = answers.at(-1).responseEnd;
  return painted.find((at) => at >= end) - end;
}"""
CLICK = """(map) => new Promise((done) => {
  const { left, top, width, height } = map.getBoundingClientRect();
  const began = performance.now();
  const at = { clientX: left + width * Math.random(), clientY: top + height * Math.random(), bubbles: true, detail: 1 };
  map.dispatchEvent(new MouseEvent("click", at));
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
})"""
RECOLOUR = """(scale) => new Promise((done) => {
  const select = document.getElementById("scale");
  const began = performance.now();
  select.value = scale;
  select.dispatchEvent(new Event("change"));
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
})"""


def drawn(page: Page) -> None:
    expect(page.locator("#latency")).to_have_attribute("data-state", "done", timeout=60_000)
    expect(page.locator(".panel").first).to_be_visible()


def opened(page: Page, url: str) -> float:
    """Milliseconds until the panels are there."""
    page.goto("about:blank")
    began = time.perf_counter()
    page.goto(url)
    drawn(page)
    return 1e3 * (time.perf_counter() - began)


def heap(page: Page) -> float:
    """MB of objects and arrays, garbage collected."""
    inside = page.context.new_cdp_session(page)
    inside.send("HeapProfiler.collectGarbage")
    usage = inside.send("Runtime.getHeapUsage")
    return float(usage["usedSize"] + usage["backingStorageSize"]) / 1e6


def report(name: str, numbers: list[float], unit: str = "ms") -> None:
    print(f"{name:44} median {statistics.median(numbers):8.1f} {unit}, largest {max(numbers):8.1f} {unit}")


def repeated(times: int, measure: Callable[[], float]) -> list[float]:
    return [measure() for _ in range(times)]


def main() -> None:
    with running_service() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        report("first visit, from the address to panels", repeated(5, lambda: opened(page, f"{address}/")))
        report("1,024 tokens x 8 heads x 2, to panels", repeated(3, lambda: opened(page, f"{address}/{LARGE}")))
        report("  from bytes to paint", [float(page.evaluate(FROM_BYTES))])
        page.wait_for_timeout(2000)  # the thumbnails
        clicks = repeated(20, lambda: float(page.locator(".map").first.evaluate(CLICK)))
        report("  a click", clicks)
        for scale in ("lift", "log", "row", "shared"):
            report(f"  recoloured as {scale}", [float(page.evaluate(RECOLOUR, scale))])
        page.locator("#seed").fill("1000")
        page.locator("#seed").press("Tab")
        drawn(page)
        clicks = repeated(20, lambda: float(page.locator(".map").first.evaluate(CLICK)))
        report("  a click while thumbnails are drawn", clicks)
        used = []
        for seed in range(1, RUNS + 1):
            page.locator("#seed").fill(str(seed))
            page.locator("#seed").press("Tab")
            drawn(page)
            if seed in (2, RUNS):
                page.wait_for_timeout(2000)
                used.append(heap(page))
        early, late = used
        print(f"{'memory after 2 and after 20 such runs':44} {early:.0f} MB, {late:.0f} MB: x {late / early:.2f}")
        browser.close()


if __name__ == "__main__":
    main()
