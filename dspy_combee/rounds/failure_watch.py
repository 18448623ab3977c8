"""When a run gives up: nothing works any more, and going on would call a pile of failures a program."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from dspy_combee.aggregation.base import Aggregated
from dspy_combee.errors import CombeeError, LMUnavailableError, MetricError
from dspy_combee.rounds.one_round import LearnedBatch

logger = logging.getLogger(__name__)

FAILED_RECORDS = 3
"""Records in a row that could not be run and scored, with none in between that could, after which a run gives up."""


@dataclass(slots=True)
class FailureWatch:
    """Counts failures in a row. Only the thread that runs the loop changes it."""

    failed_rounds: int = 0
    """Rounds in a row that gave no update because calls failed; one with nothing to learn is no failure."""
    failed_records: int = 0
    """Records in a row that could not be run and scored."""
    last_error: str = ""
    last_failure: Exception | None = None

    def see_records(self, learned: LearnedBatch) -> None:
        """Count the records of a batch that were lost.

        Raises:
            LMUnavailableError: The model failed on everything.
            MetricError: The metric did.
        """
        for record, failure in zip(learned.records, learned.failures, strict=True):
            is_lost = record.score is None and not record.reflections and bool(record.error)
            self.failed_records = self.failed_records + 1 if is_lost else 0
            self.last_error = record.error or self.last_error
            self.last_failure = failure or self.last_failure
        if self.failed_records >= FAILED_RECORDS and self.failed_records >= len(learned.records):
            raise self._outage()

    def see_round(self, learned: LearnedBatch, aggregated: Sequence[Aggregated]) -> None:
        """Count the round if it failed."""
        errors = [record.error for record in learned.records if record.error]
        errors += [call.error for item in aggregated for call in item.calls if call.error]
        has_update = any(item.update is not None for item in aggregated)
        self.failed_rounds = self.failed_rounds + 1 if errors and not has_update else 0
        self.last_error = errors[-1] if errors else self.last_error

    def give_up(self) -> str:
        """Log that the run ends because its rounds fail; return the error that they ended in."""
        logger.error("Stopped: %d rounds in a row gave no update. Last error: %s", self.failed_rounds, self.last_error)
        return self.last_error

    def refuse_a_run_without_one_record(self, records: int) -> None:
        """Refuse to end quietly where every record of a short run was lost.

        Raises:
            LMUnavailableError: The model failed on everything.
            MetricError: The metric did.
        """
        if self.failed_records and self.failed_records == records:
            raise self._outage()

    def _outage(self) -> CombeeError:
        kind = MetricError if isinstance(self.last_failure, MetricError) else LMUnavailableError
        error = kind(
            f"none of the last {self.failed_records} records could be run, scored and reflected on: {self.last_error}"
        )
        error.__cause__ = self.last_failure
        return error
