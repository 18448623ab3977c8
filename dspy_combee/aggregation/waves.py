"""Run the calls of one level, of all components at once, so that no failed or slow call holds or loses the rest."""

from __future__ import annotations

import logging
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from dspy_combee.aggregation.base import AggregationJob, CallRecord
from dspy_combee.errors import ReflectionError
from dspy_combee.learners.base import Curate, Reflection, Update
from dspy_combee.runtime.adaptive_limit import AdaptiveLimit
from dspy_combee.runtime.execution.base import Executor, Outcome
from dspy_combee.runtime.fresh_sample import fresh_sample
from dspy_combee.runtime.hedge import HedgePolicy, Pace, Wave
from dspy_combee.runtime.lm_watch import affords_extra_call, stage_context
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

    @property
    def chars(self) -> int:
        """How much text it reads; entries that several of its updates share count once."""
        texts = dict.fromkeys(text for reflection in self.reflections for text in _texts_of(reflection))
        return sum(len(text) for text in texts)


def _texts_of(reflection: Reflection) -> list[str]:
    return [reflection.text] if reflection.update is None else [entry.text for entry in reflection.update.entries]


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
        earlier: Sequence[CallRecord] = (),
    ) -> list[Answer]:
        """Make the calls all at once and return one answer each, in order. Never raises an `Exception`.

        What they spend is counted in a stage of its own, so that the cost of each level is known. A call without
        siblings is measured by the pace of `earlier`, calls of a level below; without these it is never hedged.
        """
        pace = pace_of(earlier)
        wave: Wave[Update] | None = None
        if self.hedge is not None and executor.num_workers > 1 and (len(calls) > 1 or pace is not None):
            wave = Wave(len(calls), self.hedge)
        seeds = [rng.random() for _ in calls]
        limit = self._limits.setdefault(executor.num_workers, AdaptiveLimit(executor.num_workers))

        def make(index: int) -> Update:
            call = calls[index]
            item = _Item(call, jobs[call.job_index].curate, self, limit, wave, pace)
            return item.make(random.Random(seeds[index]))

        with stage_context(f"{AGGREGATION_STAGE}, {stage}"):
            outcomes = executor.run(make, range(len(calls)))
        return [_answer(stage, call, outcome) for call, outcome in zip(calls, outcomes, strict=True)]


def pace_of(records: Sequence[CallRecord]) -> Pace | None:
    """Return the pace of the calls that gave an update; None when there is none."""
    answered = [record for record in records if record.error is None]
    if not answered:
        return None
    return Pace(
        statistics.median(record.seconds for record in answered), statistics.median(record.chars for record in answered)
    )


@dataclass(slots=True)
class _Item:
    """One call on its way: repeated while its reply is unusable, retried in an outage, hedged at most once.

    A second request is one call and no more: whatever repeats and retries wait for stands outside of it, so the loser
    of a hedge ends with the call that it is making.
    """

    call: Call
    curate: Curate
    runner: CallRunner
    limit: AdaptiveLimit
    wave: Wave[Update] | None
    pace: Pace | None
    was_asked_again: bool = False

    def make(self, rng: random.Random) -> Update:
        """Return the update, or raise the last error."""
        for repeat in range(self.runner.reply_attempts):
            try:
                return call_with_retry(partial(self._ask, repeat), self.runner.retry, rng, limit=self.limit)
            except ReflectionError as error:
                if repeat + 1 == self.runner.reply_attempts:
                    raise
                logger.debug("Unusable reply (%s), asking again", error)
        raise AssertionError("the last attempt returns or raises")

    def _ask(self, repeat: int) -> Update:
        request = partial(self._request, repeat)
        with self.limit.slot():
            if self.wave is None:
                return request(0)
            usual_seconds = None if self.pace is None else self.pace.seconds_for(self.call.chars)
            return self.wave.call(request, usual_seconds=usual_seconds, is_allowed=self._may_ask_again)

    def _request(self, repeat: int, hedge_number: int) -> Update:
        with fresh_sample(repeat + hedge_number * self.runner.reply_attempts):
            return self.curate(self.call.reflections)

    def _may_ask_again(self) -> bool:
        """Allow one second request, where neither the provider's patience nor a budget is short."""
        times = 1.0 if self.pace is None else self.pace.times(self.call.chars)
        if self.was_asked_again or self.limit.is_lowered or not affords_extra_call(times):
            return False
        self.was_asked_again = True
        return True


def _answer(stage: str, call: Call, outcome: Outcome[Update]) -> Answer:
    error = None if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}"
    if error is not None:
        logger.warning("An aggregation call of %s failed: %s", stage, error)
    return Answer(call, outcome.value, CallRecord(stage, call.record_ids, outcome.seconds, error, call.chars))
