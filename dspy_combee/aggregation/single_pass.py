"""The naive batch: one call sees every reflection. The baseline whose context overload Combee cures."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dspy_combee.aggregation.base import Aggregated, AggregationJob
from dspy_combee.aggregation.waves import Answer, Call, CallRunner
from dspy_combee.learners.base import Reflection
from dspy_combee.runtime.execution.base import Executor
from dspy_combee.truncation import cut_middle


@dataclass(frozen=True, slots=True)
class SinglePass:
    """One call a component (an `Aggregation`).

    Args:
        max_reflection_chars: The most text of reflections that a call sees, shared out evenly; None for no limit.
        runner: How calls are retried and hedged.

    Raises:
        ValueError: `max_reflection_chars` is below 200.
    """

    max_reflection_chars: int | None = None
    runner: CallRunner = field(default_factory=CallRunner)

    def __post_init__(self) -> None:
        """Check the number."""
        if self.max_reflection_chars is not None and self.max_reflection_chars < 200:
            raise ValueError(f"max_reflection_chars must be at least 200 or None, got {self.max_reflection_chars}")

    @property
    def name(self) -> str:
        """The name that `Combee(aggregation=...)` takes."""
        return "single_pass"

    def calls_for(self, count: int) -> int:
        """Return 1: every reflection is read by the same call."""
        return min(1, count)

    def aggregate(self, jobs: Sequence[AggregationJob], *, executor: Executor, rng: random.Random) -> list[Aggregated]:
        """Aggregate every job in one call; the jobs run in one wave."""
        calls = [Call(index, self._bounded(job.reflections)) for index, job in enumerate(jobs) if job.reflections]
        answers = self.runner.run_wave("single pass", calls, jobs, executor=executor, rng=rng)
        by_job = {answer.call.job_index: answer for answer in answers}
        return [aggregated_from(job, by_job.get(index)) for index, job in enumerate(jobs)]

    def _bounded(self, reflections: tuple[Reflection, ...]) -> tuple[Reflection, ...]:
        if self.max_reflection_chars is None:
            return reflections
        share = max(60, self.max_reflection_chars // len(reflections))
        return tuple(replace(reflection, text=cut_middle(reflection.text, share)) for reflection in reflections)


def aggregated_from(job: AggregationJob, answer: Answer | None) -> Aggregated:
    """Return the result of a job that ended with this one answer."""
    shown = dict.fromkeys(rid for reflection in job.reflections for rid in reflection.record_ids)
    if answer is None:
        return Aggregated(job.component, None, (), tuple(shown))
    entries = answer.update.entries if answer.update is not None else ()
    cited = {rid for entry in entries for rid in entry.record_ids}
    update = answer.update if entries else None
    return Aggregated(job.component, update, (answer.record,), tuple(rid for rid in shown if rid not in cited))
