"""What a notebook shows of an answer."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from service import client as module
from service.client import Attention, Client, limits, palette, pool, shade
from service.pictures.colours import VIRIDIS

LARGEST = 300_000


class Reader(HTMLParser):
    """Balanced tags, and every attribute of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag == "img":
            self.images.append(dict(attrs))
        else:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def close(self) -> None:
        super().close()
        assert not self._open


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def pixels(image: dict[str, str | None]) -> np.ndarray:
    source = image["src"] or ""
    content = base64.b64decode(source.removeprefix("data:image/png;base64,"), validate=True)
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def heads(reader: Reader) -> list[dict[str, str | None]]:
    return [image for image in reader.images if ", head " in (image["alt"] or "")]


def test_a_page_is_small_however_large_the_matrices_are(client: Client) -> None:
    x = np.random.default_rng(0).standard_normal((2048, 32), dtype=np.float32)
    answer = client.attention(x, "alibi", heads=8, returns="weights")
    page = answer._repr_html_()
    assert len(page.encode()) < LARGEST
    reader = read(page)
    assert len(heads(reader)) == 8
    assert all(max(pixels(image).shape) <= 256 for image in heads(reader))
    assert "each pixel is the largest of several cells" in page


def test_a_page_is_small_however_many_heads_and_encodings_there_are(client: Client) -> None:
    x = np.random.default_rng(0).standard_normal((300, 512), dtype=np.float32)
    answer = client.attention(x, "none", compare="all", heads=16, returns="weights", causal=True)
    assert len(answer) >= 20
    page = answer._repr_html_()
    assert len(page.encode()) < LARGEST
    assert "maps" in page


def test_a_page_needs_nothing_else(client: Client) -> None:
    answer = client.attention(np.eye(4), "rope", compare=["alibi"], returns="weights")
    page = answer._repr_html_()
    reader = read(page)
    assert all((image["src"] or "").startswith("data:image/png;base64,") for image in reader.images)
    assert not reader.tags & {"script", "link", "style", "iframe", "object", "canvas"}
    assert not {name for name in reader.attributes if name.startswith("on")}
    assert not re.search(r"https?://|url\(|@import", page)


def test_maps_have_the_colours_of_their_weights(client: Client) -> None:
    """As another program reads the PNG, and with the table that the service's own pictures have."""
    x = np.random.default_rng(0).standard_normal((9, 8), dtype=np.float32)
    answer = client.attention(x, "rope", compare=["alibi"], heads=2, returns="weights")
    shown = [one.weights[head] for one in answer.values() for head in range(2) if one.weights is not None]
    high = np.quantile(np.stack(shown), 0.995)
    images = heads(read(answer._repr_html_()))
    assert [image["alt"] for image in images] == ["rope, head 0", "rope, head 1", "alibi, head 0", "alibi, head 1"]
    for image, weights in zip(images, shown, strict=True):
        expected = VIRIDIS[np.clip(np.rint(weights / high * 255), 0, 255).astype(int)].astype(int)
        assert np.abs(pixels(image) - expected).max() <= 6


def test_what_is_no_number_has_a_colour_of_its_own() -> None:
    assert shade(np.array([np.nan, 0.0, 1.0, 2.0, -1.0]), 0.0, 1.0).tolist() == [254, 0, 253, 253, 0]
    assert len(palette()) == 254


def test_the_palette_is_viridis() -> None:
    at = np.rint(np.linspace(0, 255, len(palette()))).astype(int)
    assert np.abs(palette().astype(int) - VIRIDIS[at]).max() <= 4


@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (256, 300), (1000, 3), (257, 511)])
def test_pooling_keeps_the_largest(queries: int, keys: int) -> None:
    values = np.random.default_rng(0).standard_normal((2, queries, keys))
    pooled = pool(values, 256, 256)
    assert pooled.shape == (2, min(queries, 256), min(keys, 256))
    for row, column in ((0, 0), (queries - 1, keys - 1), (queries // 2, keys // 3)):
        values[0, row, column] = 99
        place = np.argwhere(pool(values, 256, 256)[0] == 99)
        assert len(place) == 1
        assert np.abs(place[0] / pooled.shape[1:] - [row / queries, column / keys]).max() <= 1 / min(256, queries, keys)
        values[0, row, column] = 0


def test_a_few_large_weights_do_not_leave_the_rest_dark() -> None:
    values = np.full((100, 100), 0.01)
    values[0, 0] = 1.0
    assert limits([values]) == pytest.approx((0.0, 0.01, 1.0))
    assert limits([np.array([[np.nan]])]) == (0.0, 1.0, 1.0)
    assert limits([np.zeros((2, 2))])[0] == 0.0


def test_names_cannot_break_out_of_a_page(client: Client) -> None:
    honest = client.attention(np.eye(4), returns="weights")
    document = {**honest.document, "model": "<script>alert(1)</script>"}
    assert "<script" not in Attention(document, honest.arrays)._repr_html_()


def test_answers_without_matrices_have_a_page_too(client: Client) -> None:
    for returns, top_k in (("output", None), ("scores", None), ("weights", 2)):
        answer = client.attention(np.eye(4), "rope", returns=returns, top_k=top_k)
        read(answer._repr_html_())
        assert repr(answer).startswith("<Attention rope: ")


def test_a_batch_shows_its_first(client: Client) -> None:
    batch = np.stack([np.eye(4), np.ones((4, 4))])
    page = client.attention(batch, "none", returns="weights")._repr_html_()
    assert len(heads(read(page))) == 1
    assert "the first of a batch of 2" in page


def test_the_text_form_says_what_there_is(client: Client) -> None:
    answer = client.attention(np.eye(4), "rope", compare="alibi", heads=2, returns="weights,scores,terms")
    assert repr(answer).startswith("<Attention rope, alibi: weights, scores, terms ")
    assert "[2, 4, 4] float32" in repr(answer)
    assert repr(answer["alibi"]) == "<Result alibi: weights, scores, terms content+bias [2, 4, 4] float32>"
    assert module.__all__ == sorted(module.__all__)
