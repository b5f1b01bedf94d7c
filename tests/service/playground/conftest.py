from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.service.playground.browser import Watched, chromium
from tests.service.process import serving


@pytest.fixture(scope="package")
def address() -> Iterator[str]:
    """A service of its own, for the browser."""
    with serving() as process:
        yield f"http://127.0.0.1:{process.port}"


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            args=[
                "--no-sandbox",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            ],
        )
        yield browser
        browser.close()


@pytest.fixture
def watched(browser: Browser, address: str) -> Iterator[Watched]:
    """A page that is not open yet. At the end it has asked no other host for anything."""
    watched = Watched.new(browser, address)
    yield watched
    watched.close()
    assert not watched.foreign


@pytest.fixture(scope="package")
def modules(browser: Browser, address: str) -> Iterator[Watched]:
    """A page whose modules are called one by one."""
    watched = Watched.new(browser, address)
    watched.page.goto(f"{address}/docs")
    yield watched
    watched.close()
