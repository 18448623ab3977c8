"""The loop of a run: rounds of generate, reflect, aggregate and update, with validations in between.

One commit a round: every group of a round curates against the same program. The loop knows no learner and no
aggregation; it decides when to validate, when to stop, and what is kept when a run is interrupted.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dspy_combee.aggregation.base import Aggregation
from dspy_combee.errors import BudgetExhausted
from dspy_combee.learners.base import PromptLearner, Trajectory
from dspy_combee.rounds.failure_watch import FailureWatch
from dspy_combee.rounds.learn_record import RecordWork
from dspy_combee.rounds.learner_extras import describe_program, dump_program, going_back, load_program
from dspy_combee.rounds.one_round import (
    aggregate_reflections,
    commit,
    learn_batch,
    newly_scored,
    record_round,
)
from dspy_combee.rounds.records import (
    BatchSizePolicy,
    FixedBatchSize,
    RoundRecord,
    RoundSchedule,
    RoundsResult,
    StopReason,
    Validation,
    forget_feedback,
    observe_round,
)
from dspy_combee.rounds.run_files import RunFiles
from dspy_combee.rounds.source import Batch, TrainingSource
from dspy_combee.rounds.validation import validate
from dspy_combee.runtime.budget import Meter
from dspy_combee.runtime.execution.base import Executor
from dspy_combee.runtime.retry import RetryPolicy
from dspy_combee.seeding import branch_rng

logger = logging.getLogger(__name__)

OnRound = Callable[[RoundRecord, Sequence[Trajectory]], None]
"""Told of each finished round, with the trajectories that were made in it, in order."""


def run_rounds(
    learner: PromptLearner,
    program: Any,
    source: TrainingSource,
    *,
    aggregation: Aggregation,
    executor: Executor,
    valset: Sequence[Any] = (),
    batch_sizes: BatchSizePolicy | None = None,
    schedule: RoundSchedule | None = None,
    meter: Meter | None = None,
    retry: RetryPolicy | None = None,
    reflection_lm: Any = None,
    seed: int = 0,
    frozen: Sequence[str] = (),
    log_dir: str | os.PathLike[str] | None = None,
    on_round: OnRound | None = None,
    on_result: Callable[[RoundsResult], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> RoundsResult:
    """Teach a program in rounds until the source is exhausted or something says stop.

    Args:
        learner: The four steps.
        program: What is taught; not changed.
        source: Where records come from.
        aggregation: How the reflections of a round become one update a component.
        executor: Where rollouts, reflections and aggregation calls run.
        valset: What decides which program is the best; empty for no validation.
        batch_sizes: Decides the size of each batch; None means one example a round.
        schedule: When to validate and to stop.
        meter: Counts what is spent. The caller installs it; its limit on metric calls caps the batches here.
        retry: For rate limits, outages and time-outs of single steps.
        reflection_lm: The model of reflections and aggregation calls; None means that of the caller's context.
        seed: For the aggregation and the jitter of retries.
        frozen: Predictors whose instructions stay, whatever the learner does.
        log_dir: Where the run is kept and resumed from; the caller makes sure that it belongs to this run.
        on_round: Told of each round.
        on_result: Told of the result exactly once, also when the run is interrupted or fails: nothing is lost then.
        clock: Where the seconds of rounds come from.

    Raises:
        KeyboardInterrupt: After an interrupt; no new call is started, the checkpoint is on disk, `on_result` was told.
        LMUnavailableError: The model failed on everything.
        MetricError: The metric returned something that is no score.
    """
    meter = meter if meter is not None else Meter()
    run = _Run(
        learner=learner,
        source=source,
        aggregation=aggregation,
        executor=executor,
        valset=valset,
        policy=batch_sizes or FixedBatchSize(1),
        schedule=schedule or RoundSchedule(),
        meter=meter,
        work=RecordWork(learner, meter, retry or RetryPolicy(), seed, reflection_lm),
        files=RunFiles(log_dir),
        seed=seed,
        frozen=tuple(frozen),
        on_round=on_round,
        clock=clock,
        program=program,
        best=program,
    )
    reason: StopReason = "error"
    error = "stopped from outside"
    try:
        run.resume()
        reason, error = run.until_stopped()
    except BudgetExhausted as exhausted:
        reason, error = "budget", ""
        logger.info("%s; the best program so far is kept", exhausted)
    except KeyboardInterrupt:
        reason, error = "interrupted", ""
        raise
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
        raise
    finally:
        result = run.result(reason, error)
        if on_result is not None:
            on_result(result)
    return result


@dataclass(slots=True)
class _Run:
    """The state of one run. Lives inside one `run_rounds` call; only the calling thread changes it."""

    learner: PromptLearner
    source: TrainingSource
    aggregation: Aggregation
    executor: Executor
    valset: Sequence[Any]
    policy: BatchSizePolicy
    schedule: RoundSchedule
    meter: Meter
    work: RecordWork
    files: RunFiles
    seed: int
    frozen: tuple[str, ...]
    on_round: OnRound | None
    clock: Callable[[], float]
    program: Any
    best: Any
    position: int = 0
    validated_at: int = 0
    """The position at the last validation."""
    is_changed: bool = False
    """Whether an update came after the last validation."""
    stale: int = 0
    """Validations in a row without improvement."""
    failures: FailureWatch = field(default_factory=FailureWatch)
    best_score: float | None = None
    rounds: list[RoundRecord] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    policy_state: Any = None

    def resume(self) -> None:
        """Take up an earlier part of the run, when there is one."""
        self.policy_state = self.policy.start()
        state = self.files.checkpoint()
        if state is None:
            return
        self.rounds = self.files.rounds(state["rounds"])
        self.validations = [Validation.from_dict(validation) for validation in state["validations"]]
        self.program = load_program(self.learner, self.program, state["program"])
        self.best = load_program(self.learner, self.best, state["best"]) if state["best"] else self.program
        for name in ("position", "validated_at", "is_changed", "stale", "best_score"):
            setattr(self, name, state[name])
        self.failures = FailureWatch(state["failed_rounds"], last_error=state["last_error"])
        for record in self.rounds:
            self.policy_state = observe_round(self.policy, self.policy_state, record)
        spent = self.meter.spend
        logger.info(
            "Resumed after round %d: %d LM calls and %d metric calls were spent already",
            len(self.rounds),
            spent.lm_calls,
            spent.metric_calls,
        )

    def until_stopped(self) -> tuple[StopReason, str]:
        """Do rounds until something says stop; return the reason, and the error that it came from."""
        if self.valset and not self.validations:
            self._warn_of_small_budget()
            if not self._may_validate():
                return "budget", ""
            self._validate()
        while (stop := self._stop()) is None:
            wanted = self.policy.pick(self.policy_state)
            size = self._affordable(wanted)
            batch = self.source.take(self.position, size) if size else None
            if batch is None or not batch.items:
                return self._finish("budget" if batch is None else "completed")
            self._round(batch, is_full=len(batch.items) == wanted)
            if self._is_validation_due(batch):
                self._validate()
        return stop

    def result(self, reason: StopReason, error: str) -> RoundsResult:
        """Return the state as a result."""
        program = self.best if self.validations else self.program
        return RoundsResult(program, reason, tuple(self.rounds), tuple(self.validations), self.program, error)

    def _finish(self, reason: StopReason) -> tuple[StopReason, str]:
        self.failures.refuse_a_run_without_one_record(sum(record.batch_size for record in self.rounds))
        if self.failures.failed_rounds and self.failures.failed_rounds == len(self.rounds):
            return "error", self.failures.give_up()
        if self.valset and self.is_changed and self._may_validate():
            self._validate()
        return ("perfect" if self._is_perfect() else reason), ""

    def _stop(self) -> tuple[StopReason, str] | None:
        """Return the reason to go no further, and the error that it came from; None when there is none."""
        if self._is_perfect():
            return "perfect", ""
        if self.schedule.patience is not None and self.stale >= self.schedule.patience:
            return "no_improvement", ""
        is_hopeless = self.failures.failed_rounds >= self.schedule.max_failed_rounds
        return ("error", self.failures.give_up()) if is_hopeless else None

    def _is_perfect(self) -> bool:
        return self.best_score is not None and self.best_score >= self.schedule.perfect_score

    def _affordable(self, wanted: int) -> int:
        """Return the size that leaves enough metric calls for the last validation."""
        remaining = self.meter.remaining_metric_calls
        return wanted if remaining is None else max(0, min(wanted, remaining - len(self.valset)))

    def _may_validate(self) -> bool:
        remaining = self.meter.remaining_metric_calls
        return remaining is None or remaining >= len(self.valset)

    def _warn_of_small_budget(self) -> None:
        remaining = self.meter.remaining_metric_calls
        if remaining is None:
            return
        needed = len(self.valset) * 2 + 3 * self.policy.pick(self.policy_state)
        if remaining < needed:
            logger.warning(
                "The budget of %d metric calls is small: two validations of %d examples and three rounds take %d.",
                remaining,
                len(self.valset),
                needed,
            )

    def _round(self, batch: Batch, *, is_full: bool) -> None:
        index, began, before = len(self.rounds), self.clock(), self.meter.spend
        learned = learn_batch(
            self.work, self.program, batch, round_index=index, files=self.files, executor=self.executor
        )
        self.failures.see_records(learned)
        aggregated = aggregate_reflections(
            self.learner,
            self.program,
            learned.reflections,
            aggregation=self.aggregation,
            executor=self.executor,
            meter=self.meter,
            rng=branch_rng(self.seed, "round", index),
            reflection_lm=self.work.reflection_lm,
            frozen=self.frozen,
        )
        self.program = commit(self.learner, self.program, aggregated, frozen=self.frozen)
        self.is_changed = self.is_changed or any(item.update is not None for item in aggregated)
        self.failures.see_round(learned, aggregated)
        # Counted here and not in the workers: the calls that learn from a scored run must not be refused by its count.
        with self.meter.stage("generate"):
            self.meter.count_metric_calls(newly_scored(batch, learned))
        seconds, after = self.clock() - began, self.meter.spend
        record = record_round(
            index, batch, learned, aggregated, is_full=is_full, seconds=seconds, before=before, after=after
        )
        self.rounds.append(record)
        forget_feedback(self.rounds)
        self.position += len(batch.items)
        self.policy_state = observe_round(self.policy, self.policy_state, record)
        self.files.add_round(record)
        self._save()
        self._log(record)
        if self.on_round is not None:
            self.on_round(record, learned.trajectories)

    def _is_validation_due(self, batch: Batch) -> bool:
        if not self.valset or not self.is_changed:
            return False
        every = self.schedule.validate_every
        # By examples seen and not by rounds, so that a batch size that does not divide the interval skips nothing.
        due = batch.ends_epoch if every is None else self.position // every > self.validated_at // every
        return due and self._may_validate()

    def _validate(self) -> None:
        after = len(self.rounds)
        with self.meter.stage("validate"):
            validation = validate(
                self.work.generate,
                self.program,
                self.valset,
                executor=self.executor,
                failure_score=self.schedule.failure_score,
                after_rounds=after,
                recall=partial(self.files.recall_score, after),
                keep=partial(self.files.keep_score, after),
            )
            self.meter.count_metric_calls(sum(score is not None for score in validation.scores))
        self.validations.append(validation)
        self.validated_at, self.is_changed = self.position, False
        if self.best_score is None or validation.score > self.best_score:
            self.best, self.best_score, self.stale = self.program, validation.score, 0
        else:
            self.stale += 1
            if self.schedule.rollback and validation.score < self.best_score:
                self.program = going_back(self.learner, self.best, self.program)
        logger.info("Validation after round %d: %.4g (best %.4g)", after, validation.score, self.best_score)
        self._save()

    def _save(self) -> None:
        if not self.files.is_kept:
            return
        self.files.save_checkpoint(
            {
                "rounds": len(self.rounds),
                "validations": [validation.to_dict() for validation in self.validations],
                "program": dump_program(self.learner, self.program),
                "best": None if self.best is self.program else dump_program(self.learner, self.best),
                "position": self.position,
                "validated_at": self.validated_at,
                "is_changed": self.is_changed,
                "stale": self.stale,
                "failed_rounds": self.failures.failed_rounds,
                "last_error": self.failures.last_error,
                "best_score": self.best_score,
                "spend": self.meter.spend.to_dict(),
            }
        )

    def _log(self, record: RoundRecord) -> None:
        train = "-" if record.train_score is None else f"{record.train_score:.4g}"
        lines = sum(len(update.entries) for update in record.updates)
        logger.info(
            "Round %d: %d examples, train score %s, %d reflections, %d update lines, %d errors, %.1f s; %s",
            record.index + 1,
            record.batch_size,
            train,
            record.reflections,
            lines,
            len(record.errors),
            record.seconds,
            describe_program(self.learner, self.program),
        )
