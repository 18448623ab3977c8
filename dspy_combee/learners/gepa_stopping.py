"""When a GEPA run ends, and what the reason is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dspy_combee.errors import LMUnavailableError
from dspy_combee.learners.gepa_observer import GepaObserver
from dspy_combee.report.result import StopReason

FAILED_PROPOSALS_IN_A_ROW = 3
IDLE_ITERATIONS = 20
"""Iterations that spend nothing before the run is given up: GEPA itself would spin for ever."""


class Stopping:
    """A GEPA stop callback that also remembers why it said stop.

    Args:
        observer: Knows the rounds and the failed proposals.
        on_checkpoint: Called with `i` of the state that GEPA is about to write.
        perfect_score: Stop when the best candidate's mean validation score reaches it; None never does.
        patience: Rounds without a better candidate before the run ends; None for no such limit.
        max_metric_calls: GEPA's own limit, to name the reason.
        affordable: Whether the budget still allows a useful iteration.
        own: The user's stop callbacks.
    """

    def __init__(
        self,
        *,
        observer: GepaObserver,
        on_checkpoint: Callable[[int], None],
        perfect_score: float | None,
        patience: int | None,
        max_metric_calls: Callable[[], int | None],
        affordable: Callable[[Any], bool],
        own: Sequence[Callable[[Any], bool]],
    ) -> None:
        self.reason: StopReason | None = None
        self._observer = observer
        self._on_checkpoint = on_checkpoint
        self._perfect_score = perfect_score
        self._patience = patience
        self._max_metric_calls = max_metric_calls
        self._affordable = affordable
        self._own = tuple(own)
        self._last_spend: tuple[int, int] = (-1, 0)

    def __call__(self, state: Any) -> bool:
        """Say whether the run should end.

        Raises:
            LMUnavailableError: the reflection model failed in several proposals in a row.
        """
        self._observer.state = state
        self._observer.settle()
        self._raise_when_reflection_is_down()
        self.reason = self._reason(state)
        self._on_checkpoint(state.i)
        return self.reason is not None

    def _reason(self, state: Any) -> StopReason | None:
        scores = list(state.program_full_scores_val_set)
        best = max(scores)
        if self._perfect_score is not None and best >= self._perfect_score:
            return "perfect"
        limit = self._max_metric_calls()
        if (limit is not None and state.total_num_evals >= limit) or not self._affordable(state):
            return "budget"
        if self._patience is not None and self._rounds_without_gain(scores) >= self._patience:
            return "no_improvement"
        if self._is_idle(state):
            return "no_improvement"
        return "stopped" if any([stop(state) for stop in self._own]) else None

    def _rounds_without_gain(self, scores: list[float]) -> int:
        best = scores[0]
        without = 0
        for finished in self._observer.rounds:
            if finished.val_score is not None and finished.val_score > best:
                best, without = finished.val_score, 0
            else:
                without += 1
        return without

    def _is_idle(self, state: Any) -> bool:
        spent, since = self._last_spend
        if state.total_num_evals != spent:
            self._last_spend = (state.total_num_evals, state.i)
            return False
        return state.i - since >= IDLE_ITERATIONS

    def _raise_when_reflection_is_down(self) -> None:
        failed = self._observer.failed_proposals
        if failed >= FAILED_PROPOSALS_IN_A_ROW:
            raise LMUnavailableError(
                f"the reflection model must answer, {failed} proposals in a row got nothing usable from it; "
                f"last: {self._observer.last_proposal_error}"
            )
