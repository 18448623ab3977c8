import contextvars
import threading

import pytest

from dspy_combee.runtime.hedge import HedgePolicy, Wave

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


def test_the_callers_context_holds():
    mark = contextvars.ContextVar("mark", default="none")
    mark.set("here")
    assert Wave(1, QUICK).call(lambda attempt: mark.get()) == "here"


@pytest.mark.parametrize(("arguments", "message"), [({"factor": 1}, "above 1"), ({"finished_fraction": 0}, "above 0")])
def test_wrong_numbers_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        HedgePolicy(**arguments)
