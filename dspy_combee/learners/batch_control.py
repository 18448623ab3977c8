"""The batch-size controller at work inside a run: what to try next, what was seen, what the budget still allows.

Mutable on purpose: it lives in one compile loop. The rule itself is `dspy_combee.batch_size`, which is pure.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from dspy_combee.batch_size import BatchSizeController, ControllerState, DelayFit
from dspy_combee.scan import SMALL_BATCH

logger = logging.getLogger(__name__)

ATTEMPTS_PER_CANDIDATE = 2
PROFILING_SHARE = 0.5
"""The part of the metric calls that profiling may take at the most."""


def controller_within(
    controller: BatchSizeController, *, train_size: int, metric_calls: int | None, num_threads: int
) -> BatchSizeController:
    """Return the controller bounded by what a run has: examples, metric calls, threads.

    Sizes are kept while profiling them (each takes a batch twice, parent and child) stays within its share of the
    metric calls; the cap leaves room for at least three batches.
    """
    cap = min(train_size, controller.cap or train_size)
    if metric_calls is not None:
        cap = max(1, min(cap, metric_calls // 6))
    candidates: list[int] = []
    cost = 0
    for size in controller.candidates:
        cost += 2 * size
        if size > cap or (metric_calls is not None and cost > PROFILING_SHARE * metric_calls):
            break
        candidates.append(size)
    return BatchSizeController(
        candidates=tuple(candidates) or (cap,),
        tau=controller.tau,
        cap=cap,
        num_threads=controller.num_threads or num_threads,
    )


def fixed_size_within(batch_size: int, *, train_size: int, metric_calls: int | None, val_size: int) -> int:
    """Return the user's batch size bounded by what a run has.

    It is cut to the train set, and to the metric calls where not even one batch (for parent and child) and the
    validations before and after it would fit. Batches of up to three examples are left to GEPA's own counting.
    """
    size = min(batch_size, train_size)
    if metric_calls is None or size <= SMALL_BATCH:
        return size
    return min(size, max(1, (metric_calls - 2 * val_size) // 2))


@dataclass(slots=True)
class BatchControl:
    """Gives the size of each batch and learns from how long it took."""

    controller: BatchSizeController
    fixed: int | None = None
    """The user's own batch size; None lets the controller decide."""
    _state: ControllerState | None = None
    _requested: int = 0
    _attempts: int = 0
    _was_announced: bool = False

    @property
    def state(self) -> ControllerState:
        """What the controller has seen."""
        return self._state if self._state is not None else self.controller.start()

    @property
    def fit(self) -> DelayFit | None:
        """The fit so far; None for a fixed size or before anything was timed."""
        if self.fixed is not None or not self.state.observations:
            return None
        return self.controller.fit(self.state)

    def size(self, *, affordable: int | None = None) -> int:
        """Return the size of the next batch: the user's own, or the controller's within what the budget affords.

        The user's own is never cut here, so that a run which goes on with a larger budget has the same batches.
        """
        if self.fixed is not None:
            return self.fixed
        self._requested = self.controller.pick(self.state)
        return self._requested if affordable is None else max(1, min(self._requested, affordable))

    def observe(self, *, batch_size: int, seconds: float | None) -> None:
        """Take note of a finished iteration; `seconds` is None when its time says nothing.

        It says nothing when the iteration was skipped or failed, or when answers came from the cache. A candidate is
        given up after two such iterations.
        """
        if self.fixed is not None or not self.controller.is_profiling(self.state):
            return
        if seconds is not None and batch_size == self._requested:
            self._state = self.controller.observe(self.state, batch_size=batch_size, seconds=seconds)
            self._attempts = 0
        else:
            self._attempts += 1
            if self._attempts >= ATTEMPTS_PER_CANDIDATE or batch_size != self._requested:
                self._state = self.controller.skip(self.state, batch_size=self._requested)
                self._attempts = 0
        self._announce()

    def replay(self, observations: Sequence[tuple[int, float | None]]) -> None:
        """Take over what an earlier part of the run has seen: (batch size, seconds) an iteration, in order."""
        for batch_size, seconds in observations:
            self.size()
            self.observe(batch_size=batch_size, seconds=seconds)

    def _announce(self) -> None:
        if self._was_announced or self.controller.is_profiling(self.state):
            return
        self._was_announced = True
        fit = self.controller.fit(self.state)
        log = logger.warning if fit.is_fallback else logger.info
        log("Batch size %d from now on: %s.", fit.batch_size, fit.reason)
