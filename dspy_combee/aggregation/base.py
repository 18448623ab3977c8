"""The family of aggregations: many reflections in, one update out.

An aggregation decides which reflections meet in which call, and in how many levels; what one call does with them is
the learner's `Curate`. Every aggregation serves every learner.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dspy_combee.learners.base import Curate, Reflection, Update
from dspy_combee.runtime.execution.base import Executor


@dataclass(frozen=True, slots=True)
class AggregationJob:
    """The reflections on one component and the call that can distil them."""

    component: str
    reflections: tuple[Reflection, ...]
    curate: Curate
    join: Callable[[Sequence[Update]], Update] | None = None
    """Joins updates in code when the call that should merge them failed; None: the best supported one stands in."""
    condense: Callable[[Sequence[Reflection], str], Reflection] | None = None
    """Makes one reflection of several and a summary of them, for aggregations that summarise; None: see `condensed`."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call of one level: what went in, what came of it, what it took."""

    stage: str
    """"level 1", "level 2", "summarize", "salvage", ..."""
    record_ids: tuple[str, ...]
    """The records whose reflections the call was shown, without repeats, in the order shown."""
    seconds: float
    error: str | None = None
    """Why the call gave nothing, after its retries; None when it gave an update."""
    chars: int = 0
    """Characters of the reflections that it read; what two updates both say is read once."""


@dataclass(frozen=True, slots=True)
class Aggregated:
    """What became of one job."""

    component: str
    update: Update | None
    """None when no call at all gave an update."""
    calls: tuple[CallRecord, ...]
    uncited: tuple[str, ...] = ()
    """Records that no entry of the update cites."""
    note: str = ""
    """What a reader should know, for example which group's update stands in for a failed last call."""


@runtime_checkable
class Aggregation(Protocol):
    """How the reflections of a batch become one update a component.

    `aggregate` never raises because a model call failed: it returns what the other calls gave. It runs the calls of
    one level of all jobs in one wave on `executor`, draws only from `rng`, and returns one result a job, in order.
    """

    @property
    def name(self) -> str:
        """The name that `Combee(aggregation=...)` takes and that tables show."""
        ...

    def calls_for(self, count: int) -> int:
        """Return how many calls `count` reflections of one component take when none fails; 1: nothing to aggregate."""
        ...

    def aggregate(self, jobs: Sequence[AggregationJob], *, executor: Executor, rng: random.Random) -> list[Aggregated]:
        """Aggregate every job."""
        ...
