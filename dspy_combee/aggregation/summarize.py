"""Summarise, then aggregate: one call sums up all reflections, one more makes the update of the summary.

A baseline. When the summary fails, the aggregation call reads the reflections themselves.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dspy_combee.aggregation.base import Aggregated, AggregationJob
from dspy_combee.aggregation.condense import condensed, summarize
from dspy_combee.aggregation.single_pass import aggregated_from
from dspy_combee.aggregation.waves import Answer, Call, CallRunner
from dspy_combee.learners.base import Reflection
from dspy_combee.runtime.execution.base import Executor


@dataclass(frozen=True, slots=True)
class Summarize:
    """One summary call, then one aggregation call a component (an `Aggregation`).

    Args:
        runner: How calls are retried and hedged.
    """

    runner: CallRunner = field(default_factory=CallRunner)

    @property
    def name(self) -> str:
        """The name that `Combee(aggregation=...)` takes."""
        return "summarize"

    def calls_for(self, count: int) -> int:
        """Return how many calls `count` reflections of one component take when none fails."""
        return count if count < 2 else 2

    def aggregate(self, jobs: Sequence[AggregationJob], *, executor: Executor, rng: random.Random) -> list[Aggregated]:
        """Aggregate every job; the summaries of all jobs run in one wave, and so do the updates."""
        calls = [Call(index, job.reflections) for index, job in enumerate(jobs) if len(job.reflections) > 1]
        summaries = summarize_wave("summarize", calls, jobs, self.runner, executor=executor, rng=rng)
        shown = [list(job.reflections) for job in jobs]
        for answer, summary in summaries:
            if summary is not None:
                shown[answer.call.job_index] = [summary]
        return update_wave(jobs, shown, [a for a, _ in summaries], self.runner, executor=executor, rng=rng)


def summarize_wave(
    stage: str,
    calls: Sequence[Call],
    jobs: Sequence[AggregationJob],
    runner: CallRunner,
    *,
    executor: Executor,
    rng: random.Random,
    before: Sequence[Answer] = (),
) -> list[tuple[Answer, Reflection | None]]:
    """Make summary calls all at once; return each answer with the reflection that its summary became, if it did."""
    summarizing = [replace(job, curate=summarize) for job in jobs]
    earlier = [answer.record for answer in before]
    answers = runner.run_wave(stage, calls, summarizing, executor=executor, rng=rng, earlier=earlier)
    return [
        (answer, _condensed(jobs[answer.call.job_index], answer) if answer.update is not None else None)
        for answer in answers
    ]


def update_wave(
    jobs: Sequence[AggregationJob],
    shown: Sequence[Sequence[Reflection]],
    before: Sequence[Answer],
    runner: CallRunner,
    *,
    executor: Executor,
    rng: random.Random,
) -> list[Aggregated]:
    """Make the aggregation call of every job on what is shown to it; the calls made before go on record with it."""
    calls = [Call(index, tuple(reflections)) for index, reflections in enumerate(shown) if reflections]
    made = runner.run_wave("update", calls, jobs, executor=executor, rng=rng, earlier=[a.record for a in before])
    answers = {answer.call.job_index: answer for answer in made}
    results = []
    for index, job in enumerate(jobs):
        result = aggregated_from(job, answers.get(index))
        earlier = tuple(answer.record for answer in before if answer.call.job_index == index)
        results.append(replace(result, calls=(*earlier, *result.calls)))
    return results


def _condensed(job: AggregationJob, answer: Answer) -> Reflection:
    assert answer.update is not None
    return condensed(job, answer.call.reflections, answer.update.entries[0].text)
