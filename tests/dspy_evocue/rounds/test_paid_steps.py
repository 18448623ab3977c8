"""Steps are paid for once, in order, within the budget, and an outage ends a run instead of filling it with noise."""

import contextlib
import threading

import pytest
from dspy.lm15 import RateLimitError
from dspy.utils.exceptions import LMRateLimitError

from dspy_combee.errors import BudgetExhausted, LMUnavailableError, MetricError
from dspy_combee.runtime.budget import Budget, Meter, Spend
from dspy_combee.testing import scripted_lm
from dspy_evocue.missing_scores import MissingScore
from dspy_evocue.rounds.faults import FAILURES_IN_A_ROW, FaultWatch
from dspy_evocue.rounds.paid_steps import PaidSteps, Step
from dspy_evocue.rounds.step_log import KeptStep, StepLog

DOWN = MissingScore("model", "503")


def steps(results, kept, *, known=(), metric_calls=0):
    return [
        Step(
            run=lambda result=result: result,
            keep=lambda value, spend, index=index: kept.append((index, value)),
            known=result if index in known else None,
            metric_calls=metric_calls,
        )
        for index, result in enumerate(results)
    ]


def missing_of(result):
    return result if isinstance(result, MissingScore) else None


def paid(threads=4, budget=None):
    return PaidSteps(Meter(budget), num_threads=threads, progress=False)


def test_results_come_in_the_order_of_the_steps_and_known_ones_are_not_run():
    kept = []
    results = paid().run("stage", steps(list("abcdef"), kept, known={1, 4}))
    assert results == list("abcdef")
    assert sorted(kept) == [(0, "a"), (2, "c"), (3, "d"), (5, "f")]


def test_a_budget_of_scored_runs_counts_what_is_in_flight():
    kept, running = [], threading.Barrier(2)

    account = paid(threads=3, budget=Budget(max_metric_calls=5))

    def score_two():
        running.wait()
        account.meter.count_metric_calls(2)
        return "done"

    three = [Step(run=score_two, keep=lambda value, spend: kept.append(value), metric_calls=2) for _ in range(3)]
    with pytest.raises(BudgetExhausted, match="max_metric_calls=5"):
        account.run("stage", three)
    assert kept == ["done", "done"]


def test_fewer_steps_run_at_once_after_rate_limits_that_the_program_swallowed(caplog):
    refused, pairs, lock, running, most = threading.Barrier(4), threading.Barrier(2), threading.Lock(), [], []

    def reply(prompt, number):
        if number <= 4:
            refused.wait(60)
            return RateLimitError("429")
        return "fine"

    lm = scripted_lm(reply)

    def swallow():
        with contextlib.suppress(LMRateLimitError):
            lm("prompt")
        return "done"

    def meet():
        with lock:
            running.append(lm("prompt"))
            most.append(len(running))
        pairs.wait(60)
        with lock:
            running.pop()
        return "done"

    account = paid(threads=4)
    account.run("stage", [Step(run=swallow, keep=lambda value, spend: None) for _ in range(4)])
    account.run("stage", [Step(run=meet, keep=lambda value, spend: None) for _ in range(12)])
    assert max(most) == 2
    assert [r.getMessage().endswith("Set num_threads=2 to start there.") for r in caplog.records] == [True]


def test_what_finished_is_kept_when_a_step_raises():
    kept = []
    some = steps(["a", "b"], kept)

    def broken():
        raise ZeroDivisionError("no way on")

    with pytest.raises(ZeroDivisionError, match="no way on"):
        paid(threads=1).run("stage", [some[0], Step(run=broken, keep=some[1].keep), some[1]])
    assert kept == [(0, "a")]


def test_failures_of_the_model_are_kept_once_it_answers_again():
    kept = []
    account = paid(threads=1)
    account.run("stage", steps(["fine", DOWN, DOWN], kept), missing=missing_of)
    assert kept == [(0, "fine")]
    account.run("stage", steps(["fine"], kept), missing=missing_of)
    assert kept == [(0, "fine"), (0, "fine"), (1, DOWN), (2, DOWN)]


def test_an_outage_from_the_start_ends_the_stage_and_keeps_nothing():
    kept = []
    with pytest.raises(LMUnavailableError, match="3 runs in a row have no score"):
        paid(threads=1).run("stage", steps([DOWN] * 5, kept), missing=missing_of)
    assert kept == []


def test_a_few_failures_among_successes_are_data():
    watch = FaultWatch()
    assert watch.observe(None, of_stage=20) is None
    for _ in range(FAILURES_IN_A_ROW - 1):
        assert watch.observe(DOWN, of_stage=20) is None
    assert isinstance(watch.observe(DOWN, of_stage=20), LMUnavailableError)


@pytest.mark.parametrize(
    ("kind", "error"), [("model", LMUnavailableError), ("metric", MetricError), ("replay", None), ("environment", None)]
)
def test_the_kind_of_a_failure_decides_whether_the_run_ends_and_its_words_do_not(kind, error):
    watch = FaultWatch()
    words = "the language model failed: the metric raised"
    found = [watch.observe(MissingScore(kind, words), of_stage=20) for _ in range(3)]
    assert type(found[-1]) is (error or type(None))


def test_a_step_log_is_read_again_by_the_next_process(tmp_path):
    step = KeptStep("round 1/cards", "knowledge cards", {"cards": []}, Spend(lm_calls=2))
    StepLog(str(tmp_path)).keep(step)
    again = StepLog(str(tmp_path))
    assert again.find("round 1/cards") == step
    assert again.find("round 2/cards") is None
