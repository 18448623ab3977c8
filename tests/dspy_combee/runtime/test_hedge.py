import contextvars
import threading
import time

import pytest

from dspy_combee.errors import BudgetExhausted
from dspy_combee.runtime.hedge import HedgePolicy, Pace, Wave

QUICK = HedgePolicy(factor=2.0, minimum_seconds=0.0, poll_seconds=0.001)


def test_a_call_that_is_quick_is_made_once():
    attempts = []
    assert Wave(4, QUICK).call(lambda attempt: attempts.append(attempt) or "x") == "x"
    assert attempts == [0]


class Straggling:
    """A call whose first attempt waits for the end of the test, in a wave whose others took no time."""

    def __init__(self, second):
        self.wave, self.release, self.attempts, self.second = Wave(2, QUICK), threading.Event(), [], second
        self.wave.call(lambda attempt: None)

    def __call__(self, attempt):
        self.attempts.append(attempt)
        if attempt == 0:
            self.release.wait(60)
            return "first"
        return self.second(self)


def test_the_second_answer_wins_where_the_first_straggles():
    slow = Straggling(lambda self: "second")
    try:
        assert slow.wave.call(slow) == "second"
        assert slow.attempts == [0, 1]
    finally:
        slow.release.set()


def test_an_error_of_the_second_attempt_leaves_the_first_to_answer():
    def fail(self):
        self.release.set()
        raise ValueError("second")

    slow = Straggling(fail)
    assert slow.wave.call(slow) == "first"


def test_an_error_is_raised_when_no_attempt_is_left():
    with pytest.raises(ValueError, match="broken"):
        Wave(2, QUICK).call(lambda attempt: (_ for _ in ()).throw(ValueError("broken")))


def test_an_interrupt_is_raised_at_once():
    def interrupt(self):
        raise KeyboardInterrupt

    slow = Straggling(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            slow.wave.call(slow)
    finally:
        slow.release.set()


def test_a_refused_second_request_leaves_the_first_to_answer():
    def refuse(self):
        self.release.set()
        raise BudgetExhausted("max_lm_calls", limit=1, spent=1)

    slow = Straggling(refuse)
    assert slow.wave.call(slow) == "first"


def test_a_refusal_is_raised_when_no_attempt_is_left():
    with pytest.raises(BudgetExhausted):
        Wave(2, QUICK).call(lambda attempt: (_ for _ in ()).throw(BudgetExhausted("max_lm_calls", limit=1, spent=1)))


class Slow:
    """A call whose first attempt takes 0.2 s or ends with the second, and a wave of one or more for it."""

    def __init__(self, size=1):
        self.wave, self.began, self.end = Wave(size, QUICK), [], threading.Event()

    def __call__(self, attempt):
        self.began.append(time.monotonic())
        if attempt == 0:
            self.end.wait(0.2)
        self.end.set()


def test_a_call_without_siblings_is_asked_again_at_so_many_times_the_usual_seconds():
    alone, began = Slow(), time.monotonic()
    alone.wave.call(alone, usual_seconds=0.02)
    _, second = alone.began
    assert second - began >= QUICK.factor * 0.02


@pytest.mark.parametrize("options", [{}, {"usual_seconds": 0, "is_allowed": lambda: False}, {"usual_seconds": 1000}])
def test_a_call_is_made_once_without_a_pace_without_leave_and_below_the_usual_seconds(options):
    alone = Slow()
    alone.wave.call(alone, **options)
    assert len(alone.began) == 1


def test_finished_siblings_count_more_than_the_usual_seconds():
    slow = Slow(size=2)
    slow.wave.call(lambda attempt: "sibling")
    slow.wave.call(slow, usual_seconds=1000)
    assert len(slow.began) == 2


def test_a_failed_sibling_says_nothing_about_the_usual_time():
    slow = Slow(size=2)
    with pytest.raises(ValueError, match="refused at once"):
        slow.wave.call(lambda attempt: (_ for _ in ()).throw(ValueError("refused at once")))
    slow.wave.call(slow)
    assert len(slow.began) == 1


@pytest.mark.parametrize(("chars", "seconds"), [(100, 2.0), (50, 2.0), (300, 6.0)])
def test_pace_grows_with_what_a_call_reads_and_never_falls(chars, seconds):
    assert Pace(seconds=2.0, chars=100).seconds_for(chars) == seconds


def test_the_callers_context_holds():
    mark = contextvars.ContextVar("mark", default="none")
    mark.set("here")
    assert Wave(1, QUICK).call(lambda attempt: mark.get()) == "here"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"factor": 1}, "factor must be above 1"),
        ({"finished_fraction": 0}, "finished_fraction must be above 0"),
        ({"minimum_seconds": -1}, "minimum_seconds must be at least 0"),
        ({"poll_seconds": 0}, "poll_seconds must be above 0"),
    ],
)
def test_wrong_numbers_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        HedgePolicy(**arguments)
