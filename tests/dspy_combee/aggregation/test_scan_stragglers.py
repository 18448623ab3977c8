"""One call that takes far longer than it should: it is asked again where that is allowed, and holds nobody."""

import re
import threading

import dspy

from dspy_combee.aggregation.scan import Scan
from dspy_combee.aggregation.waves import CallRunner
from dspy_combee.runtime.budget import Budget, Meter
from dspy_combee.runtime.hedge import HedgePolicy
from dspy_combee.runtime.retry import RetryPolicy

SOON = HedgePolicy(factor=2.0, minimum_seconds=0.3, poll_seconds=0.01)


def test_a_straggler_is_asked_a_second_time_and_holds_nobody(make_bench):
    release, slow_started = threading.Event(), []

    def slow_once(prompt, number):
        if "r7" in prompt and "\n" in prompt and not slow_started:
            slow_started.append(number)
            release.wait(60)
        return "\n".join(re.findall(r"r\d+", prompt))

    runner = CallRunner(hedge=SOON)
    bench = make_bench(reply=slow_once)
    try:
        (result,) = bench.run(Scan(duplication=1, runner=runner), bench.job(25))
        assert {rid for entry in result.update.entries for rid in entry.record_ids} == {f"r{n}" for n in range(25)}
        assert not release.is_set()
        assert bench.engine.calls == 7
    finally:
        release.set()


class SlowLastLevel:
    """An engine's script that answers at once, but for the first call of the last level, which waits to be released."""

    def __init__(self, then=None):
        self.release, self.level_two, self.then = threading.Event(), [], then
        self.lock = threading.Lock()

    def __call__(self, prompt, number):
        if "\n<" in prompt and "rule" in prompt:
            return "\n".join(re.findall(r"r\d+", prompt))
        with self.lock:
            self.level_two.append(number)
            is_first = len(self.level_two) == 1
        if is_first:
            self.release.wait(60)
            return self.then or "first r0"
        return "second r0"


def test_the_only_call_of_the_last_level_is_asked_a_second_time_by_the_pace_of_the_first(make_bench):
    slow = SlowLastLevel()
    bench = make_bench(reply=slow)
    try:
        (result,) = bench.run(Scan(runner=CallRunner(hedge=SOON)), bench.job(25))
        assert [entry.text for entry in result.update.entries] == ["second r0"]
        assert len(slow.level_two) == 2
    finally:
        slow.release.set()


def test_the_loser_of_a_second_request_is_not_tried_again(make_bench):
    slow = SlowLastLevel(then=dspy.lm15.RateLimitError("429"))
    bench = make_bench(reply=slow)
    runner = CallRunner(retry=RetryPolicy(sleep=lambda seconds: None), hedge=SOON)
    bench.run(Scan(runner=runner), bench.job(25))
    slow.release.set()
    for thread in threading.enumerate():
        if thread.name == "combee-hedged-call":
            thread.join()
    assert len(slow.level_two) == 2


def test_a_second_request_that_would_pass_the_budget_is_not_made(make_bench):
    slow = SlowLastLevel()

    class Watched(Meter):
        def affords_extra_call(self, times=1.0):
            slow.release.set()
            return super().affords_extra_call(times)

    def run(meter, reply):
        with meter.installed():
            (result,) = make_bench(reply=reply).run(Scan(runner=CallRunner(hedge=SOON)), make_bench().job(25))
        return result.update.entries[0].text

    unhurried = SlowLastLevel()
    unhurried.release.set()
    needed = Meter()
    run(needed, unhurried)
    enough_to_start = needed.spend_by_stage["aggregation, level 1"].total_tokens + 1
    meter = Watched(Budget(max_tokens=enough_to_start))
    assert run(meter, slow) == "first r0"
    assert meter.spend == needed.spend


def test_no_second_request_is_made_while_the_provider_refuses_calls(make_bench):
    class Refusing(SlowLastLevel):
        def __call__(self, prompt, number):
            return dspy.lm15.RateLimitError("429") if number <= 3 else super().__call__(prompt, number)

    slow = Refusing()
    threading.Timer(1.0, slow.release.set).start()
    bench = make_bench(reply=slow)
    runner = CallRunner(retry=RetryPolicy(sleep=lambda seconds: None), hedge=SOON)
    (result,) = bench.run(Scan(runner=runner), bench.job(25))
    assert [entry.text for entry in result.update.entries] == ["first r0"]
    assert len(slow.level_two) == 1
