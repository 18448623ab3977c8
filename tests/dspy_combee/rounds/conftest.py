"""A learner without a model: its program is a text of learned words, and scores how many words it knows."""

import threading

import dspy
import pytest

from dspy_combee.learners.base import Entry, Reflection, TextUpdate, Trajectory
from dspy_combee.runtime.execution.threads import ThreadExecutor
from dspy_combee.runtime.retry import RetryPolicy


class WordLearner:
    """A third learner, as a user would write it: no joining, no state of its own, instructions as the only memory."""

    def __init__(self):
        self.generated: list[str] = []
        self.curated: list[tuple[str, ...]] = []
        self.before_generate = lambda record_id: None
        self._lock = threading.Lock()

    def generate(self, program, example, record_id):
        self.before_generate(record_id)
        with self._lock:
            self.generated.append(record_id)
        is_known = f"<{example.word}>" in program.signature.instructions
        return Trajectory(record_id, example, dspy.Prediction(), float(is_known), f"learn <{example.word}>")

    def reflect(self, program, trajectory):
        if trajectory.score == 1.0:
            return ()
        return (Reflection(trajectory.feedback, (trajectory.record_id,), "self", trajectory.score),)

    def curate(self, program, reflections):
        with self._lock:
            self.curated.append(tuple(r for reflection in reflections for r in reflection.record_ids))
        if reflections[0].update is not None:
            return TextUpdate(tuple(entry for r in reflections for entry in r.update.entries))
        return TextUpdate(tuple(Entry(r.text, r.record_ids) for r in reflections))

    def update(self, program, update):
        changed = program.deepcopy()
        lines = [changed.signature.instructions, *(entry.text for entry in update.entries)]
        changed.signature = changed.signature.with_instructions("\n".join(lines))
        return changed


@pytest.fixture
def learner():
    return WordLearner()


@pytest.fixture
def program():
    return dspy.Predict("word -> meaning")


@pytest.fixture
def words():
    return [dspy.Example(word=f"w{i}").with_inputs("word") for i in range(10)]


@pytest.fixture
def options():
    return {"executor": ThreadExecutor(4), "retry": RetryPolicy(sleep=lambda seconds: None)}
