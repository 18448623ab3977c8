import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import threading

import dspy
import pytest
from dspy.utils.callback import BaseCallback
from dspy.utils.callback_context import ACTIVE_CALL_ID

from dspy_combee.errors import BudgetExhausted
from dspy_combee.runtime.adaptive_limit import AdaptiveLimit
from dspy_combee.runtime.execution.threads import ThreadExecutor, default_num_workers
from dspy_combee.testing import scripted_lm

both = pytest.mark.parametrize("num_workers", [1, 4])


@both
def test_outcomes_come_in_item_order_and_errors_are_outcomes(num_workers):
    seen = []
    outcomes = ThreadExecutor(num_workers).run(lambda item: 10 // item, [5, 0, 2], on_done=seen.append)
    assert [outcome.value for outcome in outcomes] == [2, None, 5]
    assert isinstance(outcomes[1].error, ZeroDivisionError)
    assert [outcome.index for outcome in outcomes] == [0, 1, 2]
    assert sorted(outcome.index for outcome in seen) == [0, 1, 2]


@both
def test_no_items_give_no_outcomes(num_workers):
    assert ThreadExecutor(num_workers).run(str, []) == []


def test_as_many_items_run_at_once_as_there_are_workers():
    together = threading.Barrier(4)
    ThreadExecutor(4).run(lambda _: together.wait(), range(8))
    with pytest.raises(threading.BrokenBarrierError):
        raise ThreadExecutor(3).run(lambda _: together.wait(timeout=0.05), range(4))[0].error


def test_slow_item_does_not_hold_up_the_report_of_the_others():
    fast_one_reported = threading.Event()

    def report(outcome):
        if outcome.index == 1:
            fast_one_reported.set()

    outcomes = ThreadExecutor(2).run(lambda item: item or fast_one_reported.wait(), [0, 1], on_done=report)
    assert [outcome.value for outcome in outcomes] == [True, 1]


@both
def test_on_done_runs_in_the_callers_thread(num_workers):
    threads = []
    ThreadExecutor(num_workers).run(str, range(3), on_done=lambda _: threads.append(threading.get_ident()))
    assert set(threads) == {threading.get_ident()}


@both
def test_seconds_are_of_the_injected_clock(num_workers):
    ticks = iter(range(0, 100, 5))
    outcomes = ThreadExecutor(num_workers, clock=lambda: next(ticks)).run(str, ["a"])
    assert outcomes[0].seconds == 5


@both
def test_each_item_runs_under_the_callers_dspy_context(num_workers):
    lm = scripted_lm(lambda prompt, _: prompt.strip()[-1])
    with dspy.context(lm=lm, trace=[]):
        outcomes = ThreadExecutor(num_workers).run(lambda item: dspy.settings.lm(item), "abc")
    assert [outcome.value for outcome in outcomes] == [["a"], ["b"], ["c"]]
    assert dspy.settings.lm is None


@both
def test_what_one_item_sets_in_its_context_no_other_sees(num_workers):
    variable = contextvars.ContextVar("variable", default="clean")

    def leave_a_mark(_):
        before = variable.get()
        variable.set("dirty")
        return before

    outcomes = ThreadExecutor(num_workers).run(leave_a_mark, range(20))
    assert {outcome.value for outcome in outcomes} == {"clean"}
    assert variable.get() == "clean"


@both
def test_usage_and_trace_of_the_items_arrive_where_the_run_was_started(num_workers):
    reply = "[[ ## answer ## ]]\nx\n\n[[ ## completed ## ]]"
    predict = dspy.Predict("question -> answer")
    with dspy.context(lm=scripted_lm(lambda *_: reply), trace=[]), dspy.track_usage() as tracker:
        ThreadExecutor(num_workers).run(lambda question: predict(question=question), "abc")
        assert sorted(inputs["question"] for _, inputs, _ in dspy.settings.trace) == ["a", "b", "c"]
    assert len(tracker.usage_data["fake/scripted"]) == 3


@both
def test_calls_of_the_items_have_the_callers_call_as_their_parent(num_workers):
    parents = []

    class NoteParent(BaseCallback):
        def on_lm_start(self, call_id, instance, inputs):
            parents.append(ACTIVE_CALL_ID.get())

    class Outer(dspy.Module):
        def forward(self):
            own_id = ACTIVE_CALL_ID.get()
            ThreadExecutor(num_workers).run(lambda item: dspy.settings.lm(item), "ab")
            return own_id

    with dspy.context(lm=scripted_lm(lambda *_: "x"), callbacks=[NoteParent()]):
        own_id = Outer()()
    assert own_id is not None
    assert parents == [own_id, own_id]


@pytest.mark.parametrize("error", [KeyboardInterrupt, BudgetExhausted("max_lm_calls", limit=2, spent=2)])
@both
def test_base_exception_of_an_item_stops_the_run_and_is_raised_again(num_workers, error):
    started, seen = [], []

    def fail_at_two(item):
        started.append(item)
        if item == 2:
            raise error
        return item

    with pytest.raises(BaseException) as caught:
        ThreadExecutor(num_workers).run(fail_at_two, range(1000), on_done=seen.append)
    assert caught.type is (error if isinstance(error, type) else type(error))
    assert len(started) < 1000
    assert sorted(outcome.index for outcome in seen) == [item for item in sorted(started) if item != 2]


def test_items_in_flight_are_finished_and_reported_after_a_base_exception():
    in_flight, failed = threading.Event(), threading.Event()
    seen = []

    def work(item):
        if item == 0:
            in_flight.set()
            failed.wait()
            return "paid for"
        in_flight.wait()
        try:
            raise SystemExit
        finally:
            failed.set()

    with pytest.raises(SystemExit):
        ThreadExecutor(2).run(work, [0, 1], on_done=seen.append)
    assert [outcome.value for outcome in seen] == ["paid for"]


@both
def test_error_of_on_done_stops_the_run(num_workers):
    started, refused = [], threading.Event()

    def work(item):
        started.append(item)
        return item == 0 or refused.wait()

    def refuse(outcome):
        refused.set()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        ThreadExecutor(num_workers).run(work, range(100_000), on_done=refuse)
    assert len(started) < 100_000


INTERRUPTED = """
import os, signal, threading, time
from dspy_combee.runtime.execution.threads import ThreadExecutor
release, started, seen = threading.Event(), [], []
def work(item):
    started.append(item)
    if item == 3:
        os.kill(os.getpid(), signal.SIGINT)
    release.wait()
    return item
def report(outcome):
    seen.append(outcome.index)
class ReleaseOnWarning(__import__("logging").Handler):
    def emit(self, record):
        release.set()
__import__("logging").getLogger("dspy_combee").addHandler(ReleaseOnWarning())
try:
    ThreadExecutor(4).run(work, range(100), on_done=report)
except KeyboardInterrupt:
    print(sorted(started), sorted(seen))
"""

LEFT = """
import os, signal, threading, logging
from dspy_combee.runtime.execution.threads import ThreadExecutor
class InterruptAgain(logging.Handler):
    def emit(self, record):
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
logging.getLogger("dspy_combee").addHandler(InterruptAgain())
started = threading.Barrier(3)
def hang(item):
    if started.wait() == 0:
        os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()
try:
    ThreadExecutor(3).run(hang, range(9))
except KeyboardInterrupt:
    print("left")
"""


def run_script(code):
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout


def test_sigint_starts_nothing_new_and_reports_the_calls_in_flight():
    assert run_script(INTERRUPTED) == "[0, 1, 2, 3] [0, 1, 2, 3]\n"


def test_second_sigint_leaves_calls_that_hang_and_the_process_can_end():
    assert run_script(LEFT) == "left\n"


def test_runs_from_a_worker_thread_and_inside_a_running_loop_and_nested():
    def inner(item):
        return [outcome.value for outcome in ThreadExecutor(2).run(lambda number: number + item, [1, 2, 3])]

    def outer():
        return [outcome.value for outcome in ThreadExecutor(2).run(inner, [10, 20, 30])]

    async def in_loop():
        return outer(), await asyncio.to_thread(outer)

    expected = [[11, 12, 13], [21, 22, 23], [31, 32, 33]]
    assert outer() == expected
    assert asyncio.run(in_loop()) == (expected, expected)


@pytest.mark.parametrize(
    ("num_workers", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_bad_number_of_workers_is_refused(num_workers, error):
    with pytest.raises(error, match="num_workers must be"):
        ThreadExecutor(num_workers)


def test_default_is_dspys_own_number_of_threads():
    with dspy.context(num_threads=5):
        assert default_num_workers() == 5


def test_rate_limit_errors_of_items_lower_the_shared_limit():
    limit = AdaptiveLimit(8)
    lm = scripted_lm(lambda *_: dspy.lm15.RateLimitError("429"))
    with dspy.context(lm=lm):
        ThreadExecutor(8, limit=limit).run(lambda item: dspy.settings.lm(item), "abcdefgh")
    assert limit.current == 4


def test_shared_limit_bounds_what_runs_at_once_and_nested_runs_do_not_lock_up():
    limit = AdaptiveLimit(2)
    lm = scripted_lm(lambda *_: "x")

    def outer(item):
        lm(str(item))
        return len(ThreadExecutor(2, limit=limit).run(str, range(3)))

    outcomes = ThreadExecutor(6, limit=limit).run(outer, range(12))
    assert [outcome.value for outcome in outcomes] == [3] * 12
    assert lm.engine.most_at_once <= 2


def test_signal_handler_is_left_alone():
    before = signal.getsignal(signal.SIGINT)
    ThreadExecutor(2).run(str, range(3))
    assert signal.getsignal(signal.SIGINT) is before
