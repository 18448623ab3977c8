"""Why a score is missing is recorded where it happens, whatever words an error uses, and read back by a resumed run."""

import dspy
import pytest
from dspy.utils.exceptions import LMServerError

from dspy_combee.runtime.budget import Budget
from dspy_combee.testing import scripted_lm
from dspy_evocue import CallSite, InstructionEdit, deepcopy_environment, paired_trial
from dspy_evocue.demo.office import OfficeDesk, lay_out, office_agent, office_metric, office_tasks
from dspy_evocue.demo.scripted import clerk_lm
from dspy_evocue.errors import EnvironmentFault
from dspy_evocue.testing import chat_reply
from dspy_evocue.trial_record import TrialRecord

LESSON = "Mind the odd ones."
EXAMPLE = dspy.Example(question="q1").with_inputs("question")
EDIT = InstructionEdit(at=CallSite("START", "self"), text=LESSON)
LIKE_A_METRIC = "the metric raised ZeroDivisionError"
LIKE_A_MODEL = "the language model failed: 503"


def one_trial(with_the_lesson, metric=lambda gold, pred: 1.0, **settings):
    def reply(prompt, number):
        return with_the_lesson if LESSON in prompt else chat_reply(answer="a")

    with dspy.context(lm=scripted_lm(reply)):
        return paired_trial(dspy.Predict("question -> answer"), EDIT, EXAMPLE, metric, **settings)


def like_a_model(gold, pred):
    raise RuntimeError(LIKE_A_MODEL)


@pytest.mark.parametrize(
    ("kind", "run"),
    [
        ("model", lambda: one_trial(LMServerError(LIKE_A_METRIC, model="fake"))),
        ("metric", lambda: one_trial(chat_reply(answer="a"), like_a_model)),
        ("program", lambda: one_trial("nothing that can be parsed", failure_score=None)),
        (None, lambda: one_trial("nothing that can be parsed")),
        (None, lambda: one_trial(chat_reply(answer="b"))),
    ],
    ids=["outage", "metric", "program without a failure score", "failed attempt", "applied"],
)
def test_a_trial_says_whose_fault_it_is_that_it_has_no_score(kind, run):
    trial = run()
    assert trial.missing == kind
    assert (trial.status == "unresolved") == (kind is not None)
    assert TrialRecord.from_dict(trial.to_dict()) == trial


def desk_trial(environment, edit=None):
    desk = OfficeDesk()
    task = next(task for task in office_tasks(8) if task.expenses)
    lay_out(desk, task)
    edit = edit or InstructionEdit(at=CallSite("tool:file_expense", "react"), text="Reference the expense id.")
    with dspy.context(lm=clerk_lm()):
        return paired_trial(office_agent(desk), edit, task, office_metric(desk), environment=environment(desk))


def unwilling_environment(desk):
    def refuse(own, example):
        raise EnvironmentFault(LIKE_A_MODEL)

    return deepcopy_environment(desk, reset=refuse)


@pytest.mark.parametrize(
    ("kind", "environment"), [("control_check", lambda desk: None), ("environment", unwilling_environment)]
)
def test_a_trial_in_a_world_that_is_not_restored_says_so(kind, environment):
    trial = desk_trial(environment)
    assert (trial.status, trial.missing) == ("unresolved", kind)


def lossy(bed, kind):
    """Return a task model and a metric that fail on some tasks under the edit, in words of the other failure."""
    lost = ("1", "2", "5", "9", "13", "21")

    def reply(prompt, number):
        question = prompt.rsplit("[[ ## question ## ]]\nq", 1)[1].split()[0]
        if kind == "model" and bed.hint in prompt and question in lost:
            return LMServerError(LIKE_A_METRIC, model="fake")
        return bed.answer(prompt)

    def metric(example, prediction, trace=None):
        if kind == "metric" and example.answer in lost and prediction.answer == example.answer:
            raise RuntimeError(LIKE_A_MODEL)
        return bed.metric(example, prediction)

    return bed.task_lm(reply), metric


def run_lossy(bed, kind, log_dir, budget=None):
    lm, metric = lossy(bed, kind)
    optimizer = bed.optimizer(
        metric=metric, max_rounds=1, proposal_tasks=8, trial_tasks=8, num_threads=1, log_dir=log_dir, budget=budget
    )
    bed.compile(optimizer, lm=lm)
    return optimizer.last_result, lm.engine.calls


def outcomes(result):
    (one,) = result.rounds
    every = (*result.trials, *one.confirmation.pairs)
    return [(trial.task_id, trial.kind, trial.status, trial.missing, trial.before, trial.after) for trial in every]


@pytest.mark.parametrize("kind", ["model", "metric"])
def test_a_resumed_run_reads_from_the_log_whose_fault_a_missing_score_was(bed, tmp_path, kind):
    whole, calls_of_whole = run_lossy(bed, kind, tmp_path / "whole")
    assert {missing for *_, missing, _, _ in outcomes(whole)} == {None, kind}
    first, calls = run_lossy(bed, kind, tmp_path / "run", Budget(max_metric_calls=whole.spend.metric_calls - 6))
    assert first.stop_reason == "budget"
    assert kind in {trial.missing for trial in first.trials}
    resumed, more_calls = run_lossy(bed, kind, tmp_path / "run")
    assert outcomes(resumed) == outcomes(whole)
    assert calls + more_calls == calls_of_whole
