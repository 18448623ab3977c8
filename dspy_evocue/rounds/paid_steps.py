"""Run the steps of a stage that are not known yet: in threads, within the budget, each kept as soon as it is paid for.

What a step does and where it is kept is decided by the stages; here is only what all of them share: the order of the
results, the spend of each step, what an interrupt, a spent budget or an outage leaves behind.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dspy_combee.errors import BudgetExhausted, CombeeError
from dspy_combee.runtime.adaptive_limit import AdaptiveLimit
from dspy_combee.runtime.bars import share_progress_bars
from dspy_combee.runtime.budget import Meter, Spend
from dspy_combee.runtime.execution.base import Outcome
from dspy_combee.runtime.execution.threads import ThreadExecutor
from dspy_combee.runtime.rate_limit_watch import telling_rate_limits
from dspy_evocue.missing_scores import MissingScore
from dspy_evocue.rounds.faults import FaultWatch
from dspy_evocue.rounds.scoring import counting_metric_calls

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Step(Generic[Result]):
    """One thing to pay for."""

    run: Callable[[], Result]
    keep: Callable[[Result, Spend], None]
    """Puts the result on disk; called in the caller's thread."""
    known: Result | None = None
    """The result, when it was paid for before: then nothing is run."""
    metric_calls: int = 0
    """The most that it scores; it starts only if the budget allows so many."""


class _Stopped(BaseException):
    """Ends a stage because of an error: no further step may start."""


class PaidSteps:
    """Runs steps and accounts for them. One for a whole run."""

    def __init__(self, meter: Meter, *, num_threads: int, progress: bool) -> None:
        """Store the settings.

        Args:
            meter: Counts everything and holds the budget; it is installed by the caller.
            num_threads: How many steps run at once; fewer while the provider refuses calls.
            progress: Whether each stage shows a progress bar.
        """
        self._meter = meter
        self._num_threads = num_threads
        self._limit = AdaptiveLimit(num_threads)
        self._progress = progress
        self._faults = FaultWatch()
        self._held_back: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._reserved = 0

    @property
    def meter(self) -> Meter:
        """What counts the spend of the whole run."""
        return self._meter

    def run(
        self,
        stage: str,
        steps: Sequence[Step[Result]],
        *,
        missing: Callable[[Result], MissingScore | None] | None = None,
    ) -> list[Result]:
        """Return one result a step, in their order.

        Steps that failed because the model did not answer are kept only once it has answered again, so that a run
        resumed after an outage tries them again.

        Args:
            stage: Named in the progress bar and in the account.
            steps: What to run; the known ones cost nothing.
            missing: Tells why a result has no score (None when it has one); None when results have no scores.

        Raises:
            BudgetExhausted: When the budget does not allow the next step.
            KeyboardInterrupt: After the calls in flight have ended; every step that was finished is kept.
            LMUnavailableError: When the model does not answer.
            MetricError: When the metric returns no score, or always raises.
        """
        from tqdm.auto import tqdm

        results: dict[int, Result] = {index: step.known for index, step in enumerate(steps) if step.known is not None}
        if results:
            self._faults.note_history()
        todo = [index for index in range(len(steps)) if index not in results]
        if not todo:
            return [results[index] for index in range(len(steps))]
        share_progress_bars()
        with (
            tqdm(total=len(todo), desc=stage, unit="step", leave=False, disable=not self._progress) as bar,
            self._meter.stage(_account(stage)),
            telling_rate_limits(self._limit),
        ):
            stage_run = _StageRun(steps, todo, results, self, missing, bar)
            try:
                ThreadExecutor(self._num_threads, limit=self._limit).run(
                    self._paid, [steps[index] for index in todo], on_done=stage_run.take
                )
            except _Stopped as stopped:
                raise stopped.__cause__ or stopped from None
        return [results[index] for index in range(len(steps))]

    def account(
        self, step: Step[Result], result: Result, spend: Spend, missing: MissingScore | None, of_stage: int
    ) -> CombeeError | None:
        """Keep what a scored step gave, or hold it back; return the error that ends the run, if it is time.

        Args:
            step: The step.
            result: What it gave.
            spend: What it took.
            missing: Why it has no score; None when it has one.
            of_stage: How many steps its stage has.
        """
        if missing is not None and missing.kind == "model":
            self._held_back.append(functools.partial(step.keep, result, spend))
        else:
            step.keep(result, spend)
        if missing is None:
            self.keep_the_rest()
        return self._faults.observe(missing, of_stage=of_stage)

    def keep_the_rest(self) -> None:
        """Keep the failures that were held back: there is no outage, or the run has ended without one."""
        while self._held_back:
            self._held_back[0]()
            self._held_back.pop(0)

    def _paid(self, step: Step[Result]) -> tuple[Result, Spend]:
        meter = Meter()
        self._reserve(step.metric_calls)
        try:
            with meter.installed(), counting_metric_calls(self._meter, meter):
                result = step.run()
        except Exception as error:
            raise _Stopped(str(error)) from error
        finally:
            with self._lock:
                self._reserved -= step.metric_calls
        return result, meter.spend

    def _reserve(self, metric_calls: int) -> None:
        self._meter.check()
        limit = self._meter.budget.max_metric_calls
        with self._lock:
            # Steps in flight count with all that they may still score, so the limit is never passed.
            spent = self._meter.spend.metric_calls + self._reserved
            if limit is not None and metric_calls and spent + metric_calls > limit:
                raise BudgetExhausted("max_metric_calls", limit=limit, spent=self._meter.spend.metric_calls)
            self._reserved += metric_calls


@dataclass(slots=True)
class _StageRun(Generic[Result]):
    """Takes the outcomes of one stage, in the caller's thread."""

    steps: Sequence[Step[Result]]
    todo: Sequence[int]
    results: dict[int, Result]
    paid: PaidSteps
    missing: Callable[[Result], MissingScore | None] | None
    bar: Any

    def take(self, outcome: Outcome[tuple[Result, Spend]]) -> None:
        if outcome.value is None:
            return
        index = self.todo[outcome.index]
        if index in self.results:
            return  # an interrupt struck while it was taken the first time
        result, spend = outcome.value
        error = None
        if self.missing is None:
            self.steps[index].keep(result, spend)
        else:
            reason = self.missing(result)
            error = self.paid.account(self.steps[index], result, spend, reason, of_stage=len(self.todo))
        self.results[index] = result
        self.bar.update()
        if error is not None:
            raise _Stopped(str(error)) from error


def _account(stage: str) -> str:
    """Return the name under which a stage is accounted for: the same in every round."""
    return stage.rpartition(": ")[2]
