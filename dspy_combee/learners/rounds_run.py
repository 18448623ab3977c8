"""One compile of any `PromptLearner`: set up, run or resume, and whatever happens leave a result behind.

The counterpart of `gepa_run`: the same settings in, the same kind of result out. What a round is, is in `rounds`.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import dspy

from dspy_combee.batch_size import BatchSizeController, ControllerState, DelayFit
from dspy_combee.copied_text import copied_from_train_set
from dspy_combee.learners.base import PromptLearner, Trajectory
from dspy_combee.learners.batch_control import controller_within
from dspy_combee.learners.rounds_result import as_rounds, first_free_record, provenance_of, unreached_in
from dspy_combee.report.diff import instruction_diff
from dspy_combee.report.result import CombeeResult, StopReason
from dspy_combee.rounds import (
    BatchSizePolicy,
    ExampleSource,
    FixedBatchSize,
    RoundRecord,
    RoundsResult,
    TraceSource,
    TrainingSource,
    run_rounds,
    spent_before,
)
from dspy_combee.rounds.learner_extras import FreezesPredictors, PreparesPrograms, plan_of
from dspy_combee.rounds.progress import progress_bar
from dspy_combee.rounds.records import observe_round
from dspy_combee.runtime.abort import Aborted, AbortSwitch
from dspy_combee.runtime.budget import Meter
from dspy_combee.runtime.interrupt_watch import refusing_calls_when_closed
from dspy_combee.runtime.run_log import check_fingerprint, fingerprint_run
from dspy_combee.settings import RunSettings
from dspy_combee.traces import TraceReader

logger = logging.getLogger(__name__)

ENDLESS = 1_000_000_000
"""Stands in for the size of a train set that nobody knows."""


@dataclass(frozen=True, slots=True)
class Material:
    """What a run learns from: examples to run, or recorded trajectories."""

    trainset: tuple[dspy.Example, ...] = ()
    traces: Iterable[Trajectory] | None = None
    """Read once, in order; the train set is not run then."""
    valset: tuple[dspy.Example, ...] = ()
    """What decides which program is the best; empty keeps the last one."""
    in_order: bool = False
    """Whether the examples are taken once, as they come, whatever the learner plans."""


class RoundsRun:
    """The state of one compile. Built, run once, then read for its result."""

    def __init__(
        self,
        learner: PromptLearner,
        settings: RunSettings,
        student: dspy.Module,
        material: Material,
        *,
        name: str = "Combee",
        on_trajectories: Callable[[Sequence[Trajectory]], None] | None = None,
    ) -> None:
        """Check and wire; nothing is run.

        Args:
            learner: The four steps.
            settings: As the optimizer checked them.
            student: The program; not changed.
            material: What to learn from.
            name: What the progress bar is called.
            on_trajectories: Told of the runs of each round, in order.

        Raises:
            ResumeMismatchError: the directory of the settings belongs to another run.
            ValueError: the learner refuses the student.
        """
        self.result = CombeeResult(stop_reason="error")
        self._base = learner
        self._plan = plan_of(learner)
        self._learner: PromptLearner = learner
        if settings.frozen and isinstance(learner, FreezesPredictors):
            self._learner = learner.freezing(settings.frozen)
        self._settings = settings
        self._student = student
        self._material = material
        self._name = name
        self._on_trajectories = on_trajectories
        self._program = _prepared(self._learner, student)
        self._source = self._make_source()
        self._policy = self._make_policy()
        self._abort = AbortSwitch()
        if settings.log_dir is not None:
            check_fingerprint(settings.log_dir, self._fingerprint())
        self._meter = Meter(settings.budget, already_spent=spent_before(settings.log_dir))
        self._outcome: RoundsResult | None = None
        self._timed: ControllerState | None = None

    def run(self) -> dspy.Module:
        """Teach, and set `result` whatever happens.

        Raises:
            KeyboardInterrupt: the run was interrupted and `on_interrupt` is "raise".
            CombeeError: the metric or the model cannot be used.
        """
        began = self._settings.clock()
        interrupt: KeyboardInterrupt | None = None
        error: BaseException | None = None
        try:
            self._run()
        except KeyboardInterrupt as caught:
            interrupt = error = caught
        except Aborted:
            # A worker that was refused a call may be heard before the one that was interrupted.
            interrupt = error = KeyboardInterrupt()
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._abort.is_closed = True
            self.result = self._finish(error, self._settings.clock() - began)
        if interrupt is not None and self._settings.on_interrupt == "raise":
            raise interrupt
        return self.result.best_program

    def _run(self) -> None:
        plan, settings = self._plan, self._settings
        schedule = plan.schedule
        if settings.patience is not None:
            schedule = replace(schedule, patience=settings.patience)
        with ExitStack() as stack:
            stack.enter_context(self._meter.installed())
            stack.enter_context(refusing_calls_when_closed(self._abort))
            # Never streamed, also when compiled inside a streaming app: that path of DSPy's knows no retries.
            stack.enter_context(dspy.context(send_stream=None))
            bar = stack.enter_context(progress_bar(self._source.total, name=self._name, shown=settings.progress))

            def on_round(record: RoundRecord, trajectories: Sequence[Trajectory]) -> None:
                bar.update(record.batch_size)
                self._announce(record)
                if self._on_trajectories is not None:
                    self._on_trajectories(trajectories)

            run_rounds(
                self._learner,
                self._program,
                self._source,
                aggregation=settings.aggregation,
                executor=settings.executor,
                valset=self._material.valset,
                batch_sizes=self._policy,
                schedule=schedule,
                meter=self._meter,
                retry=plan.retry,
                reflection_lm=plan.reflection_lm,
                seed=settings.seed,
                frozen=settings.frozen,
                log_dir=settings.log_dir,
                on_round=on_round,
                on_result=self._keep,
                clock=settings.clock,
            )

    def _keep(self, outcome: RoundsResult) -> None:
        self._outcome = outcome

    def _make_source(self) -> TrainingSource:
        material, plan = self._material, self._plan
        first = first_free_record(self._learner, self._program)
        if material.traces is not None:
            return TraceSource(material.traces, first_record=first)
        if material.in_order:
            return ExampleSource(material.trainset, shuffle=False, first_record=first)
        return ExampleSource(
            material.trainset,
            epochs=plan.epochs,
            seed=self._settings.seed,
            shuffle=plan.shuffle,
            first_record=first,
        )

    def _make_policy(self) -> BatchSizePolicy:
        size = self._settings.batch_size
        total = self._source.total
        train_size = len(self._material.trainset) if self._material.traces is None else total or ENDLESS
        if size is not None:
            return FixedBatchSize(min(size, train_size))
        return bounded_controller(
            self._settings, train_size=train_size, total=total, val_size=len(self._material.valset)
        )

    def _announce(self, record: RoundRecord) -> None:
        """Say once which batch size the profile has led to."""
        if not isinstance(self._policy, BatchSizeController):
            return
        before = self._timed or self._policy.start()
        now: ControllerState = observe_round(self._policy, before, record)
        self._timed = now
        if self._policy.is_profiling(before) and not self._policy.is_profiling(now):
            fit = self._policy.fit(now)
            log = logger.warning if fit.is_fallback else logger.info
            log("Batch size %d from now on: %s.", fit.batch_size, fit.reason)

    def _fit(self, rounds: Sequence[RoundRecord]) -> DelayFit | None:
        if not isinstance(self._policy, BatchSizeController):
            return None
        state = self._policy.start()
        for record in rounds:
            state = observe_round(self._policy, state, record)
        return self._policy.fit(state) if state.observations else None

    def _finish(self, error: BaseException | None, seconds: float) -> CombeeResult:
        outcome = self._outcome or RoundsResult(self._program, "error", (), ())
        best, reason = outcome.program, outcome.stop_reason
        if isinstance(error, KeyboardInterrupt):
            reason: StopReason = "interrupted"
        fit = self._fit(outcome.rounds)
        result = CombeeResult(
            stop_reason=reason,
            rounds=as_rounds(outcome),
            seconds=seconds,
            spend=self._meter.spend,
            spend_by_stage=self._meter.spend_by_stage,
            batch_size=self._settings.batch_size if fit is None else fit.batch_size,
            fit=fit,
            provenance=provenance_of(self._learner, best, self._program, outcome.rounds),
            unreached=unreached_in(self._program, outcome.rounds),
            seed_score=outcome.seed_score,
            best_score=outcome.best_score,
            error=outcome.error if error is None else f"{type(error).__name__}: {error}",
            config=self._config(),
            longest_shared_span=copied_from_train_set(best, self._student, self._material.trainset),
            diff=instruction_diff(self._student, best),
            best_program=best,
            last_program=outcome.last_program,
        )
        if self._plan.tracks_stats:
            vars(best)["detailed_results"] = replace(result, best_program=None, last_program=None)
        return result

    def _config(self) -> dict[str, object]:
        traces = self._material.traces
        config: dict[str, object] = {
            "base": type(self._base).__name__,
            "aggregation": self._settings.aggregation.name,
            "batch_size": self._settings.batch_size or "auto",
            "epochs": self._plan.epochs,
            "seed": self._settings.seed,
            "train_size": len(self._material.trainset),
            "val_size": len(self._material.valset),
            "versions": {"dspy": importlib.metadata.version("dspy")},
        }
        if traces is not None:
            config["learned from"] = "recorded traces"
        if isinstance(traces, TraceReader):
            config["traces skipped"] = traces.skipped_count
        return config

    def _fingerprint(self) -> Any:
        config = {
            "base": type(self._base).__qualname__,
            "batch size": self._settings.batch_size or "auto",
            "aggregation": self._settings.aggregation.name,
            "seed": self._settings.seed,
            "frozen": self._settings.frozen,
            "learns from traces": self._material.traces is not None,
            **self._plan.settings,
        }
        material = self._material
        return fingerprint_run(self._student, trainset=material.trainset, valset=material.valset, config=config)


def bounded_controller(
    settings: RunSettings, *, train_size: int, total: int | None, val_size: int
) -> BatchSizeController:
    """Return the controller of the settings bounded by examples, metric calls and threads.

    A round scores an example once, where GEPA's iteration scores it twice (parent and child).
    """
    budgeted = settings.budget.max_metric_calls
    limits = [count for count in (total, None if budgeted is None else budgeted - 2 * val_size) if count is not None]
    return controller_within(
        settings.controller,
        train_size=train_size,
        metric_calls=2 * max(1, min(limits)) if limits else None,
        num_threads=settings.executor.num_workers,
    )


def _prepared(learner: Any, student: dspy.Module) -> Any:
    return learner.prepare(student) if isinstance(learner, PreparesPrograms) else student.deepcopy()
