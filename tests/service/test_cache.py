from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.cache import Cache


def test_the_value_used_longest_ago_goes_first() -> None:
    cache: Cache[str, int] = Cache(3)
    for name in "abc":
        cache.put(name, ord(name), 1)
    assert cache.get("a") == ord("a")
    cache.put("d", ord("d"), 1)
    assert [cache.get(name) is None for name in "abcd"] == [False, True, False, False]


def test_a_value_larger_than_the_cache_is_not_kept_and_drops_nothing() -> None:
    cache: Cache[str, int] = Cache(3)
    cache.put("a", 1, 3)
    cache.put("b", 2, 4)
    assert cache.get("a") == 1
    assert cache.get("b") is None


def test_a_value_put_again_counts_once() -> None:
    cache: Cache[str, int] = Cache(10)
    cache.put("a", 1, 4)
    cache.put("a", 2, 6)
    assert (cache.get("a"), cache.bytes, len(cache)) == (2, 6, 1)
    cache.clear()
    assert (cache.get("a"), cache.bytes, len(cache)) == (None, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12))))
def test_the_bound_holds_whatever_comes(entries: list[tuple[int, int]]) -> None:
    cache: Cache[int, int] = Cache(10)
    for key, size in entries:
        cache.put(key, size, size)
        assert cache.bytes <= 10
    kept = [cache.get(key) or 0 for key in range(10)]
    assert sum(kept) == cache.bytes


def test_what_is_not_asked_for_from_one_sweep_to_the_next_goes() -> None:
    cache: Cache[str, int] = Cache(10)
    cache.put("a", 1, 3)
    cache.put("b", 2, 3)
    cache.sweep()
    assert cache.get("a") == 1
    cache.put("c", 3, 3)
    cache.sweep()
    assert [cache.get(name) for name in "abc"] == [1, None, 3]
    assert (cache.bytes, len(cache)) == (6, 2)
    cache.sweep()
    cache.sweep()
    assert (cache.bytes, len(cache)) == (0, 0)


@given(st.lists(st.one_of(st.tuples(st.integers(0, 9), st.integers(1, 5)), st.none())))
def test_bytes_are_those_of_what_is_kept_whatever_is_swept(steps: list[tuple[int, int] | None]) -> None:
    cache: Cache[int, int] = Cache(12)
    for step in steps:
        if step is None:
            cache.sweep()
        else:
            cache.put(*step, step[1])
        assert 0 <= cache.bytes <= 12
    assert cache.bytes == sum(cache.get(key) or 0 for key in range(10))
