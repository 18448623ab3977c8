"""Run a program on one example and score it: a program that raises is a record, a model that fails is none."""

from __future__ import annotations

from typing import Any

import dspy

from dspy_combee.errors import LMUnavailableError, MetricError
from dspy_combee.learners.base import Trajectory
from dspy_combee.metrics import MetricCall
from dspy_combee.runtime.retry import ErrorKind, classify_error


def run_program(metric: MetricCall | None, program: Any, example: Any, record_id: str) -> Trajectory:
    """Return the run with its trace and, where there is a metric, its score.

    Raises:
        LMUnavailableError: The model failed: there is nothing to learn from, and no score.
        MetricError: The metric raised, or returned something that is no score.
    """
    with dspy.context(trace=[]):
        try:
            prediction = program(**example.inputs())
        except Exception as error:  # noqa: BLE001 - a program that raises is a record like any other
            _raise_if_unavailable(error)
            trace = tuple(dspy.settings.trace)
            words = f"{type(error).__name__}: {error}"
            return Trajectory(record_id, example, feedback=words, trace=trace, error=words)
        trace = tuple(dspy.settings.trace)
    if metric is None:
        return Trajectory(record_id, example, prediction, trace=trace)
    score = _score(metric, example, prediction, trace)
    return Trajectory(record_id, example, prediction, score.value, score.feedback, trace)


def _raise_if_unavailable(error: Exception) -> None:
    kind = classify_error(error)
    # A prompt that is too long is the program's own doing and happens again: a record, not an outage.
    if kind is not ErrorKind.OTHER and type(error).__name__ != "ContextWindowExceededError":
        raise LMUnavailableError(f"the model failed ({kind.value}): {type(error).__name__}: {error}") from error


def _score(metric: MetricCall, example: Any, prediction: Any, trace: Any) -> Any:
    # As `dspy.Evaluate` does: many metrics take a trace as the sign to be strict. Those of GEPA's form want to read it.
    seen = trace if metric.accepts == 5 else None
    try:
        return metric(example, prediction, seen)
    except MetricError:
        raise
    except Exception as error:
        _raise_if_unavailable(error)
        raise MetricError(f"metric {metric.name} raised {type(error).__name__}: {error}") from error
