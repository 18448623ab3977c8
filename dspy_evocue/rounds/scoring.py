"""The user's metric as a run of EvoCUE calls it: counted where it was called, and held to the scale of the scores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import dspy

from dspy_combee.errors import MetricError
from dspy_combee.metrics import MetricCall, Score
from dspy_combee.runtime.budget import Meter

_METERS_KEY = "_evocue_step_meters"


def counting_metric_calls(*meters: Meter) -> AbstractContextManager[None]:
    """Count the metric calls of everything inside the block on these meters."""
    return dspy.context(**{_METERS_KEY: meters})


class CountedMetric(MetricCall):
    """A metric whose calls are counted by the meters of the step that makes them."""

    def __init__(
        self, metric: Callable[..., Any], *, perfect_score: float = 1.0, low: float | None = None, reason: str = ""
    ) -> None:
        """Look at the metric's signature; nothing is called.

        Args:
            metric: As for `MetricCall`.
            perfect_score: As for `MetricCall`.
            low: The lowest score that the acceptance criterion can judge, `perfect_score` then being the highest;
                None when any finite score will do.
            reason: Which setting asks for the bounds, for the error.
        """
        super().__init__(metric, perfect_score=perfect_score)
        self._low = low
        self._high = perfect_score
        self._reason = reason

    def __call__(self, gold: Any, pred: Any, *rest: Any, **named: Any) -> Score:
        """Score one prediction; see `MetricCall`."""
        try:
            score = super().__call__(gold, pred, *rest, **named)
        finally:
            for meter in dspy.settings.get(_METERS_KEY, ()):
                meter.count_metric_calls()
        if self._low is not None and not self._low <= score.value <= self._high:
            raise MetricError(
                f"metric {self.name} must return scores between {self._low:g} and perfect_score={self._high:g} for "
                f"{self._reason}, got {score.value:g}; set perfect_score (and failure_score), or another acceptance"
            )
        return score
