"""The work on one record of a round: run and score the program, then reflect; all that happens in a worker."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import dspy

from dspy_combee.errors import ReflectionError
from dspy_combee.learners.base import PromptLearner, Reflection, Trajectory
from dspy_combee.rounds.run_files import Learned
from dspy_combee.runtime.budget import Meter
from dspy_combee.runtime.fresh_sample import fresh_sample
from dspy_combee.runtime.retry import RetryPolicy, call_with_retry
from dspy_combee.seeding import branch_rng
from dspy_combee.truncation import cut_middle

Result = TypeVar("Result")

MAX_FEEDBACK_CHARS = 1_000
"""The most of a feedback that is kept to say where a learned line came from."""


@dataclass(frozen=True, slots=True)
class RecordWork:
    """How the records of a run are worked on. Safe to use from several threads."""

    learner: PromptLearner
    meter: Meter
    retry: RetryPolicy
    seed: int
    reflection_lm: Any = None
    """The model that reflections are asked of; None means that of the caller's context."""

    def generate(self, program: Any, example: Any, record_id: str) -> Trajectory:
        """Run and score, again when the model fails in a way that passes."""
        rng = branch_rng(self.seed, "retry", record_id)
        return call_with_retry(lambda: self.learner.generate(program, example, record_id), self.retry, rng)

    def learn(self, program: Any, item: Any, record_id: str) -> tuple[Trajectory, Learned]:
        """Return the run and what it taught. A failed reflection does not lose the run's score.

        Raises:
            Exception: The run could not be made or scored.
        """
        with self.meter.stage("generate"):
            trajectory = item if isinstance(item, Trajectory) else self.generate(program, item, record_id)
        feedback = cut_middle(trajectory.feedback, MAX_FEEDBACK_CHARS)
        try:
            with reflection_context(self.reflection_lm):
                reflections = self._reflect(program, trajectory)
        except Exception as error:  # noqa: BLE001 - recorded with the record
            failure = f"reflection failed: {type(error).__name__}: {error}"
            return trajectory, Learned(record_id, trajectory.score, (), feedback, failure)
        return trajectory, Learned(record_id, trajectory.score, tuple(reflections), feedback, trajectory.error or "")

    def _reflect(self, program: Any, trajectory: Trajectory) -> Sequence[Reflection]:
        rng = branch_rng(self.seed, "retry", trajectory.record_id, "reflect")
        with self.meter.stage("reflect"):
            try:
                return self._try(lambda: self.learner.reflect(program, trajectory), rng)
            except ReflectionError:
                with fresh_sample(1):
                    return self._try(lambda: self.learner.reflect(program, trajectory), rng)

    def _try(self, function: Callable[[], Result], rng: random.Random) -> Result:
        return call_with_retry(function, self.retry, rng)


def reflection_context(lm: Any) -> AbstractContextManager[Any]:
    """Return a context in which `dspy.settings.lm` is the reflection model; the caller's own for None."""
    return nullcontext() if lm is None else dspy.context(lm=lm)
