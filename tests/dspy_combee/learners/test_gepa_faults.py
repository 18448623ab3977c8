"""Odd metrics, odd data, odd replies, outages and small budgets over dspy.GEPA."""

import json
import logging
import math
import re

import dspy
import numpy as np
import pytest

from dspy_combee.aggregation.scan import Scan
from dspy_combee.aggregation.waves import CallRunner
from dspy_combee.errors import CombeeError, LMUnavailableError, MetricError
from dspy_combee.metrics import five_argument_metric
from dspy_combee.runtime.budget import Budget, Price
from dspy_combee.runtime.retry import RetryPolicy
from dspy_combee.testing import asks_for_lessons, lessons_reply, scripted_response

# ---- metrics


def returning(make):
    def judge(gold, pred, trace=None, pred_name=None, pred_trace=None):
        return make(float(pred.answer == gold.answer))

    return judge


@pytest.mark.parametrize(
    "make",
    [
        float,
        bool,
        np.float64,
        lambda score: dspy.Prediction(score=score),
        lambda score: dspy.Prediction(score=score, feedback=None),
        lambda score: {"score": score, "feedback": "f"},
        lambda score: {"score": score},
    ],
)
def test_metric_results_that_are_scores_work(make_world, make):
    world = make_world(metric=returning(make))
    optimizer = world.combee(gepa={"max_metric_calls": 30})
    world.compile(optimizer)
    assert optimizer.last_result.rounds[0].entries == 6
    assert optimizer.last_result.rounds[0].batch_score_after == 1.0


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (None, "NoneType"),
        ("0.5", "str"),
        ((0.5, "f"), "tuple"),
        (math.nan, "nan"),
        (dspy.Prediction(score=None), "Prediction with a NoneType"),
        ({"feedback": "f"}, "dict with a NoneType"),
    ],
)
@pytest.mark.parametrize("num_threads", [1, 4])
def test_metric_results_that_are_no_scores_end_the_run_at_the_first_call(make_world, result, kind, num_threads):
    calls = []

    def judge(gold, pred, trace=None, pred_name=None, pred_trace=None):
        calls.append(gold)
        return result

    world = make_world(metric=judge)
    optimizer = world.combee(gepa={"num_threads": num_threads})
    with pytest.raises(
        MetricError, match=rf"metric judge must return .*{re.escape(kind)}.* for valset\[\d\]|nan for valset\[\d\]"
    ):
        world.compile(optimizer)
    assert len(calls) == 1
    assert optimizer.last_result.stop_reason == "error"
    assert "MetricError" in optimizer.last_result.error


def test_a_metric_that_always_raises_ends_the_run(make_world):
    calls = []

    def judge(gold, pred, trace=None, pred_name=None, pred_trace=None):
        calls.append(gold)
        return 1 / 0

    world = make_world(metric=judge)
    with pytest.raises(MetricError, match="raised on each of the first 3 rollouts, last ZeroDivisionError") as caught:
        world.compile(world.combee())
    assert len(calls) == 3
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_metric_that_raises_now_and_then_fails_those_examples_only(make_world):
    def judge(gold, pred, trace=None, pred_name=None, pred_trace=None):
        if gold.question == "q3":
            raise ZeroDivisionError
        return dspy.Prediction(score=float(pred.answer == gold.answer), feedback="f")

    world = make_world(metric=judge)
    optimizer = world.combee(batch_size=12)
    world.compile(optimizer)
    assert optimizer.last_result.rounds[0].records_read == 12


@pytest.mark.parametrize(
    "metric",
    [
        lambda gold, pred: float(pred.answer == gold.answer),
        lambda gold, pred, trace: float(pred.answer == gold.answer),
        lambda gold, pred, trace=None: float(pred.answer == gold.answer),
    ],
)
def test_metrics_of_two_and_three_arguments_can_be_used(make_world, metric):
    world = make_world(metric=five_argument_metric(metric))
    optimizer = world.combee(gepa={"max_metric_calls": 30})
    world.compile(optimizer)
    assert optimizer.last_result.rounds[0].batch_score_after == 1.0


def test_a_score_above_the_perfect_one_is_warned_of_once(make_world, caplog):
    world = make_world(metric=lambda g, p, t=None, n=None, s=None: 40.0)
    world.compile(world.combee())
    warnings = [r for r in caplog.records if "set perfect_score" in r.getMessage()]
    assert len(warnings) == 1


def test_empty_feedback_is_warned_of_once_with_numbers(make_world, caplog):
    world = make_world(metric=lambda g, p, t=None, n=None, s=None: float(p.answer == g.answer))
    world.compile(world.combee())
    assert len([r for r in caplog.records if "feedback texts are empty" in r.getMessage()]) == 1


# ---- data


def test_examples_without_inputs_are_refused_before_any_call(make_world):
    world = make_world(train=[dspy.Example(question="q", answer="a")] * 4)
    with pytest.raises(ValueError, match=r"trainset\[0\] has none; call .with_inputs"):
        world.compile(world.combee())
    assert world.task_engine.calls == 0


@pytest.mark.parametrize(("field", "value"), [("train", []), ("val", [])])
def test_empty_sets_are_refused(make_world, field, value):
    world = make_world(**{field: value})
    with pytest.raises(ValueError, match=f"{field}set must hold at least one example"):
        world.compile(world.combee())


def test_rows_that_are_dicts_are_refused(make_world):
    world = make_world(train=[{"question": "q", "answer": "a"}])
    with pytest.raises(TypeError, match=r"got dict at index 0; build them with dspy.Example"):
        world.compile(world.combee())


def test_a_row_without_its_gold_field_is_named(make_world, some_examples):
    rows = some_examples(0, 1, 2)
    rows.insert(2, dspy.Example(question="q9").with_inputs("question"))
    world = make_world(train=rows)
    with pytest.raises(ValueError, match=r"trainset\[2\] .* lacks \['answer'\]"):
        world.compile(world.combee())


@pytest.mark.parametrize("kind", ["none", "same", "overlap"])
def test_a_validation_set_that_was_trained_on_is_warned_of(make_world, caplog, kind):
    world = make_world()
    world.val = {"none": None, "same": world.train, "overlap": world.train[:2]}[kind]
    world.compile(world.combee(batch_size=4))
    assert any("overfit" in r.getMessage() for r in caplog.records if r.name == "dspy_combee.examples")


def test_an_async_only_program_is_refused_with_the_cure(make_world):
    class AsyncOnly(dspy.Module):
        def __init__(self):
            super().__init__()
            self.answer = dspy.Predict("question->answer")

        async def aforward(self, question):
            return await self.answer.acall(question=question)

    world = make_world()
    with pytest.raises(TypeError, match=r"dspy\.syncify"):
        world.compile(world.combee(), AsyncOnly())


def test_a_program_that_raises_on_every_example_ends_the_run(make_world):
    class Broken(dspy.Module):
        def __init__(self):
            super().__init__()
            self.answer = dspy.Predict("question->answer")

        def forward(self, question):
            raise AttributeError("no attribute 'foo'")

    world = make_world()
    optimizer = world.combee()
    with pytest.raises(
        CombeeError, match="raised on all 4 that were tried; the first error was AttributeError: no attr"
    ):
        world.compile(optimizer, Broken())
    assert optimizer.last_result.stop_reason == "error"


# ---- replies of the reflection model


BAD_REPLIES = {
    "blank": "",
    "white": "   ",
    "json blank": '{"new_instruction": "  "}',
    "json null": '{"new_instruction": null}',
    "open think": "<think>let me see, new instruction",
    "cut json": '{"new_instruction": "new instruction with the rul',
}


@pytest.mark.parametrize("reply", BAD_REPLIES.values(), ids=BAD_REPLIES.keys())
@pytest.mark.parametrize("batch_size", [3, 6])
def test_replies_that_are_always_unusable_end_the_run_and_are_never_adopted(make_world, reply, batch_size):
    world = make_world(reflect=lambda *_: reply)
    optimizer = world.combee(batch_size=batch_size, form="rewrite", gepa={"max_metric_calls": 400})
    with pytest.raises(LMUnavailableError, match="3 proposals in a row got nothing usable"):
        world.compile(optimizer)
    assert optimizer.last_result.diff == ""
    assert (
        optimizer.last_result.best_program.signature.instructions
        == dspy.Predict("question->answer").signature.instructions
    )


@pytest.mark.parametrize("batch_size", [3, 6])
def test_a_reply_that_was_cut_off_at_the_token_limit_is_not_adopted(make_world, batch_size):
    world = make_world(reflect=lambda *_: scripted_response("new instruction", finish_reason="length"))
    optimizer = world.combee(batch_size=batch_size, form="rewrite")
    with pytest.raises(LMUnavailableError, match="raise max_tokens"):
        world.compile(optimizer)


def test_an_overlong_instruction_is_not_adopted(make_world):
    world = make_world(reflect=lambda *_: json.dumps({"new_instruction": "new instruction " + "x" * 200_000}))
    optimizer = world.combee(batch_size=3)
    with pytest.raises(LMUnavailableError, match="at most 40,000 characters, got 200,016"):
        world.compile(optimizer)


@pytest.mark.parametrize(
    "reply",
    [
        "```\nnew instruction\n```",
        "```text\nnew instruction\n```",
        "[[ ## new_instruction ## ]]\nnew instruction\n\n[[ ## completed ## ]]",
        '<think>hm</think>{"new_instruction": "new instruction"}',
        '```json\n{"new_instruction": "new instruction"}\n```',
    ],
)
def test_wrapped_replies_are_accepted(make_world, reply):
    world = make_world(reflect=lambda *_: reply)
    program = world.compile(world.combee(batch_size=3))
    assert program.signature.instructions == "new instruction"


def test_the_current_instruction_as_proposal_costs_no_rollout(make_world):
    current = dspy.Predict("question->answer").signature.instructions
    world = make_world(reflect=lambda *_: json.dumps({"new_instruction": current}))
    optimizer = world.combee(batch_size=3, gepa={"max_metric_calls": 16})
    world.compile(optimizer)
    assert world.task_engine.calls == 4 + 3 * len(optimizer.last_result.rounds)


def test_a_reflection_model_that_always_raises_ends_the_run(make_world):
    world = make_world(reflect=lambda *_: dspy.lm15.ServerError("down"))
    optimizer = world.combee(gepa={"max_metric_calls": 400})
    with pytest.raises(LMUnavailableError, match=r"LMServerError: .*down"):
        world.compile(optimizer)
    assert len(optimizer.last_result.rounds) == 3


@pytest.mark.parametrize("error", [dspy.lm15.RateLimitError("429"), dspy.lm15.ServerError("503")])
def test_a_failure_that_passes_is_waited_for_and_the_run_completes(make_world, error):
    def once(prompt, number):
        return error if number == 1 else teach(prompt, number)

    world = make_world(reflect=once)
    optimizer = world.combee()
    world.compile(optimizer)
    assert len(world.waits) == 1
    assert optimizer.last_result.rounds[0].is_accepted


def teach(prompt, number):
    if asks_for_lessons(prompt):
        found = re.findall(r"\[(r\d+)\]\nInputs: question = (?:[A-Z]+ )?q(\d+)", prompt)
        return lessons_reply((rid, f"when asked q{q} answer {q}") for rid, q in found)
    return "[[ ## operations ## ]]\nNONE"


def test_a_rate_limit_that_stays_skips_the_round_and_the_run_completes(make_world):
    def busy_first(prompt, number):
        return dspy.lm15.RateLimitError("429") if number <= 12 else teach(prompt, number)

    world = make_world(reflect=busy_first)
    optimizer = world.combee(gepa={"max_metric_calls": 80})
    world.compile(optimizer)
    rounds = optimizer.last_result.rounds
    assert not rounds[0].is_accepted
    assert any(one.is_accepted for one in rounds)


def test_an_unusable_reply_is_asked_for_again_as_a_new_sample(make_world):
    world = make_world(reflect=lambda prompt, number: "" if number == 1 else '{"new_instruction": "new instruction"}')
    world.reflection_lm.cache = True
    optimizer = world.combee(batch_size=3)
    assert world.compile(optimizer).signature.instructions == "new instruction"
    assert world.reflect_engine.calls == 2


# ---- outages of the task model


@pytest.mark.parametrize("error", [dspy.lm15.RateLimitError("429"), RuntimeError("429 Too Many Requests")])
@pytest.mark.parametrize("num_threads", [1, 4])
def test_a_task_model_that_is_down_ends_the_run_instead_of_scoring_zero(make_world, error, num_threads):
    world = make_world(task=lambda *_: error)
    optimizer = world.combee(gepa={"num_threads": num_threads})
    with pytest.raises(LMUnavailableError, match=r"the last 3 calls of the program all failed.*429"):
        world.compile(optimizer)
    assert world.task_engine.calls <= 3 + num_threads
    assert optimizer.last_result.stop_reason == "error"


def test_a_task_model_that_goes_down_later_ends_the_run_with_the_best_so_far(make_world, some_examples):
    calls = iter(range(10_000))
    known = re.compile(r"q(\d+) answer \1")

    def task(prompt, _number):
        if next(calls) > 30:
            return dspy.lm15.ServerError("gone")
        question = re.findall(r"q(\d+)", prompt)[-1]
        is_known = question in known.findall(prompt)
        return f"[[ ## answer ## ]]\n{question if is_known else 'zzz'}\n\n[[ ## completed ## ]]"

    world = make_world(task=task, train=some_examples(*range(30)), val=some_examples(*range(8)))
    optimizer = world.combee(batch_size=8, gepa={"max_metric_calls": 400})
    with pytest.raises(LMUnavailableError, match="the last 20 calls"):
        world.compile(optimizer)
    assert optimizer.last_result.best_program is not None


# ---- budgets


def test_a_budget_for_no_proposal_is_warned_of_before_the_first_call(make_world, caplog):
    world = make_world()
    seen = []

    class FirstCall(logging.Handler):
        def emit(self, record):
            if "allows about 0 proposals" in record.getMessage():
                seen.append(world.task_engine.calls)

    handler = FirstCall()
    logging.getLogger("dspy_combee").addHandler(handler)
    try:
        optimizer = world.combee(gepa={"max_metric_calls": 2})
        world.compile(optimizer)
    finally:
        logging.getLogger("dspy_combee").removeHandler(handler)
    assert seen == [0]
    assert world.task_engine.calls == 4
    assert optimizer.last_result.stop_reason == "budget"


def test_a_batch_larger_than_the_train_set_is_capped_and_keeps_the_budget(make_world, some_examples):
    world = make_world(train=some_examples(*range(4)), reflect=lambda *_: lessons_reply([("r1", "be K-1")]))
    optimizer = world.combee(batch_size=50, gepa={"max_metric_calls": 40})
    world.compile(optimizer)
    assert optimizer.last_result.batch_size == 4
    assert optimizer.last_result.spend.metric_calls <= 40
    assert optimizer.last_result.stop_reason == "budget"


def test_a_perfect_score_ends_the_run(make_world, some_examples):
    world = make_world(val=some_examples(0, 1, 2))
    optimizer = world.combee(batch_size=12, gepa={"max_metric_calls": 200})
    world.compile(optimizer)
    assert optimizer.last_result.stop_reason == "perfect"
    assert len(optimizer.last_result.rounds) == 1


def test_patience_ends_the_run(make_world, some_examples):
    world = make_world(val=some_examples(100, 101))
    optimizer = world.combee(batch_size=4, patience=2, gepa={"max_metric_calls": 400})
    world.compile(optimizer)
    assert optimizer.last_result.stop_reason == "no_improvement"
    assert len(optimizer.last_result.rounds) == 2


@pytest.mark.parametrize("num_threads", [1, 4])
def test_a_budget_of_model_calls_is_never_passed(make_world, num_threads):
    world = make_world()
    optimizer = world.combee(budget=Budget(max_lm_calls=25), gepa={"num_threads": num_threads, "track_stats": True})
    program = world.compile(optimizer)
    assert world.task_engine.calls + world.reflect_engine.calls <= 25
    assert optimizer.last_result.stop_reason == "budget"
    assert program.detailed_results.candidates


def test_a_budget_of_tokens_ends_the_run(make_world):
    world = make_world()
    optimizer = world.combee(budget=Budget(max_tokens=3000))
    world.compile(optimizer)
    assert optimizer.last_result.stop_reason == "budget"
    assert optimizer.last_result.spend.total_tokens < 3000 + 1500


def test_a_budget_of_dollars_ends_the_run(make_world):
    price = Price(1000.0, 1000.0)
    world = make_world()
    budget = Budget(max_cost_usd=2.0, prices={"fake/task": price, "fake/reflection": price})
    optimizer = world.combee(budget=budget)
    world.compile(optimizer)
    assert optimizer.last_result.stop_reason == "budget"
    assert optimizer.last_result.spend.cost_usd >= 2.0


def test_an_unknown_price_is_said_and_not_taken_for_zero(make_world, caplog):
    world = make_world()
    optimizer = world.combee(budget=Budget(max_cost_usd=2.0))
    world.compile(optimizer)
    assert any("No price is known for fake/task" in r.getMessage() for r in caplog.records)
    spend = optimizer.last_result.spend
    assert spend.calls_without_price == spend.lm_calls


def test_a_budget_of_metric_calls_holds_beside_the_optimizers_own(make_world):
    world = make_world()
    optimizer = world.combee(batch_size=4, budget=Budget(max_metric_calls=20), gepa={"max_metric_calls": 400})
    world.compile(optimizer)
    assert optimizer.last_result.spend.metric_calls <= 20


@pytest.mark.parametrize("batch_size", [3, 5, "auto"])
@pytest.mark.parametrize("limit", [20, 90])
@pytest.mark.parametrize("selector", ["round_robin", "all"])
def test_no_run_takes_more_than_its_estimate(make_world, twins, batch_size, limit, selector):
    world = make_world(
        reflect=lambda p, n: (
            teach(p, n) if asks_for_lessons(p) or "operations" in p else f'{{"new_instruction": "worse {n}"}}'
        )
    )
    optimizer = world.combee(batch_size=batch_size, gepa={"max_metric_calls": limit, "component_selector": selector})
    estimate = optimizer.estimate(twins, trainset=world.train, valset=world.val)
    assert world.task_engine.calls == 0
    world.compile(optimizer, twins)
    spend = optimizer.last_result.spend
    assert spend.metric_calls <= estimate.metric_calls
    assert world.reflect_engine.calls <= estimate.aggregation_calls
    assert world.task_engine.calls <= estimate.task_calls


def test_retries_use_the_policy_of_the_aggregation(make_world):
    waits = []
    world = make_world(reflect=lambda prompt, n: dspy.lm15.RateLimitError("429") if n <= 2 else teach(prompt, n))
    runner = CallRunner(retry=RetryPolicy(attempts=4, sleep=waits.append))
    world.compile(world.combee(aggregation=Scan(runner=runner)))
    assert len(waits) == 2
