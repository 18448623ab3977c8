"""Summarise twice, then aggregate: each reflection alone, then the summaries together, then one aggregation call.

The strongest of the baselines that do without a scan. Where a summary fails, what it was to sum up is passed on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from dspy_combee.aggregation.base import Aggregated, AggregationJob
from dspy_combee.aggregation.summarize import summarize_wave, update_wave
from dspy_combee.aggregation.waves import Answer, Call, CallRunner
from dspy_combee.learners.base import Reflection
from dspy_combee.runtime.execution.base import Executor


@dataclass(frozen=True, slots=True)
class Hierarchical:
    """A summary a reflection, one of the summaries, then one aggregation call a component (an `Aggregation`).

    Args:
        runner: How calls are retried and hedged.
    """

    runner: CallRunner = field(default_factory=CallRunner)

    @property
    def name(self) -> str:
        """The name that `Combee(aggregation=...)` takes."""
        return "hierarchical"

    def calls_for(self, count: int) -> int:
        """Return how many calls `count` reflections of one component take when none fails."""
        return count if count < 2 else count + 2

    def aggregate(self, jobs: Sequence[AggregationJob], *, executor: Executor, rng: random.Random) -> list[Aggregated]:
        """Aggregate every job; the calls of one stage of all jobs run in one wave."""
        made: list[Answer] = []
        shown = [list(job.reflections) for job in jobs]

        alone = [
            Call(index, (reflection,)) for index, found in enumerate(shown) if len(found) > 1 for reflection in found
        ]
        summaries = summarize_wave("summarize each", alone, jobs, self.runner, executor=executor, rng=rng)
        made.extend(answer for answer, _ in summaries)
        for index in {answer.call.job_index for answer, _ in summaries}:
            shown[index] = [_or_own(answer, s) for answer, s in summaries if answer.call.job_index == index]

        together = [Call(index, tuple(found)) for index, found in enumerate(shown) if len(found) > 1]
        condensed = summarize_wave("condense", together, jobs, self.runner, executor=executor, rng=rng, before=made)
        made.extend(answer for answer, _ in condensed)
        for answer, summary in condensed:
            if summary is not None:
                shown[answer.call.job_index] = [summary]
        return update_wave(jobs, shown, made, self.runner, executor=executor, rng=rng)


def _or_own(answer: Answer, summary: Reflection | None) -> Reflection:
    return answer.call.reflections[0] if summary is None else summary
