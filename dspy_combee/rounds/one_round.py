"""The parts of one round: learn from a batch, aggregate what was learned, put the round on record.

Nothing here changes a program or decides what comes next.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dspy_combee.aggregation.base import Aggregated, Aggregation, AggregationJob
from dspy_combee.aggregation.waves import AGGREGATION_STAGE
from dspy_combee.errors import CombeeError
from dspy_combee.instructions import instructions_of, with_instructions
from dspy_combee.learners.base import PromptLearner, Reflection, Trajectory
from dspy_combee.rounds.learn_record import RecordWork, reflection_context
from dspy_combee.rounds.learner_extras import CondensesReflections, JoinsUpdates
from dspy_combee.rounds.records import ComponentUpdate, RoundRecord
from dspy_combee.rounds.run_files import Learned, RunFiles
from dspy_combee.rounds.source import Batch
from dspy_combee.rounds.validation import stop_if_fatal
from dspy_combee.runtime.budget import Meter, Spend
from dspy_combee.runtime.execution.base import Executor, Outcome
from dspy_combee.trajectory_text import components_that_ran, names_of_components


@dataclass(frozen=True, slots=True)
class LearnedBatch:
    """What a batch taught."""

    records: tuple[Learned, ...]
    """One a record, in order."""
    trajectories: tuple[Trajectory, ...]
    """Those that were made now, in order; what an interrupted run had done is not among them.

    One that could not be made or scored has its `error` alone.
    """
    failures: tuple[Exception | None, ...] = field(default=())
    """Why a record could not be run or scored, one a record; None where it could."""
    called: tuple[tuple[str, ...], ...] = field(default=())
    """The predictors of the program that a run called, one tuple a run; runs in which none was seen are left out."""

    @property
    def reflections(self) -> list[Reflection]:
        """All reflections, in order of the records."""
        return [reflection for record in self.records for reflection in record.reflections]


def learn_batch(
    work: RecordWork, program: Any, batch: Batch, *, round_index: int, files: RunFiles, executor: Executor
) -> LearnedBatch:
    """Run, score and reflect on each record of a batch; what an interrupted run had done is not done again.

    Raises:
        MetricError: The metric returned something that is no score.
    """
    trajectories: dict[int, Trajectory] = {}

    def learn(position: int) -> Learned:
        known = files.recall(round_index, batch.record_ids[position])
        if known is not None:
            return known
        trajectory, learned = work.learn(program, batch.items[position], batch.record_ids[position])
        trajectories[position] = trajectory
        if not learned.error or trajectory.error is not None:
            files.keep(round_index, learned)
        return learned

    outcomes = executor.run(learn, range(len(batch.items)), on_done=stop_if_fatal)
    records = tuple(_learned(batch.record_ids[outcome.index], outcome) for outcome in outcomes)
    for outcome, record in zip(outcomes, records, strict=True):
        if outcome.error is not None:
            trajectories[outcome.index] = Trajectory(record.record_id, batch.items[outcome.index], error=record.error)
    names = names_of_components(program)
    called = [components_that_ran(trajectories[position], names) for position in sorted(trajectories)]
    return LearnedBatch(
        records=records,
        trajectories=tuple(trajectories[position] for position in sorted(trajectories)),
        failures=tuple(outcome.error for outcome in outcomes),
        called=tuple(ran for ran in called if not set(names.values()).isdisjoint(ran)),
    )


def aggregate_reflections(
    learner: PromptLearner,
    program: Any,
    reflections: Sequence[Reflection],
    *,
    aggregation: Aggregation,
    executor: Executor,
    meter: Meter,
    rng: random.Random,
    reflection_lm: Any = None,
    frozen: Sequence[str] = (),
) -> list[Aggregated]:
    """Distil one update a component, every group against the same program, with the reflection model.

    Reflections on frozen components are left out.
    """
    by_component: dict[str, list[Reflection]] = {}
    for reflection in reflections:
        if reflection.component not in frozen:
            by_component.setdefault(reflection.component, []).append(reflection)
    join = learner.join if isinstance(learner, JoinsUpdates) else None
    condense = learner.condense if isinstance(learner, CondensesReflections) else None
    jobs = [
        AggregationJob(component, tuple(found), partial(learner.curate, program), join, condense)
        for component, found in sorted(by_component.items())
    ]
    with reflection_context(reflection_lm), meter.stage(AGGREGATION_STAGE):
        return aggregation.aggregate(jobs, executor=executor, rng=rng) if jobs else []


def record_round(
    index: int,
    batch: Batch,
    learned: LearnedBatch,
    aggregated: Sequence[Aggregated],
    *,
    is_full: bool,
    seconds: float,
    before: Spend,
    after: Spend,
) -> RoundRecord:
    """Return the record of a finished round; `before` and `after` are what the run had spent around it."""
    return RoundRecord(
        index=index,
        epoch=batch.epoch,
        batch_size=len(batch.items),
        is_full=is_full,
        record_ids=batch.record_ids,
        examples=batch.examples,
        scores=tuple(record.score for record in learned.records),
        errors=tuple((record.record_id, record.error) for record in learned.records if record.error),
        reflections=len(learned.reflections),
        updates=tuple(ComponentUpdate.of(item) for item in aggregated),
        seconds=seconds,
        recalled=sum(record.is_recalled for record in learned.records),
        cached_calls=after.cached_calls - before.cached_calls,
        metric_calls=after.metric_calls,
        feedback=tuple(record.feedback for record in learned.records),
        traced=len(learned.called),
        reached=tuple(sorted({name for names in learned.called for name in names})),
    )


def commit(
    learner: PromptLearner, program: Any, aggregated: Sequence[Aggregated], *, frozen: Sequence[str] = ()
) -> Any:
    """Return the program with every update applied; the instructions of frozen predictors stay what they were."""
    for item in aggregated:
        if item.update is not None:
            program = _with_frozen(learner.update(program, item.update), program, frozen)
    return program


def newly_scored(batch: Batch, learned: LearnedBatch) -> int:
    """Return how many records the metric was called for; recorded trajectories bring their score along."""
    return sum(
        record.score is not None and not isinstance(item, Trajectory)
        for item, record in zip(batch.items, learned.records, strict=True)
    )


def _with_frozen(changed: Any, before: Any, frozen: Sequence[str]) -> Any:
    kept = {name: text for name, text in instructions_of(before).items() if name in frozen} if frozen else {}
    is_intact = all(instructions_of(changed)[name] == text for name, text in kept.items())
    return changed if is_intact else with_instructions(changed, kept)


def _learned(record_id: str, outcome: Outcome[Learned]) -> Learned:
    if outcome.value is not None:
        return outcome.value
    error = outcome.error
    words = str(error) if isinstance(error, CombeeError) else f"{type(error).__name__}: {error}"
    return Learned(record_id, None, (), error=words)
