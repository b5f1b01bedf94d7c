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
