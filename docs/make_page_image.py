"""Photographs the page for the README, in Chromium, as a service that it starts serves it: part of `make images`."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import expect, sync_playwright

from load_tests.server import running_service

PATH = Path(__file__).resolve().parent / "images" / "page.png"
SIZE = {"width": 1360, "height": 1080}
# Head 2, and "she" (16): under no encoding it cannot be told from the "she" before.
FRAGMENT = "#v=1&preset=sentence&enc=none,rope,alibi,sinusoidal&h=2&q=16&k=6&scale=lift"


def photograph(address: str) -> bytes:
    """A PNG of the page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
        page.goto(f"{address}/{FRAGMENT}")
        for _ in range(3):  # as it is once the service is warm
            expect(page.locator("#latency")).to_have_attribute("data-state", "done")
            page.locator("#run").click()
        expect(page.locator(".inspected .terms")).to_have_count(3)
        page.wait_for_timeout(1000)  # the thumbnails are drawn one after the other
        picture = page.screenshot()
        browser.close()
    return picture


def main() -> None:
    with running_service() as address:
        picture = Image.open(io.BytesIO(photograph(address)))
    picture.convert("RGB").save(PATH, optimize=True)
    print(f"{PATH} {PATH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
