"""Run the calls of one level, of all components at once, so that no failed or slow call holds or loses the rest."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dspy_combee.aggregation.base import AggregationJob, CallRecord
from dspy_combee.errors import ReflectionError
from dspy_combee.learners.base import Reflection, Update
from dspy_combee.runtime.adaptive_limit import AdaptiveLimit
from dspy_combee.runtime.execution.base import Executor, Outcome
from dspy_combee.runtime.fresh_sample import fresh_sample
from dspy_combee.runtime.hedge import HedgePolicy, Wave
from dspy_combee.runtime.lm_watch import stage_context
from dspy_combee.runtime.retry import RetryPolicy, call_with_retry

logger = logging.getLogger(__name__)

AGGREGATION_STAGE = "aggregation"
"""What the stages of a meter begin with in which aggregation calls are made: "aggregation, level 1", and so on."""


@dataclass(frozen=True, slots=True)
class Call:
    """One aggregation call to make: the job it belongs to and what it reads."""

    job_index: int
    reflections: tuple[Reflection, ...]

    @property
    def record_ids(self) -> tuple[str, ...]:
        """The records behind what it reads, without repeats."""
        return tuple(dict.fromkeys(rid for reflection in self.reflections for rid in reflection.record_ids))


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call: an update, or None after all retries failed."""

    call: Call
    update: Update | None
    record: CallRecord


@dataclass(frozen=True, slots=True)
class CallRunner:
    """How the calls of an aggregation are made: retried, hedged, spread over the executor's workers."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """For rate limits, outages and time-outs, with backoff."""
    reply_attempts: int = 2
    """How often a reply that cannot be used is asked for, each time afresh; 1 or more."""
    hedge: HedgePolicy | None = field(default_factory=HedgePolicy)
    """When a straggler is asked a second time; None for never."""
    _limits: dict[int, AdaptiveLimit] = field(default_factory=dict, repr=False, compare=False)
    """By number of workers: how many calls may run at once while the provider refuses some."""

    def run_wave(
        self,
        stage: str,
        calls: Sequence[Call],
        jobs: Sequence[AggregationJob],
        *,
        executor: Executor,
        rng: random.Random,
    ) -> list[Answer]:
        """Make the calls all at once and return one answer each, in order. Never raises an `Exception`.

        What they spend is counted in a stage of its own, so that the cost of each level is known.
        """
        wave: Wave[Update] | None = None
        if self.hedge is not None and executor.num_workers > 1 and len(calls) > 1:
            wave = Wave(len(calls), self.hedge)
        seeds = [rng.random() for _ in calls]
        limit = self._limits.setdefault(executor.num_workers, AdaptiveLimit(executor.num_workers))

        def make(index: int) -> Update:
            job = jobs[calls[index].job_index]
            attempt = _attempts(job, calls[index].reflections, self, seeds[index], limit)
            return attempt(0) if wave is None else wave.call(attempt)

        with stage_context(f"{AGGREGATION_STAGE}, {stage}"):
            outcomes = executor.run(make, range(len(calls)))
        return [_answer(stage, call, outcome) for call, outcome in zip(calls, outcomes, strict=True)]


def _attempts(
    job: AggregationJob, reflections: tuple[Reflection, ...], runner: CallRunner, seed: float, limit: AdaptiveLimit
) -> Callable[[int], Update]:
    """Return a function of the hedge number that makes the call and repeats it while the reply is unusable."""

    def call() -> Update:
        with limit.slot():
            return job.curate(reflections)

    def attempt(hedge_number: int) -> Update:
        rng = random.Random(seed)
        for number in range(runner.reply_attempts):
            try:
                with fresh_sample(number + hedge_number * runner.reply_attempts):
                    return call_with_retry(call, runner.retry, rng, limit=limit)
            except ReflectionError as error:
                if number + 1 == runner.reply_attempts:
                    raise
                logger.debug("%s: unusable reply (%s), asking again", job.component or "program", error)
        raise AssertionError("the last attempt returns or raises")

    return attempt


def _answer(stage: str, call: Call, outcome: Outcome[Update]) -> Answer:
    error = None if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}"
    if error is not None:
        logger.warning("An aggregation call of %s failed: %s", stage, error)
    return Answer(call, outcome.value, CallRecord(stage, call.record_ids, outcome.seconds, error))
