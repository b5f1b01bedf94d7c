"""A page under watch: what it loads, what it says on the console, and the colours on its canvases."""

from __future__ import annotations

import base64
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from jaxtyping import UInt8
from playwright.sync_api import Browser, Locator, Page, Route, expect

TIMEOUT = 60_000.0
"""Milliseconds after which a page is taken to hang: no test depends on how long anything takes."""

REST = 1000
"""Milliseconds: longer than any timer by which the page waits for a pointer to rest or a reader to listen."""
SHORT = 100


def chromium() -> str:
    """The browser's path. Without one the tests are skipped, or fail where CI is set."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        reason = "no chromium is installed (on Debian: apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@dataclass
class Watched:
    """One page of a service at `address`. Requests to other hosts are counted; the browser blocks them."""

    page: Page
    address: str
    foreign: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Paths and queries of the requests for attention."""

    @classmethod
    def new(cls, browser: Browser, address: str, **options: Any) -> Watched:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        context.set_default_timeout(TIMEOUT)
        context.add_init_script(path=Path(__file__).with_name("quiet.js"))
        watched = cls(context.new_page(), address)
        watched.page.on("request", lambda request: watched._requested(request.url))
        watched.page.on("console", lambda message: watched.said.append(f"{message.type}: {message.text}"))
        watched.page.on("pageerror", lambda error: watched.said.append(f"error: {error}"))
        return watched

    def _requested(self, url: str) -> None:
        if not url.startswith((self.address, "blob:" + self.address)):
            self.foreign.append(url)
        parts = urlsplit(url)
        if parts.path == "/attention":
            self.asked.append(f"{parts.path}?{parts.query}")

    def open(self, fragment: str = "") -> Watched:
        """Goes there and waits until the panels are drawn."""
        self.page.goto("about:blank")  # or a new fragment alone would not load the page anew
        self.page.goto(f"{self.address}/{fragment}")
        self.drawn()
        return self

    def drawn(self) -> None:
        """Waits until the last run is answered and drawn."""
        self.settled()  # until then the page may still tell of the run before
        expect(self.page.locator("#latency")).to_have_attribute("data-state", "done", timeout=TIMEOUT)
        self.settled()

    def settled(self, longest: float = SHORT) -> None:
        """Waits until the page has finished all that it has begun, but what timers of over `longest` ms begin."""
        self.page.evaluate("([longest, limit]) => quiet(longest, limit)", [longest, TIMEOUT])

    def rested(self) -> None:
        """Waits until the page has done also what it does only when the pointer rests."""
        self.settled(REST)

    def paste(self, text: str) -> None:
        """Has the page take this text for the user's own data."""
        self.page.locator("#own").click()
        self.page.locator("#own-text").fill(text)
        self.page.locator("#own-use").click()

    def panel(self, name: str) -> Locator:
        return self.page.locator(f'.panel[data-name="{name}"]')

    def map(self, name: str) -> Locator:
        return self.panel(name).locator(".map")

    def pixels(self, canvas: Locator) -> UInt8[np.ndarray, "height width 4"]:
        width, height, text = canvas.evaluate(
            """(canvas) => {
              const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
              let text = "";
              for (let i = 0; i < data.length; i += 8192) text += String.fromCharCode(...data.subarray(i, i + 8192));
              return [canvas.width, canvas.height, btoa(text)];
            }"""
        )
        return np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width, 4)

    def cells(self, name: str) -> UInt8[np.ndarray, "height width 4"]:
        return self.pixels(self.panel(name).locator("canvas.cells"))

    def point(self, name: str, query: int, key: int, shape: tuple[int, int]) -> tuple[float, float]:
        """The middle of a cell, in the viewport, of a matrix that is shown whole."""
        self.map(name).scroll_into_view_if_needed()
        box = self.map(name).bounding_box()
        assert box is not None
        queries, keys = shape
        return box["x"] + (key + 0.5) * box["width"] / keys, box["y"] + (query + 0.5) * box["height"] / queries

    def fragment(self) -> dict[str, str]:
        """The settings in the address."""
        text: str = self.page.evaluate("location.hash.slice(1)")
        return dict(part.split("=", 1) for part in text.split("&") if part)

    def close(self) -> None:
        self.page.context.close()


class Held:
    """Keeps what the page asks under such addresses from now on."""

    def __init__(self, page: Page, pattern: str) -> None:
        self.page = page
        self.pattern = pattern
        self.routes: list[Route] = []
        page.route(pattern, self._keep)

    def _keep(self, route: Route) -> None:
        self.routes.append(route)

    def release(self) -> None:
        """Lets it go, once something has been asked, and what is asked later as well."""
        while not self.routes:
            self.page.wait_for_timeout(10)
        for route in self.routes:
            route.continue_()
        self.page.unroute(self.pattern)
