"""Salvage: the records that no line of the update cites get one more pass, among themselves.

A rare lesson drowns among common ones; among other uncited records it has another chance. The pass is bounded: it adds
at most two calls, or a quarter of those of the first level, and no call of it sees more than one of the first level.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dspy_combee.aggregation.base import Aggregated, Aggregation, AggregationJob, CallRecord
from dspy_combee.aggregation.waves import Answer, Call, CallRunner
from dspy_combee.learners.base import Reflection, Update
from dspy_combee.runtime.execution.base import Executor
from dspy_combee.scan import near_equal_sizes

MINIMUM_CALLS = 2
"""So many salvage calls are allowed after however small a first level."""


@dataclass(frozen=True, slots=True)
class Salvage:
    """Another aggregation, and a pass for what it left uncited (an `Aggregation`).

    Args:
        inner: The aggregation.
        group_size: Uncited records that a salvage call sees where the calls suffice, at least 1; small, so that none
            drowns again. With fewer calls the groups grow, up to the largest of the first level.
        max_share: The most salvage calls a component, as a share of the calls of the first level; two are always
            allowed. Records beyond them stay uncited and are reported.
        runner: How calls are retried and hedged.

    Raises:
        ValueError: `group_size` is below 1, or `max_share` is not above 0.
    """

    inner: Aggregation
    group_size: int = 4
    max_share: float = 0.25
    runner: CallRunner = field(default_factory=CallRunner)

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.group_size < 1:
            raise ValueError(f"group_size must be at least 1, got {self.group_size}")
        if not self.max_share > 0:
            raise ValueError(f"max_share must be above 0, got {self.max_share}")

    @property
    def name(self) -> str:
        """The name of the inner aggregation."""
        return self.inner.name

    def calls_for(self, count: int) -> int:
        """Return the most calls that `count` reflections of one component take when none fails."""
        calls = self.inner.calls_for(count)
        return calls if calls < 2 else calls + self._most_calls(calls)

    def aggregate(self, jobs: Sequence[AggregationJob], *, executor: Executor, rng: random.Random) -> list[Aggregated]:
        """Aggregate every job, then salvage; the salvage calls of all jobs run in one wave."""
        results = self.inner.aggregate(jobs, executor=executor, rng=rng)
        lost = [_uncited(job, result) for job, result in zip(jobs, results, strict=True)]
        groups = [self._groups(*one, rng) for one in zip(lost, jobs, results, strict=True)]
        calls = [Call(index, group) for index, found in enumerate(groups) for group in found]
        answers = self.runner.run_wave(
            "salvage", calls, jobs, executor=executor, rng=rng, earlier=_first_level(results)
        )
        by_job = {index: [a for a in answers if a.call.job_index == index] for index in range(len(jobs))}
        return self._added(jobs, results, by_job, executor, rng)

    def _most_calls(self, first_level: int) -> int:
        return max(MINIMUM_CALLS, math.floor(self.max_share * first_level))

    def _groups(
        self, lost: Sequence[Reflection], job: AggregationJob, result: Aggregated, rng: random.Random
    ) -> list[tuple[Reflection, ...]]:
        """Deal the lost reflections into small groups, within the calls that are allowed."""
        if not lost:
            return []
        level = _first_level([result])
        # Where updates cannot be joined in code, one of the calls has to do it.
        allowed = self._most_calls(len(level)) - (job.join is None)
        largest = max(self.group_size, *(len(call.record_ids) for call in level))
        count = min(allowed, math.ceil(len(lost) / self.group_size))
        order = list(lost)
        rng.shuffle(order)
        kept = order[: count * largest]
        return _cut(kept, near_equal_sizes(len(kept), count))

    def _added(
        self,
        jobs: Sequence[AggregationJob],
        results: Sequence[Aggregated],
        by_job: dict[int, list[Answer]],
        executor: Executor,
        rng: random.Random,
    ) -> list[Aggregated]:
        """Add what was salvaged to each update: in code where the learner can, by one more call where it cannot."""
        found = {
            index: [a.update for a in answers if a.update and a.update.entries] for index, answers in by_job.items()
        }
        calls = [
            Call(
                index,
                tuple(_as_reflection(update, jobs[index].component) for update in (results[index].update, *updates)),
            )
            for index, updates in found.items()
            if updates and jobs[index].join is None
        ]
        merged = self.runner.run_wave(
            "salvage, merged", calls, jobs, executor=executor, rng=rng, earlier=_first_level(results)
        )
        added: list[Aggregated] = []
        for index, (job, result) in enumerate(zip(jobs, results, strict=True)):
            update = result.update
            if found[index] and job.join is not None and update is not None:
                update = job.join([update, *found[index]])
            records = [answer.record for answer in by_job[index]]
            for answer in merged:
                if answer.call.job_index == index:
                    records.append(answer.record)
                    # A rewriting call may lose more than was salvaged: then what was there before stays.
                    is_worth_it = answer.update is not None and len(_cited(answer.update)) >= len(_cited(update))
                    update = answer.update if is_worth_it else update
            added.append(_with(result, job, update, records))
        return added


def _first_level(results: Sequence[Aggregated]) -> list[CallRecord]:
    return [call for result in results for call in result.calls if call.stage == result.calls[0].stage]


def _uncited(job: AggregationJob, result: Aggregated) -> list[Reflection]:
    """Return the reflections to salvage: none where no line cites anything, for then nobody knows what was lost."""
    entries = result.update.entries if result.update is not None else ()
    if len(result.calls) < 2 or not any(entry.record_ids for entry in entries):
        return []
    uncited = set(result.uncited)
    return [reflection for reflection in job.reflections if uncited.issuperset(reflection.record_ids)]


def _with(result: Aggregated, job: AggregationJob, update: Update | None, records: Sequence[object]) -> Aggregated:
    if not records:
        return result
    cited = _cited(update)
    still = tuple(record_id for record_id in result.uncited if record_id not in cited)
    note = f"{len(result.uncited) - len(still)} of {len(result.uncited)} uncited records were salvaged"
    return replace(
        result,
        update=update,
        calls=(*result.calls, *records),
        uncited=still,
        note="; ".join(text for text in (result.note, note) if text),
    )


def _cited(update: Update | None) -> set[str]:
    return {record_id for entry in (update.entries if update else ()) for record_id in entry.record_ids}


def _as_reflection(update: Update | None, component: str) -> Reflection:
    assert update is not None
    record_ids = tuple(dict.fromkeys(rid for entry in update.entries for rid in entry.record_ids))
    return Reflection(update.render(), record_ids, component, update=update)


def _cut(items: Sequence[Reflection], sizes: Sequence[int]) -> list[tuple[Reflection, ...]]:
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [tuple(items[start : start + size]) for start, size in zip(starts, sizes, strict=True)]
