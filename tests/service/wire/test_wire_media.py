from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InvalidInput, NotAcceptable, UnsupportedMediaType
from service.wire import body, media


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, media.JSON),
        ("", media.JSON),
        ("*/*", media.JSON),
        ("application/*", media.JSON),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", media.JSON),
        (media.NPZ, media.NPZ),
        (f"{media.JSON};q=0.5, {media.SAFETENSORS}", media.SAFETENSORS),
        (f"{media.JSON};q=0.1, */*;q=0.5", media.NPZ),
        (f"{media.NPZ}, {media.JSON}", media.NPZ),
        (f"{media.SAFETENSORS}, */*", media.SAFETENSORS),
        (f"{media.JSON};q=0, application/*", media.NPZ),
        ("APPLICATION/X-NPZ ; Q=1.0", media.NPZ),
        (f"{media.NPZ};q=nonsense, {media.JSON};q=0.1", media.JSON),
    ],
)
def test_the_format_of_the_answer_follows_accept(accept: str | None, expected: str) -> None:
    assert media.negotiate(accept) == expected


@pytest.mark.parametrize("accept", ["text/html", "image/gif", f"{media.JSON};q=0", "*/*;q=0", media.NPY, ","])
def test_what_cannot_be_produced_is_refused_with_what_can(accept: str) -> None:
    with pytest.raises(NotAcceptable) as caught:
        media.negotiate(accept)
    assert caught.value.extra["allowed"] == list(media.WRITTEN)


@given(st.text(max_size=80))
def test_any_accept_header_is_negotiated_or_refused(accept: str) -> None:
    with suppress(NotAcceptable):
        assert media.negotiate(accept) in media.WRITTEN


CHARSETS = ("application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"')


@pytest.mark.parametrize("content_type", [*media.READ, *CHARSETS])
def test_the_formats_that_are_read(content_type: str) -> None:
    assert media.media_type(content_type) in media.READ


@pytest.mark.parametrize(
    ("content_type", "words"),
    [
        (None, "no Content-Type"),
        ("", "no Content-Type"),
        ("application/octet-stream", "not guessed"),
        ("application/x-www-form-urlencoded", "curl"),
        ("text/plain", media.JSON),
        ("application/json; charset=utf-16", "UTF-8"),
    ],
)
def test_other_content_types_are_refused_with_those_that_are_read(content_type: str | None, words: str) -> None:
    with pytest.raises(UnsupportedMediaType, match=words):
        media.media_type(content_type)


def test_float16_is_for_binary_answers_only() -> None:
    body.check_form(media.NPZ, "float16", "lists")
    body.check_form(media.JSON, "float32", "lists")
    body.check_form(media.JSON, "float16", "base64")
    with pytest.raises(InvalidInput, match=media.NPZ):
        body.check_form(media.JSON, "float16", "lists")
