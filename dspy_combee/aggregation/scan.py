"""The parallel scan: deal the reflections into groups, aggregate the groups at once, then aggregate the updates.

Combee, sections 3.1 and 3.2. The tree comes from `dspy_combee.scan`, the dealing from `dspy_combee.shuffle`; here it
is run. A failed group's records are dealt anew; a failed last call is stood in for, so nothing paid for is lost.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dspy_combee.aggregation.base import Aggregated, AggregationJob, CallRecord
from dspy_combee.aggregation.waves import Answer, Call, CallRunner
from dspy_combee.learners.base import Reflection, Update
from dspy_combee.runtime.execution.base import Executor
from dspy_combee.scan import ScanPlan, fan_in_bound, near_equal_sizes, plan_scan
from dspy_combee.shuffle import augmented_shuffle
from dspy_combee.truncation import cut_middle

DEFAULT_REFLECTION_CHARS = 40_000


@dataclass(frozen=True, slots=True)
class Scan:
    """Parallel scan with augmented shuffle (an `Aggregation`).

    Args:
        duplication: How often each reflection is dealt (`p`), at least 1.
        group_size: Distinct reflections a first-level call sees; None means about `sqrt(n)`, as published, and fewer
            where the fan-in demands it.
        max_fan_in: The most items that any call sees, copies counted; more groups and levels are planned when it is
            exceeded. None means 16, or what `group_size` needs. The published tree has no bound: two levels at any
            size, which `max_fan_in=duplication * n` gives; its groups lose rules from about 100 reflections on
            (`benchmarks/combee_capacity.py`).
        max_reflection_chars: The most text of reflections that any call sees; groups above it are split.
        runner: How calls are retried and hedged.

    Raises:
        ValueError: an argument is out of range.
    """

    duplication: int = 2
    group_size: int | None = None
    max_fan_in: int | None = None
    max_reflection_chars: int = DEFAULT_REFLECTION_CHARS
    runner: CallRunner = field(default_factory=CallRunner)

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.duplication < 1:
            raise ValueError(f"duplication must be at least 1, got {self.duplication}")
        if self.group_size is not None and self.group_size < 1:
            raise ValueError(f"group_size must be at least 1 or None, got {self.group_size}")
        if self.max_fan_in is not None and self.max_fan_in < 2:
            raise ValueError(f"max_fan_in must be at least 2 or None, got {self.max_fan_in}")
        if self.max_reflection_chars < 200:
            raise ValueError(f"max_reflection_chars must be at least 200, got {self.max_reflection_chars}")

    @property
    def name(self) -> str:
        """The name that `Combee(aggregation=...)` takes."""
        return "scan"

    def calls_for(self, count: int) -> int:
        """Return how many calls `count` reflections of one component take when none fails or is split for its text."""
        return self._plan(count).calls

    def aggregate(self, jobs: Sequence[AggregationJob], *, executor: Executor, rng: random.Random) -> list[Aggregated]:
        """Aggregate every job; the calls of one level of all jobs run in one wave."""
        progress = [_Progress(job, index) for index, job in enumerate(jobs)]
        self._first_level(progress, jobs, executor, rng)
        first = [record for item in progress for record in item.records]
        level = 2
        while any(len(item.updates) > 1 for item in progress):
            self._reduce(f"level {level}", progress, jobs, first, executor, rng)
            level += 1
        return [item.result() for item in progress]

    def _plan(self, count: int) -> ScanPlan:
        return plan_scan(count, group_size=self.group_size, max_fan_in=self.max_fan_in, copies=self.duplication)

    def _first_level(
        self, progress: list[_Progress], jobs: Sequence[AggregationJob], executor: Executor, rng: random.Random
    ) -> None:
        calls = [call for item in progress for call in self._deal(item.job.reflections, item.index, rng)]
        answers = self.runner.run_wave("level 1", calls, jobs, executor=executor, rng=rng)
        for answer in answers:
            progress[answer.call.job_index].take(answer)
        again = [call for item in progress for call in self._deal_anew(item, rng)]
        first = [answer.record for answer in answers]
        answers = self.runner.run_wave("level 1, dealt anew", again, jobs, executor=executor, rng=rng, earlier=first)
        for answer in answers:
            progress[answer.call.job_index].take(answer)

    def _deal(self, reflections: Sequence[Reflection], job_index: int, rng: random.Random) -> list[Call]:
        if not reflections:
            return []
        first = self._plan(len(reflections)).levels[0]
        bounded = [self._bounded(reflection) for reflection in reflections]
        dealt = augmented_shuffle(bounded, copies=first.copies, groups=len(first.group_sizes), rng=rng)
        return [Call(job_index, part) for group in dealt if group for part in self._split(group)]

    def _deal_anew(self, item: _Progress, rng: random.Random) -> list[Call]:
        """Deal the records that only failed calls have seen into groups half as large."""
        seen = {rid for update_call in item.answered for rid in update_call.record_ids}
        lost = [r for r in item.job.reflections if not seen.issuperset(r.record_ids)]
        if not lost or not item.failed:
            return []
        half = max(1, max(len(call.reflections) for call in item.failed) // 2)
        groups = math.ceil(len(lost) / half)
        bounded = [self._bounded(reflection) for reflection in lost]
        dealt = augmented_shuffle(bounded, copies=1, groups=groups, rng=rng)
        return [Call(item.index, part) for group in dealt if group for part in self._split(group)]

    def _reduce(
        self,
        stage: str,
        progress: list[_Progress],
        jobs: Sequence[AggregationJob],
        first: Sequence[CallRecord],
        executor: Executor,
        rng: random.Random,
    ) -> None:
        groups = {item.index: self._upper_groups(item) for item in progress if len(item.updates) > 1}
        calls = [Call(index, group) for index in groups for group in groups[index] if len(group) > 1]
        answers = self.runner.run_wave(stage, calls, jobs, executor=executor, rng=rng, earlier=first)
        for index in groups:
            passed_on = [group[0].update for group in groups[index] if len(group) == 1]
            progress[index].reduce([a for a in answers if a.call.job_index == index], passed_on)

    def _upper_groups(self, item: _Progress) -> list[tuple[Reflection, ...]]:
        """Group a job's updates for the next level; a group of one goes up without a call."""
        reflections = [_as_reflection(update, item.job.component) for update in item.updates]
        fan_in = fan_in_bound(self.max_fan_in, group_size=self.group_size, copies=self.duplication)
        groups = _cut(reflections, near_equal_sizes(len(reflections), math.ceil(len(reflections) / fan_in)))
        return [part for group in groups for part in self._split_pairwise(group)]

    def _bounded(self, reflection: Reflection) -> Reflection:
        if len(reflection.text) <= self.max_reflection_chars:
            return reflection
        return replace(reflection, text=cut_middle(reflection.text, self.max_reflection_chars))

    def _split(self, group: tuple[Reflection, ...]) -> list[tuple[Reflection, ...]]:
        """Split a group into near-equal parts none of which has more text than a call may see."""
        chars = sum(len(reflection.text) for reflection in group)
        for parts in range(max(1, math.ceil(chars / self.max_reflection_chars)), len(group) + 1):
            pieces = _cut(group, near_equal_sizes(len(group), parts))
            if all(sum(len(r.text) for r in piece) <= self.max_reflection_chars for piece in pieces):
                return pieces
        return [(reflection,) for reflection in group]

    def _split_pairwise(self, group: tuple[Reflection, ...]) -> list[tuple[Reflection, ...]]:
        """Split by text, but into pairs at the least: a level has to make fewer updates of those it gets."""
        pieces = self._split(group)
        if len(pieces) < len(group):
            return pieces
        return _cut(group, near_equal_sizes(len(group), max(1, len(group) // 2)))


@dataclass(slots=True)
class _Progress:
    """How far one job has come. Lives inside one `aggregate` call."""

    job: AggregationJob
    index: int
    updates: list[Update] = field(default_factory=list)
    records: list[CallRecord] = field(default_factory=list)
    answered: list[Call] = field(default_factory=list)
    failed: list[Call] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def take(self, answer: Answer) -> None:
        """Note a first-level answer; an update without entries is an answer too, but nothing to carry up."""
        self.records.append(answer.record)
        if answer.update is None:
            self.failed.append(answer.call)
            return
        self.answered.append(answer.call)
        if answer.update.entries:
            self.updates.append(answer.update)

    def reduce(self, answers: Sequence[Answer], passed_on: Sequence[Update]) -> None:
        """Put the updates of a level in place of those below; where a call failed, join or choose among its inputs."""
        reduced: list[Update] = list(passed_on)
        for answer in answers:
            self.records.append(answer.record)
            if answer.update is not None and answer.update.entries:
                reduced.append(answer.update)
            else:
                reduced.append(self._stand_in([reflection.update for reflection in answer.call.reflections]))
        self.updates = reduced

    def result(self) -> Aggregated:
        """Return the job's result."""
        update = self.updates[0] if self.updates else None
        cited = {rid for entry in update.entries for rid in entry.record_ids} if update else set()
        shown = dict.fromkeys(rid for reflection in self.job.reflections for rid in reflection.record_ids)
        uncited = tuple(rid for rid in shown if rid not in cited)
        return Aggregated(self.job.component, update, tuple(self.records), uncited, "; ".join(self.notes))

    def _stand_in(self, updates: list[Update]) -> Update:
        if self.job.join is not None:
            self.notes.append(f"the call that should merge {len(updates)} updates failed: they were joined in code")
            return self.job.join(updates)
        self.notes.append(f"the call that should merge {len(updates)} updates failed: the best supported one stands in")
        return max(updates, key=lambda update: len({rid for entry in update.entries for rid in entry.record_ids}))


def _as_reflection(update: Update, component: str) -> Reflection:
    record_ids = tuple(dict.fromkeys(rid for entry in update.entries for rid in entry.record_ids))
    return Reflection(update.render(), record_ids, component, update=update)


def _cut(items: Sequence[Reflection], sizes: Sequence[int]) -> list[tuple[Reflection, ...]]:
    """Cut a sequence into consecutive pieces of the given sizes."""
    pieces: list[tuple[Reflection, ...]] = []
    start = 0
    for size in sizes:
        pieces.append(tuple(items[start : start + size]))
        start += size
    return pieces
