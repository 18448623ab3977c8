"""When missing scores stop being missing evidence and start being an outage: then a run ends with an error.

A single failed call is data. A model that never answers, or a metric that always raises, would turn a whole run into
noise that is paid for.
"""

from __future__ import annotations

from typing import Literal

from dspy_combee.errors import CombeeError, LMUnavailableError, MetricError

FaultKind = Literal["", "model", "metric", "other"]

FIRST_FAILURES = 3
"""So many failures before any success end the run."""
FAILURES_IN_A_ROW = 10
"""So many failures in a row end it later on."""

_MODEL = "the language model failed"
_METRIC = "the metric raised"


def fault_of(missing: str) -> FaultKind:
    """Say whose fault a missing score is, from the reason that a run or a trial gives for it."""
    if not missing:
        return ""
    if _MODEL in missing:
        return "model"
    return "metric" if _METRIC in missing else "other"


class FaultWatch:
    """Counts failures of the model and of the metric as steps finish. Used in one thread."""

    def __init__(self) -> None:
        """Start without any."""
        self._has_succeeded = False
        self._in_a_row = 0

    def observe(self, missing: str, *, of_stage: int) -> CombeeError | None:
        """Take note of a finished step; return the error that ends the run, if it is time.

        Args:
            missing: Why the step has no score; empty when it has one.
            of_stage: How many steps the stage has: a stage of two ends the run when both fail.
        """
        kind = fault_of(missing)
        if kind not in ("model", "metric"):
            self._has_succeeded = True
            self._in_a_row = 0
            return None
        self._in_a_row += 1
        limit = FAILURES_IN_A_ROW if self._has_succeeded else min(FIRST_FAILURES, of_stage)
        if self._in_a_row < limit:
            return None
        if kind == "metric":
            return MetricError(
                f"the metric must be able to score runs, but {self._in_a_row} in a row failed: {missing}"
            )
        return LMUnavailableError(f"{self._in_a_row} runs in a row have no score: {missing}")
