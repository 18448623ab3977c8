"""What a trial cannot know is missing and no score, and what cannot work is refused before any call."""

import threading

import dspy
import pytest
from dspy.utils.exceptions import LMRateLimitError
from house import EXAMPLE, LESSON, RECURRING, House, PlainEnvironment, locked, resident, resident_lm

from dspy_combee.errors import BudgetExhausted, MetricError
from dspy_combee.runtime.budget import Budget, Meter
from dspy_combee.testing import scripted_lm
from dspy_evocue import (
    CallSite,
    InstructionEdit,
    Rule,
    deepcopy_environment,
    paired_trial,
    record_runs,
    reexecuting_environment,
)
from dspy_evocue.errors import CallSiteNotFoundError, EnvironmentFault, MissingFeatureError, RecordingError
from dspy_evocue.testing import chat_reply


def test_a_program_that_raises_in_the_edited_arm_is_a_scored_failed_attempt():
    def reply(prompt, call_number):
        return "nothing that can be parsed" if LESSON in prompt else chat_reply(answer="a")

    edit = InstructionEdit(at=CallSite("START", "self"), text=LESSON)
    with dspy.context(lm=scripted_lm(reply)):
        trial = paired_trial(dspy.Predict("question -> answer"), edit, EXAMPLE, lambda gold, pred: 1.0)
        unscored = paired_trial(
            dspy.Predict("question -> answer"), edit, EXAMPLE, lambda gold, pred: 1.0, failure_score=None
        )
    assert (trial.status, trial.before, trial.after) == ("failed_attempt", 1.0, 0.0)
    assert "AdapterParseError" in trial.reason
    assert trial.evidence.is_usable
    assert (unscored.status, unscored.before, unscored.after) == ("unresolved", None, None)


def test_an_outage_in_one_arm_is_missing_on_both_sides_also_where_the_program_swallows_it():
    def reply(prompt, call_number):
        return LMRateLimitError("429", model="fake") if LESSON in prompt else chat_reply(answer="a")

    class Stubborn(dspy.Module):
        def __init__(self):
            super().__init__()
            self.ask = dspy.Predict("question -> answer")

        def forward(self, question):
            try:
                return self.ask(question=question)
            except Exception:  # noqa: BLE001
                return dspy.Prediction(answer="never mind")

    edit = InstructionEdit(at=CallSite("START", "ask"), text=LESSON)
    with dspy.context(lm=scripted_lm(reply)):
        trial = paired_trial(Stubborn(), edit, EXAMPLE, lambda gold, pred: 0.0)
    assert (trial.status, trial.before, trial.after) == ("unresolved", None, None)
    assert "429" in trial.reason


def test_a_metric_that_raises_is_missing_evidence_and_one_that_returns_nothing_is_an_error():
    def picky(gold, pred):
        raise ZeroDivisionError("no ground")

    edit = InstructionEdit(at=CallSite("START", "self"), text=LESSON)
    with dspy.context(lm=scripted_lm(lambda prompt, number: chat_reply(answer="a"))):
        trial = paired_trial(dspy.Predict("question -> answer"), edit, EXAMPLE, picky)
        with pytest.raises(MetricError, match="must return a number"):
            paired_trial(dspy.Predict("question -> answer"), edit, EXAMPLE, lambda gold, pred: None)
    assert trial.status == "unresolved"
    assert "ZeroDivisionError" in trial.reason


def test_a_program_that_is_not_deterministic_diverges_and_is_never_scored():
    ticks = iter(range(1000))

    class Ticking(dspy.Module):
        def __init__(self):
            super().__init__()
            self.first = dspy.Predict("question -> plan")
            self.second = dspy.Predict("plan -> answer")

        def forward(self, question):
            self.first(question=f"{question} at {next(ticks)}")
            return self.second(plan="p")

    edit = InstructionEdit(at=CallSite("first", "second"), text=LESSON)
    lm = scripted_lm(lambda prompt, number: chat_reply(plan="p", answer="a"))
    with dspy.context(lm=lm):
        trial = paired_trial(Ticking(), edit, EXAMPLE, lambda gold, pred: 1.0)
    assert (trial.status, trial.before) == ("unresolved", None)
    assert "diverged" in trial.reason
    assert "at 0" in trial.reason
    assert "at 1" in trial.reason


def test_a_world_that_does_not_repeat_itself_diverges_under_re_execution():
    made = []

    class Moody(House):
        def __init__(self):
            super().__init__()
            made.append(self)
            self.mood = len(made)

        def walk(self, room: str) -> str:
            """Walk to a room."""
            return f"in {room}, mood {self.mood}"

    house = Moody()
    with dspy.context(lm=resident_lm()):
        trial = paired_trial(
            resident(house), RECURRING, EXAMPLE, locked(house), environment=reexecuting_environment(Moody)
        )
    assert trial.status == "unresolved"
    assert "mood 2" in trial.reason
    assert "mood 3" in trial.reason


@pytest.mark.parametrize("fails_in", ["reset", "snapshot", "restore"])
def test_an_environment_that_fails_leaves_the_trial_unresolved(fails_in):
    class Broken(PlainEnvironment):
        def __getattribute__(self, name):
            if name == fails_in:
                return self.broken
            return super().__getattribute__(name)

        def broken(self, *arguments):
            raise RuntimeError("the world is on fire")

    house = House()
    with dspy.context(lm=resident_lm()):
        trial = paired_trial(resident(house), RECURRING, EXAMPLE, locked(house), environment=Broken(house))
    assert (trial.status, trial.before, trial.after) == ("unresolved", None, None)
    assert "the world is on fire" in trial.reason


def test_objects_that_cannot_be_copied_are_refused_before_any_run():
    house = House()
    house.lock_object = threading.Lock()
    with pytest.raises(EnvironmentFault, match="deep-copyable"):
        deepcopy_environment(house)


def test_a_recording_of_another_program_or_example_is_refused():
    program = dspy.Predict("question -> answer")
    other = dspy.Predict(dspy.Signature("question -> answer", "Other instructions."))
    edit = InstructionEdit(at=CallSite("START", "self"), text=LESSON)
    with dspy.context(lm=scripted_lm(lambda prompt, number: chat_reply(answer="a"))):
        (recording,) = record_runs(program, [EXAMPLE], lambda gold, pred: 1.0, num_threads=1)
        with pytest.raises(RecordingError, match="must be of this program"):
            paired_trial(other, edit, EXAMPLE, lambda gold, pred: 1.0, recording=recording)
        with pytest.raises(RecordingError, match="must be of this example"):
            paired_trial(
                program,
                edit,
                EXAMPLE.copy(question="else").with_inputs("question"),
                lambda gold, pred: 1.0,
                recording=recording,
            )


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"program": "agent"}, TypeError, "must be a dspy.Module"),
        ({"edit": InstructionEdit(at=CallSite("*", "planner"), text="x")}, CallSiteNotFoundError, "it has self"),
        (
            {"edit": InstructionEdit(at=CallSite("*", "self"), text="x", when=Rule.of(mood="good"))},
            MissingFeatureError,
            "mood, which nothing computes",
        ),
        ({"edit": ()}, ValueError, "at least one edit"),
        ({"example": {"question": "q"}}, TypeError, "must be a dspy.Example"),
        ({"example": dspy.Example(question="q")}, ValueError, "with_inputs"),
        ({"metric": 1.0}, TypeError, "metric must be callable"),
        ({"environment": House()}, TypeError, "reset, snapshot and restore"),
    ],
)
def test_bad_input_is_refused_before_any_call(changed, error, message):
    lm = scripted_lm(lambda prompt, number: chat_reply(answer="a"))
    arguments = {
        "program": dspy.Predict("question -> answer"),
        "edit": InstructionEdit(at=CallSite("START", "self"), text=LESSON),
        "example": EXAMPLE,
        "metric": lambda gold, pred: 1.0,
        **changed,
    }
    with dspy.context(lm=lm), pytest.raises(error, match=message):
        paired_trial(**arguments)
    assert lm.engine.calls == 0


def test_a_spent_budget_gets_through_the_agent_that_swallows_errors():
    house = House()
    with dspy.context(lm=resident_lm()), Meter(Budget(max_lm_calls=4)).installed(), pytest.raises(BudgetExhausted):
        paired_trial(resident(house), RECURRING, EXAMPLE, locked(house), environment=deepcopy_environment(house))
