from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from playwright.sync_api import Browser, expect, sync_playwright

from models.text import byte_tokenizer, write_text
from service.settings import EXPORTED
from tests.service import tiny
from tests.service.playground.browser import TIMEOUT, Watched, chromium
from tests.service.process import serving


@pytest.fixture(scope="package")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that takes text: 2 heads of 4, under rope and alibi."""

    def fixed(model: onnx.ModelProto, document: dict[str, Any]) -> None:
        document["model"] = "words"
        if document["graph"] != "scores":
            return
        document.update(heads=2, head_dim=4, width=8, queries=["batch", "queries", "width"])
        graph = model.graph
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 0, 2, 4]), "split"))
        for given in [one for one in graph.input if one.name in ("queries", "keys")]:
            for node in graph.node:
                node.input[:] = [f"{name}.heads" if name == given.name else name for name in node.input]
            graph.node.insert(0, onnx.helper.make_node("Reshape", [given.name, "split"], [f"{given.name}.heads"]))
            shape = ["batch", given.name, 8]
            given.CopyFrom(onnx.helper.make_tensor_value_info(given.name, onnx.TensorProto.FLOAT, shape))

    home = tmp_path_factory.mktemp("models")
    (home / "words").mkdir()
    for name in ("rope", "alibi"):
        for file in (f"{name}.onnx", f"{name}.positions.onnx"):
            shutil.copy(EXPORTED / "identity" / file, home / "words" / file)
            tiny.change(home / "words" / file, fixed)
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((256, 8)).astype(np.float32))
    write_text(home / "words", byte_tokenizer(), rows)
    return home


@pytest.fixture(scope="package")
def address(words: Path) -> Iterator[str]:
    """A service of its own, for the browser."""
    with serving(models=f"{EXPORTED}{os.pathsep}{words}") as process:
        yield f"http://127.0.0.1:{process.port}"


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = chromium()
    expect.set_options(timeout=TIMEOUT)
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
