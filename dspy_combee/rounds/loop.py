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

from dspy_combee.aggregation.base import Aggregated, Aggregation, AggregationJob
from dspy_combee.errors import BudgetExhausted, CombeeError, LMUnavailableError
from dspy_combee.learners.base import PromptLearner, Reflection, Trajectory, Update
from dspy_combee.rounds.learn_record import RecordWork
from dspy_combee.rounds.learner_extras import JoinsUpdates, describe_program, dump_program, load_program
from dspy_combee.rounds.records import (
    BatchSizePolicy,
    ComponentUpdate,
    FixedBatchSize,
    RoundRecord,
    RoundSchedule,
    RoundsResult,
    StopReason,
    Validation,
)
from dspy_combee.rounds.run_files import Learned, RunFiles
from dspy_combee.rounds.source import Batch, TrainingSource
from dspy_combee.rounds.validation import stop_if_fatal, validate
from dspy_combee.runtime.budget import Meter
from dspy_combee.runtime.execution.base import Executor, Outcome
from dspy_combee.runtime.retry import RetryPolicy
from dspy_combee.seeding import branch_rng

logger = logging.getLogger(__name__)

OnRound = Callable[[RoundRecord, Sequence[Trajectory]], None]
"""Told of each finished round, with the trajectories that were made in it, in order."""

FAILED_RECORDS = 3
"""Records in a row that could not be run and scored, with none in between that could, after which a run gives up."""


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
    seed: int = 0,
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
        seed: For the aggregation and the jitter of retries.
        log_dir: Where the run is kept and resumed from; the caller makes sure that it belongs to this run.
        on_round: Told of each round.
        on_result: Told of the result exactly once, also when the run is interrupted or fails: nothing is lost then.
        clock: Where the seconds of rounds come from.

    Raises:
        KeyboardInterrupt: After an interrupt; no new call is started, the checkpoint is on disk, `on_result` was told.
        LMUnavailableError: The model failed on everything.
        MetricError: The metric returned something that is no score.
    """
    run = _Run(
        learner=learner,
        source=source,
        aggregation=aggregation,
        executor=executor,
        valset=valset,
        policy=batch_sizes or FixedBatchSize(1),
        schedule=schedule or RoundSchedule(),
        meter=meter or Meter(),
        work=RecordWork(learner, meter or Meter(), retry or RetryPolicy(), seed),
        files=RunFiles(log_dir),
        seed=seed,
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
    failed_rounds: int = 0
    failed_records: int = 0
    """Records in a row that could not be run and scored."""
    reflected: int = 0
    best_score: float | None = None
    rounds: list[RoundRecord] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    policy_state: Any = None
    last_error: str = ""

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
        for name in ("position", "validated_at", "is_changed", "stale", "failed_rounds", "best_score"):
            setattr(self, name, state[name])
        for record in self.rounds:
            self._observe(record)
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
        while True:
            reason = self._reason_to_stop()
            if reason is not None:
                return reason, self.last_error if reason == "error" else ""
            wanted = self.policy.pick(self.policy_state)
            size = self._affordable(wanted)
            batch = self.source.take(self.position, size) if size else None
            if batch is None or not batch.items:
                return self._finish("budget" if batch is None else "completed")
            self._round(batch, is_full=len(batch.items) == wanted)
            if self._is_validation_due(batch):
                self._validate()

    def result(self, reason: StopReason, error: str) -> RoundsResult:
        """Return the state as a result."""
        program = self.best if self.validations else self.program
        return RoundsResult(program, reason, tuple(self.rounds), tuple(self.validations), self.program, error)

    def _finish(self, reason: StopReason) -> tuple[StopReason, str]:
        if self.rounds and all(score is None for record in self.rounds for score in record.scores) and self.last_error:
            if not any(record.reflections for record in self.rounds):
                raise LMUnavailableError(f"no record could be run, scored and reflected on: {self.last_error}")
        if self.valset and self.is_changed and self._may_validate():
            self._validate()
        return ("perfect" if self._is_perfect() else reason), ""

    def _reason_to_stop(self) -> StopReason | None:
        if self._is_perfect():
            return "perfect"
        if self.schedule.patience is not None and self.stale >= self.schedule.patience:
            return "no_improvement"
        if self.failed_rounds >= self.schedule.max_failed_rounds:
            logger.error(
                "Stopped: %d rounds in a row gave no update. Last error: %s", self.failed_rounds, self.last_error
            )
            return "error"
        return None

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
        index, began = len(self.rounds), self.clock()
        trajectories: dict[int, Trajectory] = {}
        learned = self._learn(index, batch, trajectories)
        self._give_up_on_outage(learned)
        aggregated = self._aggregate(index, [r for item in learned for r in item.reflections])
        updates = [item.update for item in aggregated if item.update is not None]
        for update in updates:
            self.program = self.learner.update(self.program, update)
        self.is_changed = self.is_changed or bool(updates)
        self._note_failure(aggregated, updates)
        # Counted here and not in the workers: the calls that learn from a scored run must not be refused by its count.
        self.meter.count_metric_calls(sum(item.score is not None for item in learned))
        record = _record_of(index, batch, learned, aggregated, is_full=is_full, seconds=self.clock() - began)
        self.rounds.append(record)
        self.position += len(batch.items)
        self._observe(record)
        self.files.add_round(record)
        self._save()
        self._log(record)
        if self.on_round is not None:
            self.on_round(record, [trajectories[i] for i in sorted(trajectories)])

    def _learn(self, round_index: int, batch: Batch, trajectories: dict[int, Trajectory]) -> list[Learned]:
        """Return what each record of the batch taught, in order; what an interrupted run had done is not done again."""

        def work(position: int) -> Learned:
            record_id = batch.record_ids[position]
            known = self.files.recall(round_index, record_id)
            if known is not None:
                return known
            trajectory, learned = self.work.learn(self.program, batch.items[position], record_id)
            trajectories[position] = trajectory
            if not learned.error or trajectory.error is not None:
                self.files.keep(round_index, learned)
            return learned

        outcomes = self.executor.run(work, range(len(batch.items)), on_done=stop_if_fatal)
        return [_learned(batch.record_ids[outcome.index], outcome) for outcome in outcomes]

    def _give_up_on_outage(self, learned: Sequence[Learned]) -> None:
        """Raise when nothing works: going on would spend the whole run on failures and call the result a program."""
        for item in learned:
            is_lost = item.score is None and not item.reflections and bool(item.error)
            self.failed_records = self.failed_records + 1 if is_lost else 0
            self.last_error = item.error or self.last_error
        if self.failed_records >= FAILED_RECORDS and self.failed_records >= len(learned):
            raise LMUnavailableError(
                f"none of the last {self.failed_records} records could be run and scored: {self.last_error}"
            )

    def _aggregate(self, round_index: int, reflections: Sequence[Reflection]) -> list[Aggregated]:
        by_component: dict[str, list[Reflection]] = {}
        for reflection in reflections:
            by_component.setdefault(reflection.component, []).append(reflection)
        join = self.learner.join if isinstance(self.learner, JoinsUpdates) else None
        jobs = [
            AggregationJob(component, tuple(found), partial(self._curate, self.program), join)
            for component, found in sorted(by_component.items())
        ]
        if not jobs:
            return []
        return self.aggregation.aggregate(jobs, executor=self.executor, rng=branch_rng(self.seed, "round", round_index))

    def _curate(self, program: Any, reflections: Sequence[Reflection]) -> Update:
        is_first_level = all(reflection.update is None for reflection in reflections)
        with self.meter.stage("curate" if is_first_level else "merge"):
            return self.learner.curate(program, reflections)

    def _note_failure(self, aggregated: Sequence[Aggregated], updates: Sequence[Update]) -> None:
        if updates or not aggregated:
            self.failed_rounds = 0
            return
        errors = [call.error for item in aggregated for call in item.calls if call.error]
        self.failed_rounds = self.failed_rounds + 1 if errors else 0
        self.last_error = errors[-1] if errors else self.last_error

    def _observe(self, record: RoundRecord) -> None:
        if record.is_full and not record.recalled and record.seconds > 0:
            self.policy_state = self.policy.observe(
                self.policy_state, batch_size=record.batch_size, seconds=record.seconds
            )

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
                self.program = self.best
        logger.info("Validation after round %d: %.4g (best %.4g)", after, validation.score, self.best_score)
        self._save()

    def _save(self) -> None:
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
                "failed_rounds": self.failed_rounds,
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


def _learned(record_id: str, outcome: Outcome[Learned]) -> Learned:
    if outcome.value is not None:
        return outcome.value
    error = outcome.error
    words = str(error) if isinstance(error, CombeeError) else f"{type(error).__name__}: {error}"
    return Learned(record_id, None, (), words)


def _record_of(
    index: int,
    batch: Batch,
    learned: Sequence[Learned],
    aggregated: Sequence[Aggregated],
    *,
    is_full: bool,
    seconds: float,
) -> RoundRecord:
    return RoundRecord(
        index=index,
        epoch=batch.epoch,
        batch_size=len(batch.items),
        is_full=is_full,
        record_ids=batch.record_ids,
        examples=batch.examples,
        scores=tuple(item.score for item in learned),
        errors=tuple((item.record_id, item.error) for item in learned if item.error),
        reflections=sum(len(item.reflections) for item in learned),
        updates=tuple(ComponentUpdate.of(item) for item in aggregated),
        seconds=seconds,
        recalled=sum(item.is_recalled for item in learned),
    )
