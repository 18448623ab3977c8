import random
import re
import threading

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspy_combee.aggregation import make_aggregation
from dspy_combee.aggregation.base import Aggregation
from dspy_combee.aggregation.scan import Scan
from dspy_combee.aggregation.single_pass import SinglePass
from dspy_combee.aggregation.waves import Call, CallRunner
from dspy_combee.errors import ReflectionError
from dspy_combee.learners.base import Entry, Reflection, TextUpdate
from dspy_combee.runtime.execution.threads import ThreadExecutor
from dspy_combee.runtime.retry import RetryPolicy

WITHOUT_WAITS = CallRunner(retry=RetryPolicy(sleep=lambda seconds: None), hedge=None)


def cited(result):
    return {rid for entry in result.update.entries for rid in entry.record_ids}


def items_in(prompt):
    return len(re.findall("<r", prompt))


def test_all_records_reach_the_update_through_two_levels(make_bench):
    bench = make_bench()
    (result,) = bench.run(Scan(), bench.job(25))
    assert cited(result) == {f"r{n}" for n in range(25)}
    assert [call.stage for call in result.calls] == ["level 1"] * 5 + ["level 2"]
    assert (result.uncited, result.note) == ((), "")


def test_a_level_of_all_components_is_one_wave(make_bench):
    arrived, everybody = [], threading.Event()

    def meet(prompt, number):
        arrived.append(number)
        if len(arrived) >= 15:
            everybody.set()
        assert everybody.wait(20)
        return "line"

    bench = make_bench(reply=meet)
    bench.run(Scan(), *(bench.job(25, component) for component in "abc"))
    assert bench.engine.most_at_once == 15
    assert bench.engine.calls == 15 + 3


def test_the_callers_context_holds_in_every_worker(make_bench):
    seen = []

    def note(reflections):
        seen.append((dspy.settings.lm, dspy.settings.combee_test))
        return TextUpdate((Entry("x", reflections[0].record_ids),))

    bench = make_bench()
    job = bench.job(16)
    with dspy.context(combee_test="here"):
        bench.run(Scan(), type(job)(job.component, job.reflections, note))
    assert len(seen) == 5
    assert len({id(lm) for lm, _ in seen}) == 1
    assert {mark for _, mark in seen} == {"here"}


class FailingGroups:
    """An engine's script that fails for the first calls that see one of these records, then works."""

    def __init__(self, records, error, times=1000):
        self.records, self.error, self.left = set(records), error, times
        self.lock = threading.Lock()

    def __call__(self, prompt, _number):
        found = set(re.findall(r"r\d+", prompt))
        with self.lock:
            if found & self.records and self.left > 0:
                self.left -= 1
                return self.error
        return "\n".join(sorted(found))


def test_records_of_a_failed_group_are_dealt_anew(make_bench):
    bench = make_bench(reply=FailingGroups({"r3"}, dspy.lm15.InvalidRequestError("too long"), times=2))
    (result,) = bench.run(Scan(runner=WITHOUT_WAITS), bench.job(16))
    assert cited(result) == {f"r{n}" for n in range(16)}
    assert "level 1, dealt anew" in [call.stage for call in result.calls]
    assert sum(call.error is not None for call in result.calls) == 2


def test_one_poisonous_record_loses_nothing_but_itself(make_bench):
    bench = make_bench(reply=FailingGroups({"r3"}, dspy.lm15.InvalidRequestError("bad")))
    (result,) = bench.run(Scan(duplication=1, group_size=2, runner=WITHOUT_WAITS), bench.job(16))
    assert cited(result) == {f"r{n}" for n in range(16)} - {"r3"}
    assert result.uncited == ("r3",)


def fails_above(size, error):
    def reply(prompt, _number):
        if items_in(prompt) and prompt.count("\n") + 1 > 0 and "level2" in prompt:
            return error
        return "level2 " + " ".join(sorted(set(re.findall(r"r\d+", prompt))))

    return reply


def test_a_failed_last_call_is_stood_in_for_by_the_best_supported_update(make_bench):
    bench = make_bench(reply=fails_above(4, dspy.lm15.InvalidRequestError("no")))
    (result,) = bench.run(Scan(duplication=1, runner=WITHOUT_WAITS), bench.job(17))
    assert len(cited(result)) == 5
    assert "best supported one stands in" in result.note


def test_a_failed_last_call_is_joined_in_code_where_updates_can_be(make_bench):
    def join(updates):
        return TextUpdate(tuple(entry for update in updates for entry in update.entries))

    bench = make_bench(reply=fails_above(4, dspy.lm15.InvalidRequestError("no")))
    (result,) = bench.run(Scan(runner=WITHOUT_WAITS), bench.job(16, join=join))
    assert cited(result) == {f"r{n}" for n in range(16)}
    assert "joined in code" in result.note


def test_empty_updates_are_dropped(make_bench):
    bench = make_bench(reply=lambda prompt, n: "" if "r3" in prompt else "\n".join(re.findall(r"r\d+", prompt)))
    (result,) = bench.run(Scan(duplication=1, runner=WITHOUT_WAITS), bench.job(16))
    assert len(cited(result)) == 12
    assert "r3" in result.uncited


def test_a_job_whose_calls_all_fail_gives_nothing_and_does_not_raise(make_bench):
    bench = make_bench(reply=lambda *_: dspy.lm15.InvalidRequestError("bad"))
    good, bad = make_bench(), bench
    (result,) = bad.run(Scan(runner=WITHOUT_WAITS), bad.job(9))
    assert result.update is None
    assert all(call.error for call in result.calls)
    assert set(result.uncited) == {f"r{n}" for n in range(9)}
    assert good.run(Scan(), good.job(0))[0].update is None


def test_rate_limits_are_retried_with_backoff(make_bench):
    waits = []
    runner = CallRunner(retry=RetryPolicy(base_seconds=1.0, sleep=waits.append), hedge=None)
    bench = make_bench(reply=lambda p, n: dspy.lm15.RateLimitError("429") if n <= 2 else "line", num_threads=1)
    (result,) = bench.run(Scan(runner=runner), bench.job(3))
    assert result.update is not None
    assert len(waits) == 2
    assert 0.5 <= waits[0] <= 1.0 <= waits[1] <= 2.0


def test_many_rate_limits_halve_the_calls_at_once_and_say_so_once(make_bench, caplog):
    refused = threading.Barrier(8)

    def busy(prompt, number):
        if number <= 8:
            refused.wait(20)
            return dspy.lm15.RateLimitError("429")
        return "line"

    bench = make_bench(reply=busy, num_threads=8)
    (result,) = bench.run(Scan(duplication=1, group_size=2, runner=WITHOUT_WAITS), bench.job(16))
    assert result.update is not None
    lines = [r.getMessage() for r in caplog.records if "rate limit" in r.getMessage()]
    assert len(lines) == 1
    assert "Set num_threads=4" in lines[0]


def test_an_unusable_reply_is_asked_for_again_without_the_cache(make_bench):
    temperatures = []

    def picky(reflections):
        temperatures.append((dspy.settings.lm.kwargs.get("rollout_id"), dspy.settings.lm.kwargs.get("temperature")))
        if len(temperatures) == 1:
            raise ReflectionError("blank")
        return TextUpdate((Entry("x"),))

    bench = make_bench(num_threads=1)
    job = bench.job(2)
    bench.run(Scan(runner=WITHOUT_WAITS), type(job)("a", job.reflections, picky))
    assert temperatures[0][0] is None
    assert temperatures[1][0] is not None
    assert temperatures[1][1]


def test_a_call_counts_what_its_updates_share_once():
    def upper(*texts):
        update = TextUpdate(tuple(Entry(text, ("r1",)) for text in texts))
        return Reflection(update.render(), ("r1",), update=update)

    assert Call(0, (Reflection("12345", ("r1",)), Reflection("123", ("r2",)))).chars == 8
    assert Call(0, (upper("12345", "123"), upper("12345"))).chars == 8


@settings(max_examples=40)
@given(
    count=st.integers(1, 60),
    fan_in=st.integers(2, 12),
    copies=st.integers(1, 3),
    group_size=st.none() | st.integers(1, 20),
    failing=st.integers(0, 6),
)
def test_no_call_ever_sees_more_than_the_fan_in(count, fan_in, copies, group_size, failing):
    sizes, calls = [], iter(range(10_000))

    def record(reflections):
        sizes.append(len(reflections))
        if next(calls) < failing:
            raise RuntimeError("broken")
        return TextUpdate((Entry("x", tuple(rid for one in reflections for rid in one.record_ids)),))

    job = make_job(count, record)
    scan = Scan(duplication=copies, group_size=group_size, max_fan_in=fan_in, runner=WITHOUT_WAITS)
    (result,) = scan.aggregate([job], executor=ThreadExecutor(1), rng=random.Random(0))
    assert max(sizes) <= fan_in
    assert sizes.count(0) == 0
    if failing == 0:
        assert cited(result) == {f"r{n}" for n in range(count)}
        assert len(sizes) <= scan.calls_for(count)


def make_job(count, curate, text="rule", **more):
    from dspy_combee.aggregation.base import AggregationJob

    reflections = tuple(Reflection(f"{text} {n}", (f"r{n}",), "a") for n in range(count))
    return AggregationJob("a", reflections, curate, **more)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=30), st.integers(200, 2000), st.integers(1, 3))
def test_no_first_level_call_sees_more_text_than_allowed(lengths, limit, copies):
    seen = []

    def record(reflections):
        if reflections[0].update is None:
            seen.append(sum(len(one.text) for one in reflections))
        return TextUpdate((Entry("x", tuple(rid for one in reflections for rid in one.record_ids)),))

    from dspy_combee.aggregation.base import AggregationJob

    reflections = tuple(Reflection("y" * length, (f"r{n}",)) for n, length in enumerate(lengths))
    scan = Scan(duplication=copies, max_reflection_chars=limit, runner=WITHOUT_WAITS)
    (result,) = scan.aggregate(
        [AggregationJob("a", reflections, record)], executor=ThreadExecutor(1), rng=random.Random(0)
    )
    assert max(seen) <= limit
    assert cited(result) == {f"r{n}" for n in range(len(lengths))}


def test_same_seed_makes_the_same_calls(make_bench):
    prompts = []
    for _ in range(2):
        bench = make_bench(num_threads=8)
        bench.run(Scan(), bench.job(30), seed=7)
        prompts.append(sorted(bench.engine.prompts))
    assert prompts[0] == prompts[1]


def test_an_interrupt_stops_further_calls(make_bench):
    bench = make_bench(reply=lambda p, n: KeyboardInterrupt() if n == 2 else "x", num_threads=1)
    with pytest.raises(KeyboardInterrupt):
        bench.run(Scan(runner=WITHOUT_WAITS), bench.job(25))
    assert bench.engine.calls == 2


def test_single_pass_shows_everything_to_one_call_a_component(make_bench, ids_in):
    bench = make_bench()
    results = bench.run(SinglePass(), bench.job(40, "a"), bench.job(0, "b"), bench.job(3, "c"))
    assert [len(ids_in(prompt)) for prompt in sorted(bench.engine.prompts, key=len, reverse=True)] == [40, 3]
    assert [result.update is not None for result in results] == [True, False, True]


def test_single_pass_shares_its_text_limit_out_evenly(make_bench):
    bench = make_bench()
    bench.run(SinglePass(max_reflection_chars=1000), bench.job(5, text="w" * 900))
    (prompt,) = bench.engine.prompts
    assert prompt.count("characters cut") == 5
    assert len(prompt) < 1200


@pytest.mark.parametrize("aggregation", [Scan(), SinglePass()])
def test_the_family_keeps_the_protocol(aggregation):
    assert isinstance(aggregation, Aggregation)
    assert make_aggregation(aggregation) is aggregation
    assert make_aggregation(aggregation.name).name == aggregation.name
    assert aggregation.calls_for(0) == 0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: make_aggregation("scam"), ValueError, "must be one of .*scan.*got 'scam'"),
        (lambda: make_aggregation(3), TypeError, "name or an Aggregation, got int"),
        (lambda: Scan(duplication=0), ValueError, "duplication must be at least 1, got 0"),
        (lambda: Scan(group_size=0), ValueError, "group_size must be at least 1 or None, got 0"),
        (lambda: Scan(max_fan_in=1), ValueError, "max_fan_in must be at least 2 or None, got 1"),
        (lambda: Scan(max_reflection_chars=10), ValueError, "at least 200, got 10"),
        (lambda: SinglePass(max_reflection_chars=10), ValueError, "at least 200 or None, got 10"),
    ],
)
def test_wrong_settings_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
