"""When missing scores stop being missing evidence and start being an outage: then a run ends with an error.

A single failed call is data. A model that never answers, or a metric that always raises, would turn a whole run into
noise that is paid for.
"""

from __future__ import annotations

from dspy_combee.errors import CombeeError, LMUnavailableError, MetricError
from dspy_evocue.missing_scores import MissingScore
from dspy_evocue.trial_record import TrialRecord

FIRST_FAILURES = 3
"""So many failures before any success end the run."""
FAILURES_IN_A_ROW = 10
"""So many failures in a row end it later on."""


def missing_from(record: TrialRecord) -> MissingScore | None:
    """Return why a trial has no scores; None when it has them, or needed none."""
    return None if record.missing is None else MissingScore(record.missing, record.reason)


class FaultWatch:
    """Counts failures of the model and of the metric as steps finish. Used in one thread."""

    def __init__(self) -> None:
        """Start without any."""
        self._has_succeeded = False
        self._has_history = False
        self._in_a_row = 0

    def note_history(self) -> None:
        """Take note that results of an earlier process are known: the first steps are not the first of the run."""
        self._has_history = True

    def observe(self, missing: MissingScore | None, *, of_stage: int) -> CombeeError | None:
        """Take note of a finished step; return the error that ends the run, if it is time.

        Args:
            missing: Why the step has no score; None when it has one.
            of_stage: How many steps the stage has: when the first one has two, the run ends when both fail.
        """
        if missing is None or missing.kind not in ("model", "metric"):
            self._has_succeeded = True
            self._in_a_row = 0
            return None
        self._in_a_row += 1
        first = FIRST_FAILURES if self._has_history else min(FIRST_FAILURES, of_stage)
        if self._in_a_row < (FAILURES_IN_A_ROW if self._has_succeeded else first):
            return None
        if missing.kind == "metric":
            return MetricError(
                f"the metric must be able to score runs, but {self._in_a_row} in a row failed: {missing}"
            )
        return LMUnavailableError(f"{self._in_a_row} runs in a row have no score: {missing}")
