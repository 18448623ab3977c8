"""Many trials at once: one shared program object, several threads, a budget, and nothing lost when it stops early."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from dspy_combee.errors import BudgetExhausted, MetricError
from dspy_combee.runtime.abort import AbortSwitch
from dspy_combee.runtime.bars import share_progress_bars
from dspy_combee.runtime.budget import Budget, Meter
from dspy_combee.runtime.execution.base import Outcome
from dspy_combee.runtime.execution.threads import ThreadExecutor, default_num_workers
from dspy_combee.runtime.interrupt import notice_interrupt
from dspy_evocue.edits import Edit
from dspy_evocue.environments import Environment, ForkingEnvironment
from dspy_evocue.episodes import Recording, check_example, plan_runs, record_run
from dspy_evocue.errors import StoppedByMetricError
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
        budget: What the trials may spend. Once it is spent, trials that are not finished are unresolved, and say so. No
            trial starts that `max_metric_calls` might not see to its end.
        meter: A meter that counts them too, calls of the metric included; its own budget stops them as well.
        on_record: Called in this thread as each trial finishes, with the position of its request.
        clock: Where the seconds come from.

    Raises:
        TrialsInterrupted: On Ctrl-C, with the finished records.
        StoppedByMetricError: When the metric returns something that is not a score: at once, with the finished records.
    """
    meters = _meters(budget, meter)
    plan = plan_runs(
        program,
        metric,
        environment=environment,
        features=tuple(features),
        failure_score=failure_score,
        clock=clock,
        meters=meters,
    )
    trials = [_trial(plan, request, position) for position, request in enumerate(requests)]
    for trial in trials:
        trial.check()
    with _installed(meters):
        return _Runner(trials, _MetricAllowance(meters), on_record).run(_threads(num_threads, environment), progress)


def record_runs(
    program: Any,
    examples: Sequence[Any],
    metric: Callable[..., Any],
    *,
    environment: Environment | None = None,
    features: Sequence[FeatureFunction] = (),
    failure_score: float | None = 0.0,
    num_threads: int | None = None,
    budget: Budget | None = None,
    meter: Meter | None = None,
    on_record: Callable[[int, Recording], None] | None = None,
) -> tuple[Recording, ...]:
    """Run a program on many examples and keep the tapes: one recording an example, in their order.

    Args:
        program: As for `run_trials`.
        examples: What to run it on.
        metric: As for `paired_trial`.
        environment: As for `run_trials`.
        features: As for `paired_trial`.
        failure_score: As for `paired_trial`.
        num_threads: How many runs there are at once; by default DSPy's own setting.
        budget: What the runs may spend.
        meter: A meter that counts them too; its own budget stops them as well.
        on_record: Called in this thread as each run finishes, with the position of its example. Whatever ends the runs
            early, it has been told of all that were finished.

    Raises:
        BudgetExhausted: When the budget does not allow all of them.
        StoppedByMetricError: When the metric returns something that is not a score: at once, with the finished ones.
    """
    meters = _meters(budget, meter)
    plan = plan_runs(
        program, metric, environment=environment, features=tuple(features), failure_score=failure_score, meters=meters
    )
    for example in examples:
        check_example(example)
    allowance = _MetricAllowance(meters)

    def run_one(example: Any) -> Recording:
        with allowance.taken(1):
            return record_run(plan, example)

    finished: dict[int, Recording] = {}

    def keep(index: int, recording: Recording) -> None:
        finished[index] = recording
        if on_record is not None:
            on_record(index, recording)

    with _installed(meters):
        _run_all(run_one, examples, _threads(num_threads, environment), keep, finished, allowance.abort)
    return tuple(finished[index] for index in range(len(examples)))


def is_not_run(record: TrialRecord) -> bool:
    """Say whether a record stands for a trial that a spent budget kept from running."""
    return record.missing == "not_run"


_Item = TypeVar("_Item")
_Value = TypeVar("_Value")


def _run_all(
    function: Callable[[_Item], _Value],
    items: Sequence[_Item],
    num_threads: int,
    keep: Callable[[int, _Value], None],
    finished: dict[int, _Value],
    abort: AbortSwitch,
) -> None:
    """Run a function over items in threads; the first error stops the rest, and what runs by then is still kept.

    The switch is closed on an error or Ctrl-C, before what runs has come to its end.

    Raises:
        StoppedByMetricError: In place of a MetricError, with what `finished` holds.
    """
    failures: list[Exception] = []

    def done(outcome: Outcome[_Value]) -> None:
        if outcome.error is not None:
            failures.append(outcome.error)
            if len(failures) == 1:
                abort.close(outcome.error)
                raise outcome.error
        elif outcome.value is not None:
            keep(outcome.index, outcome.value)

    try:
        with notice_interrupt(abort.interrupt):
            ThreadExecutor(num_threads).run(function, items, on_done=done)
    except MetricError as error:
        raise StoppedByMetricError(error, tuple(finished[index] for index in sorted(finished))) from error


def _meters(budget: Budget | None, meter: Meter | None) -> tuple[Meter, ...]:
    own = Meter(budget)
    return (own,) if meter is None else (meter, own)


@contextlib.contextmanager
def _installed(meters: tuple[Meter, ...]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for meter in meters:
            stack.enter_context(meter.installed())
        yield


def _threads(num_threads: int | None, environment: Environment | None) -> int:
    is_one_world = environment is not None and not isinstance(environment, ForkingEnvironment)
    return 1 if is_one_world else num_threads or default_num_workers()


class _MetricAllowance:
    """Sees to it that nothing starts whose scores `max_metric_calls` would not allow; the meters count the scores."""

    def __init__(self, meters: tuple[Meter, ...]) -> None:
        self.abort = AbortSwitch()
        self._meters = meters
        self._in_flight = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, most: int) -> Iterator[None]:
        """Set this many calls aside while the block runs.

        What is in flight has been counted by the meters in part and may need less than was set aside for it, so where
        that decides, its end is waited for.

        Raises:
            BudgetExhausted: When there are not that many left.
            Aborted: The run has ended in the meantime: nothing new begins.
        """
        with self._changed:
            while self._is_for_those_in_flight_to_say(most):
                self._changed.wait()
            self.abort.refuse_when_closed()
            self._in_flight += most
        try:
            yield
        finally:
            with self._changed:
                self._in_flight -= most
                self._changed.notify_all()

    def _is_for_those_in_flight_to_say(self, most: int) -> bool:
        """Whether so many calls are left only if those in flight take less than was set aside for them."""
        for meter in self._meters:
            remaining, limit = meter.remaining_metric_calls, meter.budget.max_metric_calls
            if remaining is None or limit is None:
                continue
            if remaining < most:
                raise BudgetExhausted("max_metric_calls", limit=limit, spent=limit - remaining)
            if remaining - self._in_flight < most:
                return True
        return False


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
    allowance: _MetricAllowance
    on_record: Callable[[int, TrialRecord], None] | None
    records: dict[int, TrialRecord] = field(default_factory=dict)
    stop_reason: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, num_threads: int, progress: bool) -> tuple[TrialRecord, ...]:
        """Run what the budget allows, then fill in what it did not."""
        from tqdm import tqdm

        share_progress_bars()
        with tqdm(total=len(self.trials), desc="paired trials", unit="trial", disable=not progress) as bar:

            def keep(index: int, record: TrialRecord) -> None:
                is_news = index not in self.records
                self.records[index] = record
                bar.update(int(is_news))
                if self.on_record is not None and not is_not_run(record):
                    self.on_record(index, record)

            try:
                _run_all(self._run_one, range(len(self.trials)), num_threads, keep, self.records, self.allowance.abort)
            except KeyboardInterrupt as interrupt:
                finished = tuple(self.records[index] for index in sorted(self.records))
                raise TrialsInterrupted(finished) from interrupt
        return tuple(self.records[index] for index in range(len(self.trials)))

    def _run_one(self, index: int) -> TrialRecord:
        trial = self.trials[index]
        if not self.stop_reason:
            try:
                with self.allowance.taken(trial.most_metric_calls):
                    return trial.run()
            except BudgetExhausted as spent:
                with self._lock:
                    self.stop_reason = str(spent)
        kind: TrialKind = "task_start" if trial.from_start else "matched_prefix"
        ids = tuple(edit.edit_id for edit in trial.edits)
        blank = TrialRecord(trial.task_id, ids, kind, "unresolved", rollout_id=trial.rollout_id)
        return replace(blank, reason=f"not run: {self.stop_reason}", missing="not_run")
