import json

import dspy
import pytest

from dspy_combee.errors import MetricError, ResumeMismatchError
from dspy_combee.runtime.budget import Budget
from dspy_combee.testing import scripted_lm
from dspy_evocue import CallSite, InstructionEdit, attach
from dspy_evocue.frozen_evaluation import ComparisonInterrupted, compare
from dspy_evocue.trials import task_name

TASKS = [
    dspy.Example(question=f"q{n}", answer=str(n), app="a" if n < 3 else "b").with_inputs("question") for n in range(6)
]


def answer(prompt, number):
    """Answer even questions right without help, and all of them with the hint."""
    question = int(prompt.rsplit("[[ ## question ## ]]\nq", 1)[1].split()[0])
    right = question % 2 == 0 or "Mind the odd ones." in prompt
    return f"[[ ## answer ## ]]\n{question if right else 'wrong'}\n\n[[ ## completed ## ]]"


def metric(example, prediction, trace=None):
    return float(example.answer == prediction.answer)


@pytest.fixture
def before():
    return dspy.Predict("question -> answer")


@pytest.fixture
def after(before):
    return attach(before, InstructionEdit(at=CallSite("START", "*"), text="Mind the odd ones."))


def run(before, after, *, lm=None, tasks=TASKS, metric=metric, **settings):
    lm = lm or scripted_lm(answer)
    with dspy.context(lm=lm):
        return compare(before, after, tasks, metric, num_threads=4, progress=False, **settings), lm.engine


def test_both_programs_run_every_task_once(before, after):
    result, engine = run(before, after, scenario="app")
    assert (result.before_rate, result.after_rate) == (0.5, 1.0)
    assert (result.counts.wins, result.counts.losses, result.counts.ties) == (3, 0, 3)
    assert (result.scenarios.before, result.scenarios.after, result.scenarios.scenarios) == (0, 2, 2)
    assert engine.calls == 12
    assert [task.task_id for task in result.tasks] == [task_name(task) for task in TASKS]
    assert result.after_spend.lm_calls == 6
    assert result.after_spend.input_tokens > result.before_spend.input_tokens


def test_the_result_says_what_it_belongs_to(before, after):
    result, _ = run(before, after, learned={"tried": TASKS[:1], "confirmed": ["elsewhere"]})
    identity = result.identity
    assert result.learned_from == (task_name(TASKS[0]),)
    assert identity.data_roles["confirmed"] == ("elsewhere",)
    assert identity.versions["dspy"] == dspy.__version__
    assert len(identity.artifact_sha256["before"]) == 64
    assert identity.artifact_sha256["before"] != identity.artifact_sha256["after"]
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()


def test_an_outage_is_a_missing_score_on_both_sides(before, after):
    def sometimes_down(prompt, number):
        down = "q1" in prompt and "Mind the odd ones." in prompt
        return RuntimeError("503 service unavailable") if down else answer(prompt, number)

    result, _ = run(before, after, lm=scripted_lm(sometimes_down))
    assert result.missing == (task_name(TASKS[1]),)
    assert result.counts.pairs == 5
    assert "503" in result.tasks[1].after.failure


def test_a_spent_budget_leaves_the_rest_missing_and_says_so(before, after):
    result, engine = run(before, after, budget=Budget(max_lm_calls=4))
    assert engine.calls <= 4
    assert result.counts.missing >= 4
    assert any("max_lm_calls=4" in task.before.failure for task in result.tasks)


def test_scored_runs_count_against_the_budget(before, after):
    lm = scripted_lm(answer)
    with dspy.context(lm=lm):
        result = compare(before, after, TASKS, metric, num_threads=1, progress=False, budget=Budget(max_metric_calls=4))
    assert result.counts.pairs == 2
    assert lm.engine.calls == 4


def without_seconds(value):
    """Return JSON data without wall times, which no two runs share."""
    if isinstance(value, dict):
        return {key: without_seconds(item) for key, item in value.items() if key != "seconds"}
    return [without_seconds(item) for item in value] if isinstance(value, list | tuple) else value


def test_an_interrupted_comparison_goes_on_where_it_was(before, after, tmp_path):
    def interrupted(prompt, number):
        return KeyboardInterrupt() if number == 7 else answer(prompt, number)

    lm = scripted_lm(interrupted)
    with dspy.context(lm=lm), pytest.raises(ComparisonInterrupted) as caught:
        compare(before, after, TASKS, metric, num_threads=1, progress=False, log_dir=tmp_path)
    assert len(caught.value.tasks) == 3
    resumed, engine = run(before, after, log_dir=tmp_path)
    assert engine.calls == 6
    assert without_seconds(resumed.to_dict()) == without_seconds(run(before, after)[0].to_dict())
    again, engine = run(before, after, log_dir=tmp_path)
    assert engine.calls == 0
    assert again.to_dict() == resumed.to_dict()


def test_a_directory_of_another_comparison_is_refused(before, after, tmp_path):
    run(before, after, log_dir=tmp_path)
    with pytest.raises(ResumeMismatchError, match="these changed: after"):
        run(before, before, log_dir=tmp_path)


def test_a_metric_that_gives_no_score_stops_before_more_is_paid(before, after):
    lm = scripted_lm(answer)
    with dspy.context(lm=lm), pytest.raises(MetricError):
        compare(before, after, TASKS, lambda example, prediction: "good", num_threads=1, progress=False)
    assert lm.engine.calls == 1


def test_a_task_that_comes_twice_is_two_tasks(before, after):
    result, _ = run(before, after, tasks=[TASKS[0], TASKS[0]])
    assert [task.task_id for task in result.tasks] == [task_name(TASKS[0]), task_name(TASKS[0]) + "#2"]


def test_bad_tasks_are_refused_before_any_call(before, after):
    for tasks, message in (
        ([], "at least one example"),
        ([dspy.Example(question="q")], r"must say which fields are inputs"),
    ):
        with pytest.raises(ValueError, match=message):
            run(before, after, tasks=tasks)
    with pytest.raises(ValueError, match="scenario must be a field of every task, got 'nobody'"):
        run(before, after, scenario="nobody")
