"""Many trials at once on one program object: in order, within the budget, and nothing lost when it stops."""

import os
import signal
import threading

import dspy
import pytest

from dspy_combee.errors import BudgetExhausted, MetricError
from dspy_combee.runtime.budget import Budget, Meter
from dspy_combee.testing import scripted_lm
from dspy_evocue import (
    CallSite,
    InstructionEdit,
    TrialRequest,
    current_world,
    deepcopy_environment,
    record_runs,
    run_trials,
)
from dspy_evocue.errors import StoppedByMetricError
from dspy_evocue.testing import chat_reply, scripted_agent_lm
from dspy_evocue.trial_runs import TrialsInterrupted, _MetricAllowance, is_not_run

LESSON = "Press the brake."
EDIT = InstructionEdit(at=CallSite("recurring", "react"), text=LESSON)


class Car:
    def __init__(self):
        self.kilometres = 0
        self.has_braked = False

    def drive(self, kilometres: int) -> str:
        """Drive."""
        self.kilometres += kilometres
        return f"at {self.kilometres}"

    def brake(self) -> str:
        """Brake."""
        self.has_braked = True
        return f"stands at {self.kilometres}"


def driver_lm():
    def policy(turn):
        if turn.step < 2:
            return "drive", {"kilometres": 1 + turn.prompt.count("fast")}
        if turn.step == 2 and LESSON in turn.prompt:
            return "brake", {}
        return "finish", {}

    return scripted_agent_lm(policy)


def rows(count):
    return [
        dspy.Example(question=f"drive {'fast' if index % 2 else 'slow'} {index}").with_inputs("question")
        for index in range(count)
    ]


@pytest.fixture
def car():
    return Car()


def braked(car):
    return lambda gold, pred: float(current_world(car).has_braked)


def test_many_threads_on_one_program_give_the_records_of_one_thread(car):
    agent = dspy.ReAct("question -> answer", tools=[car.drive, car.brake])
    requests = [TrialRequest(EDIT, row) for row in rows(6)]
    found = []
    with dspy.context(lm=driver_lm()):
        for threads in (6, 1):
            records = run_trials(
                agent, requests, braked(car), environment=deepcopy_environment(car), num_threads=threads, progress=False
            )
            found.append([(r.task_id, r.rollout_id, r.status, r.gain, r.changes, r.parent, r.edited) for r in records])
    assert found[0] == found[1]
    assert {row[2:4] for row in found[0]} == {("applied", 1.0)}
    assert [row[1] for row in found[0]] == list(range(1, 7))
    assert car.kilometres == 0


def test_recordings_are_made_once_and_serve_many_trials(car):
    agent = dspy.ReAct("question -> answer", tools=[car.drive, car.brake])
    lm = driver_lm()
    with dspy.context(lm=lm):
        environment = deepcopy_environment(car)
        recordings = record_runs(agent, rows(3), braked(car), environment=environment, num_threads=3)
        before = lm.engine.calls
        requests = [TrialRequest(EDIT, run.example, recording=run) for run in recordings for _ in range(2)]
        records = run_trials(agent, requests, braked(car), environment=environment, num_threads=4, progress=False)
    assert all(record.recording.lm_calls == 0 for record in records)
    assert lm.engine.calls - before == sum(record.parent.lm_calls + record.edited.lm_calls for record in records)


def test_a_spent_budget_leaves_the_finished_trials_and_says_which_did_not_run(car):
    agent = dspy.ReAct("question -> answer", tools=[car.drive, car.brake])
    lm = driver_lm()
    with dspy.context(lm=lm):
        records = run_trials(
            agent,
            [TrialRequest(EDIT, row) for row in rows(6)],
            braked(car),
            environment=deepcopy_environment(car),
            num_threads=1,
            progress=False,
            budget=Budget(max_lm_calls=25),
        )
    assert lm.engine.calls <= 25
    assert [is_not_run(record) for record in records] == [False, False, True, True, True, True]
    assert "max_lm_calls=25" in records[-1].reason
    assert records[-1].before is None


def test_an_interrupt_keeps_what_was_done(car):
    agent = dspy.ReAct("question -> answer", tools=[car.drive, car.brake])
    seen = []

    def metric(gold, pred):
        if "4" in gold.question:
            raise KeyboardInterrupt
        return 1.0

    with dspy.context(lm=driver_lm()), pytest.raises(KeyboardInterrupt) as caught:
        run_trials(
            agent,
            [TrialRequest(EDIT, row) for row in rows(6)],
            metric,
            environment=deepcopy_environment(car),
            num_threads=1,
            progress=False,
            on_record=lambda position, record: seen.append(position),
        )
    assert isinstance(caught.value, TrialsInterrupted)
    assert seen == [0, 1, 2, 3]
    assert [record.status for record in caught.value.records] == ["applied"] * 4


def test_an_environment_that_cannot_fork_runs_its_trials_one_by_one(car):
    class ByHand:
        at_once = 0

        def reset(self, example):
            car.kilometres, car.has_braked = 0, False

        def snapshot(self):
            return car.kilometres, car.has_braked

        def restore(self, token):
            car.kilometres, car.has_braked = token

    agent = dspy.ReAct("question -> answer", tools=[car.drive, car.brake])
    lm = driver_lm()
    with dspy.context(lm=lm):
        records = run_trials(
            agent,
            [TrialRequest(EDIT, row) for row in rows(3)],
            braked(car),
            environment=ByHand(),
            num_threads=8,
            progress=False,
        )
    assert [record.gain for record in records] == [1.0] * 3
    assert lm.engine.most_at_once == 1


def test_a_metric_that_returns_no_score_stops_the_run_with_an_error(car):
    edit = InstructionEdit(at=CallSite("START", "self"), text=LESSON)
    lm = scripted_lm(lambda prompt, number: chat_reply(answer="a"))
    with dspy.context(lm=lm), pytest.raises(MetricError, match="must return a number"):
        run_trials(
            dspy.Predict("question -> answer"),
            [TrialRequest(edit, row) for row in rows(3)],
            lambda gold, pred: "0.5",
            num_threads=1,
            progress=False,
        )


def test_the_current_language_model_reaches_every_thread():
    edit = InstructionEdit(at=CallSite("START", "self"), text=LESSON)
    lms = [scripted_lm(lambda prompt, number: chat_reply(answer="a")) for _ in range(2)]
    for lm in lms:
        with dspy.context(lm=lm):
            run_trials(
                dspy.Predict("question -> answer"),
                [TrialRequest(edit, row) for row in rows(6)],
                lambda gold, pred: 1.0,
                num_threads=3,
                progress=False,
            )
    assert [lm.engine.calls for lm in lms] == [18, 18]


@pytest.fixture
def predictor():
    return dspy.Predict("question -> answer")


ON_ENTRY = InstructionEdit(at=CallSite("START", "self"), text=LESSON)


def answering_lm():
    return scripted_lm(lambda prompt, number: chat_reply(answer="a"))


@pytest.mark.parametrize("num_threads", [1, 4])
def test_no_trial_starts_that_the_metric_calls_do_not_suffice_for(predictor, num_threads):
    scored = []
    meter = Meter()
    with dspy.context(lm=answering_lm()):
        records = run_trials(
            predictor,
            [TrialRequest(ON_ENTRY, row) for row in rows(6)],
            lambda gold, pred: scored.append(gold) or 1.0,
            num_threads=num_threads,
            progress=False,
            budget=Budget(max_metric_calls=7),
            meter=meter,
        )
    assert sum(not is_not_run(record) for record in records) == 2
    assert len(scored) == meter.spend.metric_calls == 6
    assert all("max_metric_calls=7" in record.reason for record in records if is_not_run(record))


def test_the_budget_of_a_given_meter_counts_what_was_scored_before(predictor):
    meter = Meter(Budget(max_metric_calls=5))
    meter.count_metric_calls(3)
    with dspy.context(lm=answering_lm()):
        (recording,) = record_runs(predictor, rows(1), lambda gold, pred: 1.0, num_threads=1)
        requests = [TrialRequest(ON_ENTRY, recording.example, recording=recording)] * 2
        records = run_trials(predictor, requests, lambda gold, pred: 1.0, num_threads=1, progress=False, meter=meter)
    assert [is_not_run(record) for record in records] == [False, True]
    assert meter.spend.metric_calls == 5


def no_score_for(question):
    return lambda gold, pred: None if gold.question == question else 1.0


def test_a_metric_that_stops_giving_scores_stops_the_trials_at_once_and_loses_nothing(predictor):
    lm, told, examples = answering_lm(), [], rows(6)
    with dspy.context(lm=lm), pytest.raises(StoppedByMetricError, match="must return a number") as caught:
        run_trials(
            predictor,
            [TrialRequest(ON_ENTRY, row) for row in examples],
            no_score_for(examples[2].question),
            num_threads=1,
            progress=False,
            on_record=lambda position, record: told.append(position),
        )
    assert told == [0, 1]
    assert [record.status for record in caught.value.finished] == ["applied", "applied"]
    assert lm.engine.calls == 7


def test_with_several_threads_the_trials_in_flight_are_kept_when_the_metric_fails(predictor):
    told, examples = [], rows(12)
    with dspy.context(lm=answering_lm()), pytest.raises(StoppedByMetricError) as caught:
        run_trials(
            predictor,
            [TrialRequest(ON_ENTRY, row) for row in examples],
            no_score_for(examples[3].question),
            num_threads=3,
            progress=False,
            on_record=lambda position, record: told.append(position),
        )
    assert len(caught.value.finished) == len(told)
    assert 3 not in told


def test_recordings_stop_at_once_when_the_metric_gives_no_score(predictor):
    lm, examples = answering_lm(), rows(5)
    with dspy.context(lm=lm), pytest.raises(StoppedByMetricError) as caught:
        record_runs(predictor, examples, no_score_for(examples[2].question), num_threads=1)
    assert [recording.example for recording in caught.value.finished] == examples[:2]
    assert lm.engine.calls == 3


@pytest.mark.parametrize("limit", ["max_metric_calls", "max_lm_calls"])
def test_recordings_within_the_budget_are_told_before_it_ends_the_runs(predictor, limit):
    told, lm = [], answering_lm()
    with dspy.context(lm=lm), pytest.raises(BudgetExhausted, match=f"{limit}=2"):
        record_runs(
            predictor,
            rows(5),
            lambda gold, pred: 1.0,
            num_threads=1,
            budget=Budget(**{limit: 2}),
            on_record=lambda position, recording: told.append(position),
        )
    assert told == [0, 1]
    assert lm.engine.calls == 2


def test_after_an_interrupt_a_trial_that_waited_for_the_budget_does_not_begin(car):
    agent = dspy.ReAct("question -> answer", tools=[car.drive, car.brake])
    unreached = InstructionEdit(at=CallSite("tool:brake", "react"), text=LESSON)
    was_heard, scored = threading.Event(), []

    def interrupted(*_):
        was_heard.set()
        raise KeyboardInterrupt

    def metric(gold, pred):
        scored.append(gold.question)
        os.kill(os.getpid(), signal.SIGINT)
        was_heard.wait()
        return 1.0

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        with dspy.context(lm=driver_lm()), pytest.raises(TrialsInterrupted) as caught:
            run_trials(
                agent,
                [TrialRequest(unreached, row) for row in rows(2)],
                metric,
                environment=deepcopy_environment(car),
                num_threads=2,
                progress=False,
                # One trial may take three, and takes one: the other waits to see it.
                budget=Budget(max_metric_calls=4),
            )
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(scored) == 1
    assert [record.status for record in caught.value.records] == ["unreached"]


def test_a_trial_waits_for_one_in_flight_that_has_counted_a_part_of_its_scores():
    meter = Meter(Budget(max_metric_calls=7))
    allowance = _MetricAllowance((meter,))
    has_begun, may_end = threading.Event(), threading.Event()

    def in_flight():
        with allowance.taken(3):
            meter.count_metric_calls(2)
            has_begun.set()
            may_end.wait()
            meter.count_metric_calls(1)

    thread = threading.Thread(target=in_flight)
    thread.start()
    has_begun.wait()
    threading.Timer(0.05, may_end.set).start()
    with allowance.taken(3):
        meter.count_metric_calls(3)
    thread.join()
    with pytest.raises(BudgetExhausted), allowance.taken(3):
        pass
