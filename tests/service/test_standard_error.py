"""What is written to a log that is full, closed, or not read."""

from __future__ import annotations

import fcntl
import logging
import os

import pytest

from service.standard_error import StandardError


def pipe(pages: int = 1) -> tuple[int, int]:
    """One that takes so much."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096 * pages)
    return reader, writer


def test_what_is_written_arrives_at_once_and_as_utf_8() -> None:
    reader, writer = pipe()
    stream = StandardError(writer)
    assert stream.write("ä line \ud800\n") == 9
    assert os.read(reader, 100) == "ä line \\ud800\n".encode()
    assert (stream.fileno(), stream.isatty(), stream.encoding, stream.writable()) == (writer, False, "utf-8", True)
    os.close(reader)
    os.close(writer)


def test_a_reader_that_does_not_read_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = pipe(4)
    stream = StandardError(writer)
    for _ in range(300):
        stream.write("x" * 100 + "\n")
    lost = stream.lost
    assert 300 - 4 * 41 <= lost <= 300 - 3 * 40
    assert caplog.records == []
    found = os.read(reader, 1 << 16)
    assert len(found) == (300 - lost) * 101
    stream.write("again\n")
    assert os.read(reader, 100) == b"again\n"
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [f"{lost} writes to the log were lost"]
    stream.write("and again\n")
    assert len(caplog.records) == 1
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("size", [10, 100_000])
def test_what_is_longer_than_a_pipe_does_not_wait_either(size: int) -> None:
    reader, writer = pipe()
    stream = StandardError(writer)
    assert stream.write("x" * size) == size
    assert stream.lost == (size > 4096)
    assert os.read(reader, 1 << 16) == b"x" * min(size, 4096)
    os.close(reader)
    os.close(writer)


def test_a_pipe_that_is_closed_and_a_disk_that_is_full_raise_nothing() -> None:
    reader, writer = pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    for descriptor in (writer, full):
        stream = StandardError(descriptor)
        stream.write("one\n")
        stream.flush()
        assert stream.lost == 1
        os.close(descriptor)


def test_one_that_was_closed_before_the_start_is_nobody_elses() -> None:
    """A socket that is opened next would have its number."""
    reader, writer = pipe()
    os.close(writer)
    stream = StandardError(writer)
    try:
        assert os.readlink(f"/proc/self/fd/{stream.fileno()}") == os.devnull
        stream.write("nothing\n")
        assert stream.lost == 0
    finally:
        os.close(stream.fileno())
        os.close(reader)


def test_the_log_of_a_process_goes_through_it(caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = pipe()
    handler = logging.StreamHandler(StandardError(writer))
    logger = logging.getLogger("tests.standard_error")
    logger.addHandler(handler)
    try:
        logger.warning("a %s", "word")
    finally:
        logger.removeHandler(handler)
    assert os.read(reader, 100) == b"a word\n"
    os.close(reader)
    os.close(writer)
