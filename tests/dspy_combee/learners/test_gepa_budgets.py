"""Budgets, estimates and early ends over dspy.GEPA."""

import logging
import re
import threading

import dspy
import pytest
from gepa_lessons import teach

from dspy_combee.aggregation.scan import Scan
from dspy_combee.aggregation.waves import CallRunner
from dspy_combee.learners.gepa_stopping import IDLE_ITERATIONS
from dspy_combee.runtime.budget import Budget, Price
from dspy_combee.runtime.retry import RetryPolicy
from dspy_combee.testing import asks_for_lessons, lessons_reply


def follow_rules(prompt, _number):
    question = re.findall(r"q(\d+)", prompt)[-1]
    text = question if f"q{question} answer {question}" in prompt else "zzz"
    return f"[[ ## answer ## ]]\n{text}\n\n[[ ## completed ## ]]"


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


def test_a_run_that_spends_nothing_is_given_up(make_world):
    """GEPA itself would go round for ever: nothing that it counts moves."""

    class Nothing:
        def sample_tasks(self, state, candidate_selector, batch_sampler, trainset):
            rounds.append(state.i)
            return []

    world, rounds = make_world(), []
    optimizer = world.combee(gepa={"gepa_kwargs": {"sampling_strategy": Nothing()}})
    world.compile(optimizer)
    assert optimizer.last_result.stop_reason == "no_improvement"
    assert optimizer.last_result.spend.metric_calls == len(world.val)
    assert len(rounds) == IDLE_ITERATIONS


@pytest.mark.parametrize(("limit", "is_warned"), [(51, True), (52, False)])
def test_a_budget_for_less_than_three_proposals_is_warned_of(make_world, caplog, limit, is_warned):
    """Four examples validate the student; a proposal takes a batch of six before and after, and four to validate it."""
    world = make_world()
    at_once = {"gepa_kwargs": {"stop_callbacks": lambda state: True}}
    world.compile(world.combee(batch_size=6, gepa={"max_metric_calls": limit, **at_once}))
    warned = [r.getMessage() for r in caplog.records if "allows about" in r.getMessage()]
    assert [text.startswith(f"The budget of {limit} metric calls allows about 2") for text in warned] == [
        True
    ] * is_warned


def test_reflection_calls_have_a_limit_of_their_own(make_world):
    rollouts, reflections = threading.Barrier(4), threading.Barrier(2)

    def task(prompt, number):
        if number <= 4:
            rollouts.wait(60)
        return follow_rules(prompt, number)

    def reflect(prompt, number):
        if number <= 2:
            reflections.wait(60)
        return teach(prompt, number)

    world = make_world(task=task, reflect=reflect)
    scan = Scan(runner=CallRunner(hedge=None))
    optimizer = world.combee(num_threads=2, batch_size=12, aggregation=scan, gepa={"num_threads": 4})
    world.compile(optimizer)
    assert optimizer.last_result.rounds[0].is_accepted
    assert world.reflect_engine.most_at_once == 2
