"""Pick, then aggregate: reflections are embedded and clustered, and one call sees one representative a cluster.

A baseline: what only the others of a cluster said is lost, and is reported as uncited.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from dspy_combee.aggregation.base import Aggregated, AggregationJob
from dspy_combee.aggregation.summarize import update_wave
from dspy_combee.aggregation.waves import CallRunner
from dspy_combee.clusters import Embedder, embed_texts, representatives
from dspy_combee.learners.base import Reflection
from dspy_combee.runtime.execution.base import Executor


@dataclass(frozen=True, slots=True)
class TopK:
    """One representative a cluster, then one aggregation call a component (an `Aggregation`).

    Args:
        clusters: How many clusters (`K`), at least 1; None means `floor(sqrt(n))`.
        embedder: Texts to vectors; None means a local TF-IDF one.
        runner: How calls are retried and hedged.

    Raises:
        ValueError: `clusters` is below 1.
    """

    clusters: int | None = None
    embedder: Embedder | None = None
    runner: CallRunner = field(default_factory=CallRunner)

    def __post_init__(self) -> None:
        """Check the number."""
        if self.clusters is not None and self.clusters < 1:
            raise ValueError(f"clusters must be at least 1 or None, got {self.clusters}")

    @property
    def name(self) -> str:
        """The name that `Combee(aggregation=...)` takes."""
        return "top_k"

    def calls_for(self, count: int) -> int:
        """Return how many model calls `count` reflections of one component take when none fails."""
        return min(1, count)

    def aggregate(self, jobs: Sequence[AggregationJob], *, executor: Executor, rng: random.Random) -> list[Aggregated]:
        """Aggregate every job in one call on its representatives; the jobs run in one wave."""
        shown = [self._representatives(job.reflections, rng) for job in jobs]
        return update_wave(jobs, shown, (), self.runner, executor=executor, rng=rng)

    def _representatives(self, reflections: Sequence[Reflection], rng: random.Random) -> list[Reflection]:
        if not reflections:
            return []
        texts = [reflection.text for reflection in reflections]
        vectors = embed_texts(texts, self.embedder)
        count = self.clusters or math.isqrt(len(texts))
        return [reflections[position] for position in representatives(vectors, count, rng)]
