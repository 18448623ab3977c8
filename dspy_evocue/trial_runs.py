"""Many trials at once: one shared program object, several threads, a budget, and nothing lost when it stops early."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dspy_combee.errors import BudgetExhausted
from dspy_combee.runtime.budget import Budget, Meter
from dspy_combee.runtime.execution.base import Outcome
from dspy_combee.runtime.execution.threads import ThreadExecutor, default_num_workers
from dspy_evocue.edits import Edit
from dspy_evocue.environments import Environment, ForkingEnvironment
from dspy_evocue.episodes import Recording, check_example, plan_runs, record_run
from dspy_evocue.features import FeatureFunction
from dspy_evocue.rules import TrialKind
from dspy_evocue.trial_record import TrialRecord
from dspy_evocue.trials import Trial, task_name


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """One trial to be run."""

    edits: Edit | Sequence[Edit]
    """The edit, or several that are tried together."""
    example: Any
    recording: Recording | None = None
    """A run to restore from; None to make one first."""
    rollout_id: int | None = None
    """Shared by both arms; None for the request's position, from 1, so that every trial is a sample of its own."""
    from_start: bool = False
    """Whether to run both arms from the beginning."""
    task_id: str | None = None
    """By default made from the example's inputs."""


class TrialsInterrupted(KeyboardInterrupt):
    """Ctrl-C during many trials. What was finished is in `records`; what was running is waited for first."""

    def __init__(self, records: tuple[TrialRecord, ...]) -> None:
        """Keep the records of the trials that had finished, in the order of their requests."""
        self.records = records
        super().__init__(f"interrupted after {len(records)} trials; they are in the exception's records")


NOT_RUN = "not run: "
"""How the reason of a trial begins that a spent budget kept from running."""


def run_trials(
    program: Any,
    requests: Sequence[TrialRequest],
    metric: Callable[..., Any],
    *,
    environment: Environment | None = None,
    features: Sequence[FeatureFunction] = (),
    failure_score: float | None = 0.0,
    num_threads: int | None = None,
    progress: bool = True,
    budget: Budget | None = None,
    meter: Meter | None = None,
    on_record: Callable[[int, TrialRecord], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[TrialRecord, ...]:
    """Run many trials of one program and return one record a request, in the order of the requests.

    Args:
        program: Any DSPy module, shared by all threads; it is left as it is.
        requests: What to try.
        metric: As for `paired_trial`.
        environment: As for `paired_trial`. One that cannot fork is one world: its trials run one after the other.
        features: As for `paired_trial`.
        failure_score: As for `paired_trial`.
        num_threads: How many trials run at once; by default DSPy's own setting.
        progress: Whether to show a progress bar.
        budget: What the trials may spend. Once it is spent, trials that are not finished are unresolved, and say so.
        meter: A meter that counts them too; its own budget stops them as well.
        on_record: Called in this thread as each trial finishes, with the position of its request.
        clock: Where the seconds come from.

    Raises:
        TrialsInterrupted: On Ctrl-C, with the finished records.
        MetricError: When the metric returns something that is not a score.
    """
    plan = plan_runs(
        program, metric, environment=environment, features=tuple(features), failure_score=failure_score, clock=clock
    )
    trials = [_trial(plan, request, position) for position, request in enumerate(requests)]
    for trial in trials:
        trial.check()
    runner = _Runner(trials, meter or Meter(budget), on_record)
    alone = environment is not None and not isinstance(environment, ForkingEnvironment)
    with runner.meter.installed(), Meter(budget).installed():
        return runner.run(1 if alone else num_threads or default_num_workers(), progress)


def record_runs(
    program: Any,
    examples: Sequence[Any],
    metric: Callable[..., Any],
    *,
    environment: Environment | None = None,
    features: Sequence[FeatureFunction] = (),
    failure_score: float | None = 0.0,
    num_threads: int | None = None,
    on_record: Callable[[int, Recording], None] | None = None,
) -> tuple[Recording, ...]:
    """Run a program on many examples and keep the tapes: one recording an example, in their order.

    Raises:
        MetricError: When the metric returns something that is not a score.
    """
    plan = plan_runs(program, metric, environment=environment, features=tuple(features), failure_score=failure_score)
    for example in examples:
        check_example(example)

    def done(outcome: Outcome[Recording]) -> None:
        if on_record is not None and outcome.value is not None:
            on_record(outcome.index, outcome.value)

    alone = environment is not None and not isinstance(environment, ForkingEnvironment)
    executor = ThreadExecutor(1 if alone else num_threads or default_num_workers())
    outcomes = executor.run(lambda example: record_run(plan, example), examples, on_done=done)
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return tuple(outcome.value for outcome in outcomes if outcome.value is not None)


def _trial(plan: Any, request: TrialRequest, position: int) -> Trial:
    edits = (request.edits,) if isinstance(request.edits, Edit) else tuple(request.edits)
    if not edits:
        raise ValueError(f"a trial needs at least one edit, got none in request {position}")
    rollout_id = position + 1 if request.rollout_id is None else request.rollout_id
    task_id = request.task_id or task_name(request.example)
    return Trial(plan, edits, request.example, rollout_id, task_id, request.from_start, request.recording)


@dataclass(slots=True)
class _Runner:
    trials: list[Trial]
    meter: Meter
    on_record: Callable[[int, TrialRecord], None] | None
    records: dict[int, TrialRecord] = field(default_factory=dict)
    stop_reason: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, num_threads: int, progress: bool) -> tuple[TrialRecord, ...]:
        """Run what the budget allows, then fill in what it did not."""
        from tqdm import tqdm

        with tqdm(total=len(self.trials), desc="paired trials", unit="trial", disable=not progress) as bar:

            def done(outcome: Outcome[TrialRecord]) -> None:
                if outcome.value is None:
                    return
                is_news = outcome.index not in self.records
                self.records[outcome.index] = outcome.value
                bar.update(int(is_news))
                if self.on_record is not None and not outcome.value.reason.startswith(NOT_RUN):
                    self.on_record(outcome.index, outcome.value)

            try:
                outcomes = ThreadExecutor(num_threads).run(self._run_one, range(len(self.trials)), on_done=done)
            except KeyboardInterrupt as interrupt:
                finished = tuple(self.records[index] for index in sorted(self.records))
                raise TrialsInterrupted(finished) from interrupt
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        return tuple(self.records[index] for index in range(len(self.trials)))

    def _run_one(self, index: int) -> TrialRecord:
        trial = self.trials[index]
        if not self.stop_reason:
            try:
                return trial.run()
            except BudgetExhausted as spent:
                with self._lock:
                    self.stop_reason = str(spent)
        kind: TrialKind = "task_start" if trial.from_start else "matched_prefix"
        ids = tuple(edit.edit_id for edit in trial.edits)
        blank = TrialRecord(trial.task_id, ids, kind, "unresolved", rollout_id=trial.rollout_id)
        return replace(blank, reason=NOT_RUN + self.stop_reason)


def is_not_run(record: TrialRecord) -> bool:
    """Say whether a record stands for a trial that a spent budget kept from running."""
    return record.reason.startswith(NOT_RUN)
