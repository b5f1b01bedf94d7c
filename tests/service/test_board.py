from __future__ import annotations

import os
import subprocess
import sys

import pytest

from service.board import COLUMNS, Board

FORKED = """
import os
from service.board import Board
board = Board(3)
first = board.take(2)
child = os.fork()
if child == 0:
    board.enter(2)
    board.row[first] += 5
    board.row[first + 1] = 0.25
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
board.row[first] += 1
assert board.totals().tolist() == [6.0, 0.25]
assert board.column(first).tolist() == [1.0, 0.0, 5.0]
assert board.columns(first, 2) == [[1.0, 0.0], [0.0, 0.0], [5.0, 0.25]]
"""


def test_what_a_forked_process_writes_is_read_here() -> None:
    """In a process without threads of its own, as the one that forks has to be."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-W", "error", "-c", FORKED], env=environment, check=True, timeout=60)


def test_a_process_goes_on_from_the_numbers_of_the_one_before() -> None:
    board = Board(2)
    column = board.take(1)
    board.enter(1)
    board.row[column] += 3
    board.enter(1)
    board.row[column] += 1
    assert board.totals()[column] == 4


def test_only_what_is_to_be_forgotten_is() -> None:
    board = Board(2)
    first = board.take(3)
    for process in range(2):
        board.enter(process)
        for i in range(3):
            board.row[first + i] = 1
    board.erase(1, first + 1, 1)
    assert board.totals().tolist() == [2.0, 1.0, 2.0]


def test_columns_are_nobody_elses_and_they_end() -> None:
    board = Board()
    assert [board.take(2), board.take(1), board.take(1)] == [0, 2, 3]
    with pytest.raises(ValueError, match=f"there are {COLUMNS}"):
        board.take(COLUMNS)
    assert len(board.totals()) == 4
