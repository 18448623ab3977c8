"""Odd metrics, odd data and programs that cannot run over dspy.GEPA: used, warned of, or refused by name."""

import math
import re

import dspy
import numpy as np
import pytest

from dspy_combee.errors import CombeeError, MetricError
from dspy_combee.metrics import five_argument_metric


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


@pytest.mark.parametrize("batch_size", [2, 8])
def test_an_unsteady_judge_is_asked_once_a_rollout(make_world, batch_size):
    judged = []

    def judge(gold, pred):
        judged.append(pred)
        return {"score": len(judged) / 1_000, "feedback": f"verdict {len(judged)}"}

    world = make_world(metric=five_argument_metric(judge))
    optimizer = world.combee(gepa={"max_metric_calls": 40}, batch_size=batch_size)
    world.compile(optimizer)
    result = optimizer.last_result
    assert len(judged) == result.spend.metric_calls
    assert all(
        f"verdict {source.score * 1_000:.0f}" == source.feedback for source in result.provenance.sources.values()
    )
    assert result.provenance.sources


def test_a_score_above_the_perfect_one_is_warned_of_once(make_world, caplog):
    world = make_world(metric=lambda g, p, t=None, n=None, s=None: 40.0)
    world.compile(world.combee())
    warnings = [r for r in caplog.records if "set perfect_score" in r.getMessage()]
    assert len(warnings) == 1


def test_empty_feedback_is_warned_of_once_with_numbers(make_world, caplog):
    world = make_world(metric=lambda g, p, t=None, n=None, s=None: float(p.answer == g.answer))
    world.compile(world.combee())
    (warning,) = (r.getMessage() for r in caplog.records if "feedback texts are empty" in r.getMessage())
    empty, all_texts = map(int, re.match(r"(\d+) of (\d+) feedback texts are empty", warning).groups())
    assert 0 < empty == all_texts


def test_examples_without_inputs_are_refused_before_any_call(make_world):
    world = make_world(train=[dspy.Example(question="q", answer="a")] * 4)
    with pytest.raises(ValueError, match=r"trainset\[0\] has none; call .with_inputs"):
        world.compile(world.combee())
    assert world.task_engine.calls == 0


@pytest.mark.parametrize("field", ["train", "val"])
def test_one_example_without_inputs_among_others_is_named(make_world, some_examples, field):
    rows = some_examples(0, 1, 2)
    rows.insert(2, dspy.Example(question="q9", answer="9"))
    world = make_world(**{field: rows})
    with pytest.raises(ValueError, match=rf"{field}set\[2\] has none; call .with_inputs"):
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
