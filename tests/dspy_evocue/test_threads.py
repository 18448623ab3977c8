"""Programs that share tools, predictors and a world may run at once: every thread sees its own run and misses none."""

import sys
import threading

import dspy
import pytest

from dspy_combee.testing import scripted_lm
from dspy_evocue.artifact import attach
from dspy_evocue.call_sites import CallSite
from dspy_evocue.demo.office import OfficeDesk, office_agent, office_environment, office_metric, office_tasks
from dspy_evocue.demo.scripted import adviser_lm, clerk_lm
from dspy_evocue.edits import InstructionEdit
from dspy_evocue.episodes import program_key
from dspy_evocue.evocue import EvoCUE
from dspy_evocue.frozen_evaluation import compare
from dspy_evocue.instrument import NAMES, forget_name, iteration_limits, observed
from dspy_evocue.testing import chat_reply
from dspy_evocue.trial_runs import record_runs

TASKS = office_tasks(30)
QUESTIONS = [dspy.Example(question=f"q{n}").with_inputs("question") for n in range(100)]
EDIT = InstructionEdit(at=CallSite("START", "ask"), text="Mind the odd ones.")


class Asker(dspy.Module):
    """Ask once, with a predictor that may belong to others too."""

    def __init__(self, predictor):
        super().__init__()
        self.ask = predictor

    def forward(self, question):
        return self.ask(question=question)


@pytest.fixture
def hasty_threads():
    """Let threads take turns so often that they meet in the middle of anything."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


def uneven(prompt, number):
    """Return a wait that makes later calls end before earlier ones."""
    return 0.002 * (number % 3)


def learn(threads):
    """Learn on the office desk, compare on the rest; return the rounds and the comparison."""
    desk = OfficeDesk()
    agent, metric, environment = office_agent(desk), office_metric(desk), office_environment(desk)
    optimizer = EvoCUE(
        metric,
        reflection_lm=adviser_lm(latency=uneven),
        environment=environment,
        trial_tasks=5,
        proposal_tasks=7,
        max_rounds=2,
        num_threads=threads,
        progress=False,
    )
    with dspy.context(lm=clerk_lm(latency=uneven)):
        program = optimizer.compile(agent, trainset=TASKS[:22])
        comparison = compare(
            agent, program, TASKS[22:], metric, environment=environment, num_threads=threads, progress=False
        )
    assert desk == OfficeDesk()
    return optimizer.last_result, comparison


def decisions(result):
    """Return everything that was decided, and every trial, without what the clock decides."""
    trials = [
        [(one.task_id, one.status, one.before, one.after, one.checkpoint, one.changes) for one in group]
        for item in result.rounds
        for group in (
            *(candidate.trials for candidate in item.candidates),
            item.confirmation.pairs if item.confirmation else (),
        )
    ]
    fates = [
        [(candidate.edit.to_dict(), candidate.fate, candidate.reason) for candidate in item.candidates]
        for item in result.rounds
    ]
    errors = [trial.reason for trial in result.trials if trial.status in ("unresolved", "failed_attempt")]
    return errors, [item.base_scores for item in result.rounds], trials, fates, result.explain()


def test_many_threads_decide_as_one_does_on_programs_that_share_tools_and_a_desk(hasty_threads):
    (alone, compared_alone), (together, compared) = learn(1), learn(8)
    assert alone.edits
    for of_many, of_one in zip(decisions(together), decisions(alone), strict=True):
        assert of_many == of_one
    assert compared.tasks == compared_alone.tasks
    assert compared.before_rate < compared.after_rate == 1.0


def test_a_program_can_be_recorded_and_copied_while_another_with_its_predictor_comes_and_goes(hasty_threads):
    predictor = dspy.Predict("question -> answer")
    coming_and_going, steady = Asker(predictor), Asker(predictor)
    is_done = threading.Event()

    def come_and_go():
        while not is_done.is_set():
            with observed(coming_and_going):
                pass

    lm = scripted_lm(lambda prompt, number: chat_reply(answer="x"))
    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        with dspy.context(lm=lm):
            runs = record_runs(steady, QUESTIONS, lambda gold, pred: 1.0, num_threads=2)
            copies = [attach(steady, EDIT) for _ in range(300)]
            keys = {program_key(steady) for _ in range(300)}
            limits = [iteration_limits(steady) for _ in range(300)]
    finally:
        is_done.set()
        other.join()
    assert [[event.node for event in run.tape.events] for run in runs] == [["ask"]] * len(QUESTIONS)
    assert {copied.evocue.edits for copied in copies} == {(EDIT,)}
    assert keys == {runs[0].program_key}
    assert not any(limits)


def test_a_predictor_keeps_its_other_names_while_one_is_forgotten():
    predictor = dspy.Predict("question -> answer")
    seen = []

    class WatchingToken(str):
        """Looks at the predictor whenever it is compared, as another thread could at any moment."""

        __hash__ = str.__hash__

        def __ne__(self, other):
            seen.append(set(vars(predictor).get(NAMES, {})))
            return str.__ne__(self, other)

    with observed(Asker(predictor)) as first, observed(Asker(predictor)) as second:
        forget_name(predictor, WatchingToken(first))
        assert seen
        assert all(second in names for names in seen)
