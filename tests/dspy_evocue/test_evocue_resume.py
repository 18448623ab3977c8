"""A run that is killed anywhere goes on where it was: the same decisions, and nothing is paid for twice."""

from pathlib import Path

import dspy
import pytest
from killed_runs import kill_runs

from dspy_combee.errors import ResumeMismatchError
from dspy_combee.runtime.budget import Budget

KILLED_AT = (1, 5, 9, 15, 18, 21, 24, 30, 36, 44)
"""Numbers of model calls: in base runs, residual goals, cards, proposals, trials, and the confirmation."""


@pytest.fixture(scope="module")
def killed_runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("killed")
    kill_runs(Path(__file__).with_name("conftest.py"), directory, KILLED_AT)
    return directory


def finish(bed, log_dir, **settings):
    """Run to the end; return the result and how often the models were asked."""
    adviser = bed.two_rounds()
    optimizer = bed.optimizer(adviser=adviser, num_threads=1, log_dir=log_dir, **settings)
    _, engine = bed.compile(optimizer)
    return optimizer.last_result, engine.calls + adviser.engine.calls


def decisions(result):
    return {**result.to_dict(), "seconds": 0, "spend": 0, "spend_by_stage": 0, "savings": 0, "identity": 0, "rounds": 0}


def shape(result):
    """Return what was decided in each round, without what timing decides."""
    return [
        (
            one.base_scores,
            one.diagnoses,
            [(c.edit_id, c.fate, c.reason, [(t.task_id, t.gain, t.status) for t in c.trials]) for c in one.candidates],
            None if one.confirmation is None else one.confirmation.decision.to_dict(),
        )
        for one in result.rounds
    ]


@pytest.fixture(scope="module")
def whole(bed, tmp_path_factory):
    return finish(bed, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("at", KILLED_AT)
def test_a_killed_run_resumes_with_the_same_decisions_and_pays_for_nothing_twice(bed, killed_runs, whole, at):
    expected, calls_of_whole = whole
    assert KILLED_AT[-1] < calls_of_whole
    result, calls = finish(bed, killed_runs / str(at))
    assert decisions(result) == decisions(expected)
    assert shape(result) == shape(expected)
    # What was in flight is paid for again: the call of the kill, and the other arm of its trial.
    assert (at - 1) + calls <= calls_of_whole + 1
    assert result.spend.metric_calls == expected.spend.metric_calls
    assert result.spend.lm_calls == expected.spend.lm_calls


def test_a_finished_run_costs_nothing_to_run_again(bed, tmp_path, caplog):
    first, _ = finish(bed, tmp_path)
    caplog.set_level("INFO", logger="dspy_evocue")
    again, calls = finish(bed, tmp_path)
    assert calls == 0
    assert shape(again) == shape(first)
    assert again.edits == first.edits != ()
    assert again.spend == first.spend
    assert again.spend_by_stage == first.spend_by_stage
    assert "already spent" in caplog.text


def test_a_run_that_ran_out_of_budget_goes_on_with_a_larger_one(bed, tmp_path, whole):
    expected, calls_of_whole = whole
    poor, calls = finish(bed, tmp_path / "run", budget=Budget(max_metric_calls=10))
    assert poor.stop_reason == "budget"
    rich, more = finish(bed, tmp_path / "run")
    assert shape(rich) == shape(expected)
    assert calls + more == calls_of_whole


def test_after_an_outage_the_failed_steps_are_tried_again(bed, tmp_path, whole):
    expected, _ = whole

    def down(prompt, number):
        return RuntimeError("503 service unavailable") if number > 4 else bed.answer(prompt)

    optimizer = bed.optimizer(adviser=bed.two_rounds(), num_threads=1, log_dir=tmp_path / "run")
    with pytest.raises(Exception, match="503"):
        bed.compile(optimizer, lm=bed.task_lm(down))
    result, _ = finish(bed, tmp_path / "run")
    assert shape(result) == shape(expected)


def test_a_recording_that_cannot_be_read_is_made_again(bed, tmp_path, whole, caplog):
    expected, _ = whole
    finish(bed, tmp_path / "run", budget=Budget(max_metric_calls=10))
    for path in (tmp_path / "run" / "recordings").glob("*.pkl"):
        path.write_bytes(b"torn")
    result, _ = finish(bed, tmp_path / "run")
    assert shape(result) == shape(expected)
    assert "it is made again" in caplog.text


def test_the_directory_of_another_run_is_refused_with_what_differs(bed, tmp_path):
    finish(bed, tmp_path)
    with pytest.raises(ResumeMismatchError, match="config seed"):
        bed.compile(bed.optimizer(log_dir=tmp_path, seed=5))
    with pytest.raises(ResumeMismatchError, match="trainset"):
        bed.compile(bed.optimizer(log_dir=tmp_path), tasks=bed.tasks(30))
    other = bed.program()
    other.ask.signature = other.ask.signature.with_instructions("Answer with a number.")
    with pytest.raises(ResumeMismatchError, match="seed instructions"):
        bed.compile(bed.optimizer(log_dir=tmp_path), program=other)


def test_a_resumed_run_rebuilds_the_tools_world_from_recordings_without_snapshots(tmp_path):
    from dspy_evocue.demo.office import OfficeDesk, office_agent, office_environment, office_metric, office_tasks
    from dspy_evocue.demo.scripted import adviser_lm, clerk_lm
    from dspy_evocue.evocue import EvoCUE

    def run(budget=None):
        desk = OfficeDesk()
        optimizer = EvoCUE(
            office_metric(desk),
            reflection_lm=adviser_lm(),
            environment=office_environment(desk),
            trial_tasks=5,
            proposal_tasks=7,
            max_rounds=1,
            max_cards=0,
            num_threads=1,
            log_dir=tmp_path,
            budget=budget,
            progress=False,
        )
        with dspy.context(lm=clerk_lm()):
            optimizer.compile(office_agent(desk), trainset=office_tasks(20))
        return optimizer.last_result

    assert run(Budget(max_metric_calls=11)).stop_reason == "budget"
    result = run()
    statuses = {(trial.kind, trial.status) for trial in result.trials}
    assert statuses == {("matched_prefix", "applied")}
    assert result.rounds[0].candidates[1].fate == "inherited"
