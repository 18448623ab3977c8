import logging
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.runtime.adaptive_limit import AdaptiveLimit


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_limit_halves_after_the_tolerated_errors_and_says_once_what_to_set(caplog):
    clock = Clock()
    limit = AdaptiveLimit(16, tolerated_errors=3, clock=clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            limit.observe_rate_limit()
        assert limit.current == 8
        clock.now = 10
        for _ in range(3):
            limit.observe_rate_limit()
    assert limit.current == 4
    assert len(caplog.messages) == 1
    assert "going on with 8 at once instead of 16. Set num_threads=8" in caplog.messages[0]


def test_limit_is_lowered_until_it_has_come_back():
    clock = Clock()
    limit = AdaptiveLimit(2, tolerated_errors=1, recovery_seconds=10, clock=clock)
    assert not limit.is_lowered
    limit.observe_rate_limit()
    assert limit.is_lowered
    clock.now = 10
    assert not limit.is_lowered


def test_burst_of_calls_made_before_the_halving_halves_once():
    limit = AdaptiveLimit(16, tolerated_errors=3, clock=Clock())
    for _ in range(16):
        limit.observe_rate_limit()
    assert limit.current == 8


def test_errors_that_are_far_apart_change_nothing():
    clock = Clock()
    limit = AdaptiveLimit(16, tolerated_errors=3, window_seconds=60, clock=clock)
    for clock.now in (0, 50, 100, 150):
        limit.observe_rate_limit()
    assert limit.current == 16


def test_limit_comes_back_one_step_for_each_calm_spell():
    clock = Clock()
    limit = AdaptiveLimit(4, tolerated_errors=1, recovery_seconds=60, clock=clock)
    limit.observe_rate_limit()
    seen = []
    for clock.now in (59, 60, 119, 120, 1000):
        seen.append(limit.current)
    assert seen == [2, 3, 3, 4, 4]


def test_slots_bound_what_runs_at_once_and_a_halved_limit_holds_back_the_next():
    limit = AdaptiveLimit(2, tolerated_errors=1)
    entered, leave = threading.Event(), threading.Event()
    order = []

    def second():
        with limit.slot():
            order.append("second")
            entered.set()
            leave.wait()

    thread = threading.Thread(target=second)
    with limit.slot():
        limit.observe_rate_limit()
        thread.start()
        order.append("first is still in")
    entered.wait()
    leave.set()
    thread.join()
    assert order == ["first is still in", "second"]


def test_slot_within_a_slot_waits_for_nothing():
    limit = AdaptiveLimit(1)
    with limit.slot(), limit.slot():
        pass


@given(times=st.lists(st.floats(0, 500), max_size=60), start=st.integers(1, 64))
def test_limit_stays_between_one_and_its_start(times, start):
    clock = Clock()
    limit = AdaptiveLimit(start, tolerated_errors=2, clock=clock)
    for clock.now in sorted(times):
        limit.observe_rate_limit()
        assert 1 <= limit.current <= start


@pytest.mark.parametrize(
    "arguments", [{"limit": 0}, {"limit": 2, "tolerated_errors": 0}, {"limit": 2, "window_seconds": -1}]
)
def test_bad_settings_are_refused(arguments):
    with pytest.raises(ValueError, match="must"):
        AdaptiveLimit(**arguments)
