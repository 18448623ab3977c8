"""Call a user's metric whatever its signature, and turn what it returns into a score, or say what is wrong with it.

The same metric serves `dspy.Evaluate` (two or three arguments) and `dspy.GEPA` (five). A metric is called once a
rollout: its score and its feedback belong together.
"""

from __future__ import annotations

import inspect
import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dspy_combee.errors import MetricError

logger = logging.getLogger(__name__)

ARGUMENTS = ("gold", "pred", "trace", "pred_name", "pred_trace")


@dataclass(frozen=True, slots=True)
class Score:
    """What a metric said about one rollout."""

    value: float
    """Finite; usually 0 to 1, higher is better."""
    feedback: str
    """The metric's words; empty when it has none."""
    has_feedback: bool
    """Whether the metric gave feedback of its own."""
    raw: Any
    """What the metric returned."""


class MetricCall:
    """A user's metric with one way to call it and one kind of result.

    Safe to call from several threads. The first call runs alone, so that a metric that cannot work is found before
    the threads have paid for a batch.
    """

    def __init__(self, metric: Callable[..., Any], *, perfect_score: float = 1.0) -> None:
        """Look at the metric's signature; nothing is called.

        Args:
            metric: Takes (gold, pred), (gold, pred, trace) or all of (gold, pred, trace, pred_name, pred_trace).
            perfect_score: The best score there is; a higher one is reported once.

        Raises:
            TypeError: the metric is not callable, or takes another number of arguments.
        """
        if not callable(metric):
            raise TypeError(f"metric must be callable, got {type(metric).__name__}")
        self.metric = metric
        self.name = getattr(metric, "__name__", type(metric).__name__)
        self.accepts = _accepted_arguments(metric, self.name)
        self.is_told_predictor = self.accepts == len(ARGUMENTS) and not isinstance(metric, _WithFive)
        """Whether the metric knows which predictor its feedback is for."""
        self._perfect_score = perfect_score
        self._lock = threading.RLock()
        self._is_proven = False
        self._failure: MetricError | None = None
        self._warned_above_perfect = False

    def __call__(
        self,
        gold: Any,
        pred: Any,
        trace: Any = None,
        pred_name: str | None = None,
        pred_trace: Any = None,
        *,
        where: str = "",
    ) -> Score:
        """Score one prediction.

        Args:
            gold: The example.
            pred: What the program returned for it.
            trace: DSPy's trace of the run, or None.
            pred_name: The predictor that feedback is wanted for, or None.
            pred_trace: The part of the trace that belongs to it, or None.
            where: The example's name for errors, such as `trainset[3]`.

        Raises:
            MetricError: the metric returned something that is not a finite score, now or in its first call.
            Exception: whatever the metric raised.
        """
        values = (gold, pred, trace, pred_name, pred_trace)[: self.accepts]
        if self._is_proven:
            return self._scored_result(self.metric(*values), where)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                return self._scored_result(self.metric(*values), where)
            except MetricError as error:
                self._failure = None if self._is_proven else error
                raise

    def _scored_result(self, result: Any, where: str) -> Score:
        score = read_score(result, metric_name=self.name, where=where)
        with self._lock:
            self._is_proven = True
            if score.value > self._perfect_score and not self._warned_above_perfect:
                self._warned_above_perfect = True
                logger.warning(
                    "The metric %s returned %g, above perfect_score=%g: such rollouts count as perfect and teach "
                    "nothing. If the metric has another scale, set perfect_score.",
                    self.name,
                    score.value,
                    self._perfect_score,
                )
        return score


def five_argument_metric(metric: Callable[..., Any]) -> Callable[..., Any]:
    """Return a metric of two or three arguments in the form that `dspy.GEPA` asks for; one of five as it is.

    Raises:
        TypeError: the metric is not callable, or takes another number of arguments.
    """
    call = MetricCall(metric)
    return metric if call.accepts == len(ARGUMENTS) else _WithFive(call)


class _WithFive:
    """A metric of two or three arguments in the form of one of five."""

    def __init__(self, call: MetricCall) -> None:
        self.__name__ = call.name
        self.__doc__ = call.metric.__doc__
        self._call = call

    def __call__(self, gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        return self._call.metric(*(gold, pred, trace)[: self._call.accepts])


def read_score(result: Any, *, metric_name: str, where: str = "") -> Score:
    """Read a metric's result: a number, a bool, or a `dspy.Prediction` or dict with `score` and maybe `feedback`.

    Raises:
        MetricError: it is none of these, or the score is not finite. The message names metric, type and example.
    """
    value, feedback = _split(result)
    number = _as_number(value)
    place = f" for {where}" if where else ""
    if number is None:
        kind = type(result).__name__ if value is result else f"{type(result).__name__} with a {type(value).__name__}"
        raise MetricError(
            f"metric {metric_name} must return a number, or a dspy.Prediction or dict with a numeric 'score' "
            f"and an optional 'feedback'; got {kind}{place}: {result!r:.200}"
        )
    if not math.isfinite(number):
        raise MetricError(f"metric {metric_name} must return a finite score, got {number}{place}")
    text = "" if feedback is None else str(feedback)
    return Score(number, text, has_feedback=feedback is not None, raw=result)


def _split(result: Any) -> tuple[Any, Any]:
    if isinstance(result, Mapping):
        return result.get("score"), result.get("feedback")
    if hasattr(result, "score") and not isinstance(result, int | float):
        return result.score, getattr(result, "feedback", None)
    return result, None


def _as_number(value: Any) -> float | None:
    """Return the value as a float, or None when it is not a number (text that reads like one is not)."""
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str | bytes) or value is None or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _accepted_arguments(metric: Callable[..., Any], name: str) -> int:
    """Return how many of the five arguments to pass: the most that the metric's signature takes."""
    try:
        signature = inspect.signature(metric)
    except (TypeError, ValueError):
        return 3
    for count in (5, 3, 2):
        try:
            signature.bind(*(None,) * count)
        except TypeError:
            continue
        return count
    wanted = ", ".join(ARGUMENTS)
    raise TypeError(f"metric {name} must take 2, 3 or 5 of the arguments ({wanted}), got {name}{signature}")
