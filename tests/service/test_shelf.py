"""What processes agree on."""

from __future__ import annotations

import os
import threading

from hypothesis import given
from hypothesis import strategies as st

from service.shelf import SharedShelf, Shelf

NAMES = st.lists(st.sampled_from(["a.x", "a.y", "b.x"]), max_size=3)


def test_what_one_process_puts_there_another_reads() -> None:
    shelf = SharedShelf()
    before = shelf.stamp
    child = os.fork()
    if child == 0:
        for i in range(50):
            shelf.change(lambda one, i=i: one.named([f"child.{i}"]))  # type: ignore[misc]
        shelf.change(lambda one: one.unload(["a.x"]))
        os._exit(0)
    for i in range(50):
        shelf.change(lambda one, i=i: one.named([f"parent.{i}"]))  # type: ignore[misc]
    assert os.waitpid(child, 0)[1] == 0
    found = shelf.read()
    assert found.unloaded == ("a.x",)
    assert len(found.names) == len(set(found.names)) == 100
    assert shelf.stamp != before


def test_threads_lose_nothing_of_each_other() -> None:
    shelf = SharedShelf()

    def change() -> None:
        for _ in range(50):
            shelf.change(lambda one: one.load([]))

    threads = [threading.Thread(target=change) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert shelf.read().generation == 200


@given(st.lists(st.tuples(st.booleans(), NAMES)))
def test_what_was_unloaded_last_is_unloaded(changes: list[tuple[bool, list[str]]]) -> None:
    shelf, out = Shelf(), set[str]()
    for load, names in changes:
        shelf = shelf.load(names) if load else shelf.unload(names)
        out = out.difference(names) if load else out.union(names)
    assert shelf == Shelf(len(changes), tuple(sorted(out)))


def test_names_keep_their_numbers() -> None:
    shelf = Shelf().named(["b", "a"]).named(["a", "c"])
    assert shelf.names == ("b", "a", "c")
    assert shelf.unload(["a"]).names == shelf.names


@given(NAMES, NAMES, NAMES)
def test_a_shelf_like_another_serves_the_same_and_keeps_its_own_numbers(
    names: list[str], unloaded: list[str], others: list[str]
) -> None:
    mine, other = Shelf().named(names), Shelf().named(others).load([]).unload(unloaded)
    found = mine.like(other)
    assert (found.generation, found.unloaded, found.names) == (other.generation, other.unloaded, mine.names)
