"""What goes wrong with models, metrics, data, budgets and users: nothing paid for is lost, nothing is a silent zero."""

import logging
from dataclasses import replace

import dspy
import pytest
from dspy.lm15 import RateLimitError

from dspy_combee.errors import LMUnavailableError, MetricError
from dspy_combee.runtime.budget import Budget
from dspy_combee.runtime.retry import RetryPolicy
from dspy_combee.testing import scripted_lm
from dspy_evocue.evocue import EvoCUE

UNAVAILABLE = RuntimeError("503 service unavailable")


class NumpyLike:
    """A number as numpy has them."""

    def __init__(self, value):
        self.value = value

    def __float__(self):
        return self.value


GOOD_SHAPES = {
    "float": float,
    "bool": bool,
    "numpy": NumpyLike,
    "prediction": lambda value: dspy.Prediction(score=value),
    "prediction with no feedback": lambda value: dspy.Prediction(score=value, feedback=None),
    "dict": lambda value: {"score": value, "feedback": "f"},
}
BAD_SHAPES = {"None": None, "text": "0.5", "tuple": (0.5, "f"), "nan": float("nan")}


@pytest.mark.parametrize("name", GOOD_SHAPES)
def test_a_metric_may_return_its_score_in_any_usual_shape(bed, name):
    def metric(example, prediction):
        return GOOD_SHAPES[name](bed.metric(example, prediction))

    optimizer = bed.optimizer(metric=metric, max_rounds=1)
    program, _ = bed.compile(optimizer)
    assert len(program.evocue.edits) == 1


def test_a_metric_may_take_all_five_arguments(bed):
    taken = []

    def metric(gold, pred, trace, pred_name, pred_trace):
        taken.append((trace, pred_name, pred_trace))
        return bed.metric(gold, pred)

    program, _ = bed.compile(bed.optimizer(metric=metric, max_rounds=1))
    assert len(program.evocue.edits) == 1
    assert set(taken) == {(None, None, None)}


@pytest.mark.parametrize("name", BAD_SHAPES)
def test_a_metric_that_returns_no_score_ends_the_run_at_once(bed, name):
    optimizer = bed.optimizer(metric=lambda example, prediction, trace=None: BAD_SHAPES[name], num_threads=1)
    lm = bed.task_lm()
    with pytest.raises(MetricError, match="must return"):
        bed.compile(optimizer, lm=lm)
    assert lm.engine.calls == 1
    assert optimizer.last_result.stop_reason == "error"


def test_a_metric_that_always_raises_ends_the_run_after_a_few_calls(bed):
    def metric(example, prediction, trace=None):
        return 1 / 0

    lm = bed.task_lm()
    with pytest.raises(MetricError, match="3 in a row failed: the metric raised ZeroDivisionError"):
        bed.compile(bed.optimizer(metric=metric, num_threads=1), lm=lm)
    assert lm.engine.calls == 3


def test_a_metric_that_raises_on_some_tasks_leaves_them_missing(bed):
    def metric(example, prediction, trace=None):
        if int(example.answer) % 5 == 1:
            raise ValueError("odd one out")
        return bed.metric(example, prediction)

    optimizer = bed.optimizer(metric=metric, max_rounds=1, proposal_tasks=10)
    program, _ = bed.compile(optimizer, tasks=bed.tasks(30))
    assert len(program.evocue.edits) == 1
    assert None in optimizer.last_result.rounds[0].base_scores.values()


def test_scores_beyond_the_scale_of_the_criterion_are_refused_with_the_setting_to_change(bed):
    def percent(example, prediction, trace=None):
        return 100 * bed.metric(example, prediction)

    with pytest.raises(MetricError, match="set perfect_score"):
        bed.compile(bed.optimizer(metric=lambda gold, pred: 40))
    program, _ = bed.compile(bed.optimizer(metric=percent, perfect_score=100, max_rounds=1))
    assert len(program.evocue.edits) == 1


def plain_rows():
    return [{"question": "q", "answer": "a"}] * 8


def without_inputs():
    return [dspy.Example(question=f"q{n}", answer="a") for n in range(8)]


def with_a_gap(bed):
    tasks = bed.tasks(8)
    tasks[5] = dspy.Example(question="q5").with_inputs("question")
    return tasks


def test_data_that_cannot_be_used_is_refused_before_any_call(bed):
    lm = bed.task_lm()
    cases = [
        ([], ValueError, "at least one example"),
        (plain_rows(), TypeError, "dspy.Example"),
        (without_inputs(), ValueError, "inputs marked"),
        (with_a_gap(bed), ValueError, r"trainset\[5\]"),
        (bed.tasks(3), ValueError, "at least 3 different tasks to learn from"),
        (bed.tasks(1) * 20, ValueError, "got 1 in the trainset"),
    ]
    for tasks, error, words in cases:
        with dspy.context(lm=lm), pytest.raises(error, match=words):
            bed.optimizer().compile(bed.program(), trainset=tasks)
    with dspy.context(lm=lm), pytest.raises(ValueError, match="valset must hold at least one"):
        bed.optimizer().compile(bed.program(), trainset=bed.tasks(), valset=[])
    with pytest.raises(ValueError, match="teacher"):
        bed.optimizer().compile(bed.program(), trainset=bed.tasks(), teacher=bed.program())
    assert lm.engine.calls == 0


def test_an_async_only_program_is_refused_with_the_cure(bed):
    class AsyncOnly(dspy.Module):
        def __init__(self):
            super().__init__()
            self.ask = dspy.Predict("question -> answer")

        async def aforward(self, question):
            return await self.ask.acall(question=question)

    lm = bed.task_lm()
    with pytest.raises(TypeError, match=r"dspy\.syncify"):
        bed.compile(bed.optimizer(), program=AsyncOnly(), lm=lm)
    assert lm.engine.calls == 0


def test_too_few_tasks_and_a_valset_that_is_the_trainset_are_said_before_anything_is_spent(bed, caplog):
    tasks = bed.tasks(8)
    caplog.set_level(logging.WARNING, logger="dspy_evocue")
    bed.optimizer().estimate(bed.program(), trainset=tasks)
    assert "6 confirmation tasks are wanted, 4 are left" in caplog.text
    caplog.clear()
    bed.optimizer().estimate(bed.program(), trainset=bed.tasks(), valset=bed.tasks())
    assert "24 of 24 valset tasks are in the trainset too" in caplog.text


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"max_rounds": 0}, ValueError, "max_rounds must be at least 1"),
        ({"trial_tasks": "8"}, TypeError, "trial_tasks must be an int"),
        ({"trial_tasks": 2}, ValueError, "trial_tasks must be at least 3"),
        ({"proposal_tasks": 2}, ValueError, "proposal_tasks must be at least 3"),
        ({"confirmation_tasks": 2}, ValueError, "not even 4 gains in 4 pairs would be accepted"),
        ({"confirmation_tasks": 1, "acceptance": "robust"}, ValueError, "not even 1 gains"),
        ({"acceptance": "luck"}, ValueError, "acceptance must be one of"),
        ({"environment": object()}, TypeError, "environment must have reset"),
        ({"features": [lambda state: "x"]}, TypeError, "named function"),
        ({"knowledge": [1]}, TypeError, "knowledge must be"),
        ({"budget": 5}, TypeError, "budget must be a Budget"),
        ({"on_interrupt": "wait"}, ValueError, "on_interrupt must be"),
        ({"proposer": object()}, TypeError, "proposer must have propose"),
        ({"perfect_score": 0}, ValueError, "perfect_score must be above"),
        ({"surprise": 1}, TypeError, "surprise"),
    ],
)
def test_wrong_settings_are_refused_in_the_constructor(bed, settings, error, words):
    with pytest.raises(error, match=words):
        EvoCUE(bed.metric, **settings)


@pytest.mark.parametrize("limit", [5, 12, 21])
def test_no_more_is_scored_than_the_budget_allows(bed, limit, caplog):
    optimizer = bed.optimizer(budget=Budget(max_metric_calls=limit))
    program, _ = bed.compile(optimizer)
    result = optimizer.last_result
    assert result.spend.metric_calls <= limit
    assert result.stop_reason == "budget"
    assert "max_metric_calls" in result.error
    assert program.evocue.edits == ()
    assert f"max_metric_calls={limit} may not be enough for one round" in caplog.text


def test_what_is_confirmed_before_the_budget_is_spent_is_returned(bed):
    def counted(calls):
        optimizer = bed.optimizer(budget=Budget(max_lm_calls=calls), num_threads=1)
        program, engine = bed.compile(optimizer)
        return optimizer.last_result, program, engine

    whole, _, _ = counted(10_000)
    first_round = whole.spend.lm_calls - len(whole.rounds[1].base_scores)
    result, program, _ = counted(first_round + 2)
    assert result.stop_reason == "budget"
    assert result.spend.lm_calls == first_round + 2
    assert len(program.evocue.edits) == 1
    assert result.best_program is program


def test_a_model_that_never_answers_is_an_error_and_not_a_score(bed):
    lm = bed.task_lm(lambda prompt, number: UNAVAILABLE)
    optimizer = bed.optimizer(num_threads=1)
    with pytest.raises(LMUnavailableError, match="503"):
        bed.compile(optimizer, lm=lm)
    assert lm.engine.calls == 3
    assert optimizer.last_result.stop_reason == "error"
    assert "LMUnavailableError" in optimizer.last_result.error


def test_a_reflection_model_that_never_answers_is_an_error(bed):
    adviser = scripted_lm(lambda prompt, number: dspy_error())
    with pytest.raises(LMUnavailableError, match="the reflection model does not answer"):
        bed.compile(bed.optimizer(adviser=adviser))


def test_a_rate_limit_of_the_reflection_model_is_waited_for(bed):
    waits = []

    def busy(prompt, number):
        return RateLimitError("429") if number <= 2 else None

    optimizer = bed.optimizer(adviser=bed.adviser(reply=busy), max_rounds=1, num_threads=1)
    settings = optimizer._settings()
    optimizer._settings = lambda: replace(settings, retry=RetryPolicy(sleep=waits.append))
    program, _ = bed.compile(optimizer)
    assert len(waits) == 2
    assert 0 < waits[0] < waits[1]
    assert len(program.evocue.edits) == 1


def dspy_error():
    from dspy.utils.exceptions import LMAuthError

    return LMAuthError("no such key")


def test_an_outage_of_one_arm_leaves_the_pair_missing_on_both_sides(bed):
    lost = ("q5", "q9", "q13")

    def sometimes(prompt, number):
        question = prompt.rsplit("[[ ## question ## ]]\n", 1)[1].split()[0]
        return UNAVAILABLE if bed.hint in prompt and question in lost else bed.answer(prompt)

    optimizer = bed.optimizer(max_rounds=1, proposal_tasks=8, trial_tasks=8, confirmation_tasks=8)
    program, _ = bed.compile(optimizer, lm=bed.task_lm(sometimes))
    result = optimizer.last_result
    assert len(program.evocue.edits) == 1
    every = [*result.trials, *result.rounds[0].confirmation.pairs]
    missing = [trial for trial in every if trial.status == "unresolved"]
    assert missing
    assert all((trial.before, trial.after) == (None, None) for trial in missing)
    assert "missing" in result.rounds[0].confirmation.decision.reason or "unresolved" in result.explain()


@pytest.mark.parametrize("reply", ["", "   ", "<think>what", '{"candidates": [{"text": "cut of', "x" * 5000])
def test_a_useless_proposal_is_no_candidate_and_is_said(bed, reply):
    def useless(prompt, number):
        return reply if "untested_evidence" in prompt else None

    optimizer = bed.optimizer(adviser=bed.adviser(reply=useless), max_rounds=1)
    program, _ = bed.compile(optimizer)
    assert program.evocue.edits == ()
    assert "Nothing was proposed" in optimizer.last_result.explain()


def test_patience_ends_a_run_that_finds_nothing(bed):
    optimizer = bed.optimizer(adviser=bed.adviser([]), max_rounds=5, patience=2)
    bed.compile(optimizer)
    assert optimizer.last_result.stop_reason == "no_improvement"
    assert len(optimizer.last_result.rounds) == 2


def test_a_program_that_raises_is_scored_and_its_error_is_shown(bed):
    class Fragile(dspy.Module):
        def __init__(self):
            super().__init__()
            self.ask = dspy.Predict("question -> answer")

        def forward(self, question):
            answer = self.ask(question=question)
            if answer.answer == "wrong":
                raise ValueError("cannot go on with a wrong answer")
            return answer

    adviser = bed.adviser()
    optimizer = bed.optimizer(adviser=adviser, max_rounds=1)
    program, _ = bed.compile(optimizer, program=Fragile())
    assert len(program.evocue.edits) == 1
    assert any("ValueError: cannot go on with a wrong answer" in prompt for prompt in adviser.engine.prompts)
