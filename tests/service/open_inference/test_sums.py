"""Statistics of several instances are those that one would have that did all of their work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.routes.open_inference_statistics import Statistics
from service.routes.open_inference_sums import summed

EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["failed", "executed", "answered"]), st.integers(1, 64)), max_size=20
)


@given(EVENTS)
def test_sums_are_what_one_instance_would_report(events: list[tuple[int, str, int]]) -> None:
    now = [0.0]

    def clock() -> float:
        return now[0]

    parts = [Statistics(wall_clock=clock) for _ in range(3)]
    whole = Statistics(wall_clock=clock)
    for which, what, number in events:
        now[0] += 1
        for one in (parts[which], whole):
            # Sixteenths of seconds add up exactly.
            if what == "failed":
                one.failed("m", number / 16)
            elif what == "executed":
                one.executed("m", number, number / 16, number / 8)
            else:
                one.answered("m", number, number / 16, number / 8, 0.25, 0.5)
    assert summed([part.report("m", "1") for part in parts]) == whole.report("m", "1")
