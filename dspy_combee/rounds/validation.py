"""Score a program on a validation set: a program that raises scores a failure, a model that fails scores nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dspy_combee.errors import LMUnavailableError, MetricError
from dspy_combee.learners.base import Trajectory
from dspy_combee.rounds.records import Validation
from dspy_combee.runtime.execution.base import Executor, Outcome

Generate = Callable[[Any, Any, str], Trajectory]
"""A program, an example and a record id in, a scored trajectory out."""


def is_fatal(error: BaseException | None) -> bool:
    """Whether an error will come again with every record: a metric that returns something that is no score."""
    return isinstance(error, MetricError) and error.__cause__ is None


def stop_if_fatal(outcome: Outcome[Any]) -> None:
    """Raise what cannot get better, so that the executor starts nothing more."""
    if outcome.error is not None and is_fatal(outcome.error):
        raise outcome.error


def validate(
    generate: Generate,
    program: Any,
    valset: Sequence[Any],
    *,
    executor: Executor,
    failure_score: float = 0.0,
    after_rounds: int = 0,
    recall: Callable[[int], float | None] = lambda _: None,
    keep: Callable[[int, float], None] = lambda _index, _score: None,
) -> Validation:
    """Run and score a program on every example.

    Args:
        generate: Runs and scores, as `PromptLearner.generate` does.
        program: What is validated; not changed.
        valset: At least one example.
        executor: Where the runs happen.
        failure_score: What a program that raises scores.
        after_rounds: For the record.
        recall: Gives the score of an example that is known already, by position.
        keep: Told of each new score.

    Raises:
        LMUnavailableError: The model failed on more than half of the examples: a mean of the rest says little.
        MetricError: The metric returned something that is no score.
    """

    def score(index: int) -> float | None:
        known = recall(index)
        if known is not None:
            return known
        trajectory = generate(program, valset[index], f"v{index + 1}")
        found = failure_score if trajectory.error is not None else trajectory.score
        if found is not None:
            keep(index, found)
        return found

    outcomes = executor.run(score, range(len(valset)), on_done=stop_if_fatal)
    scores = tuple(outcome.value for outcome in outcomes)
    known = [value for value in scores if value is not None]
    if len(known) * 2 < len(scores):
        cause = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
        if isinstance(cause, MetricError):
            raise cause
        raise LMUnavailableError(
            f"at least half of the validation set must be scored, got {len(known)} of {len(scores)}: {cause}"
        ) from cause
    return Validation(after_rounds, sum(known) / len(known), scores)
