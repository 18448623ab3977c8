"""Two frozen programs on the same tasks: what the paired scores and the tokens come to, and what the result rests on.

Nothing is run here: this file is pure. A task with a missing score is dropped on both sides and reported, and calls
whose usage is unknown are counted apart; neither is ever a zero. `frozen_evaluation.compare` does the running.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dspy_combee.runtime.budget import Spend
from dspy_evocue.paired_differences import Interval, PairedCounts, bootstrap_interval, count_pairs


@dataclass(frozen=True, slots=True)
class ArmOutcome:
    """What one program did on one task."""

    score: float | None
    """What the metric said; None when nothing could be scored. Missing is not zero."""
    failure: str = ""
    """Why the score is missing, or what the program raised when that was scored."""
    spend: Spend = field(default_factory=Spend)
    """What its calls took; calls that reported no tokens are counted apart in it."""

    def __post_init__(self) -> None:
        if self.score is not None and not math.isfinite(self.score):
            raise ValueError(f"score must be a finite number or None, got {self.score!r}")


@dataclass(frozen=True, slots=True)
class ComparedTask:
    """One task, run by both programs."""

    task_id: str
    before: ArmOutcome
    after: ArmOutcome
    scenario: str | None = None
    """The scenario that the task belongs to; None for none."""

    @property
    def gain(self) -> float | None:
        """The paired difference, after - before; None when either score is missing."""
        if self.before.score is None or self.after.score is None:
            return None
        return self.after.score - self.before.score


@dataclass(frozen=True, slots=True)
class ScenarioCounts:
    """Scenarios whose tasks all succeeded, of those in which every task has both scores."""

    scenarios: int
    before: int
    after: int
    incomplete: int
    """Scenarios left out because a task of theirs has a missing score."""


@dataclass(frozen=True, slots=True)
class ResultIdentity:
    """What a result belongs to: enough to say whether two results may be compared, and to repeat one."""

    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Package to version."""
    seeds: tuple[int, ...] = ()
    config_hash: str = ""
    data_roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Role ("proposed", "tried", "confirmed", "evaluated") to the ids of its tasks."""
    artifact_sha256: Mapping[str, str] = field(default_factory=dict[str, str])
    """Program ("before", "after") to the digest of its saved state."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two frozen programs."""

    tasks: tuple[ComparedTask, ...]
    """Every task, in the order given."""
    counts: PairedCounts
    """Better, worse, equal and missing tasks."""
    before_mean: float | None
    """Mean score of the program before, over the tasks with both scores; None without any."""
    after_mean: float | None
    before_rate: float | None
    """Share of those tasks that succeeded before; None without any."""
    after_rate: float | None
    interval: Interval | None
    """Bootstrap interval of the mean paired gain."""
    scenarios: ScenarioCounts | None
    """None when no task names a scenario."""
    before_spend: Spend
    """What the program before took over all tasks, those with a missing score too."""
    after_spend: Spend
    learned_from: tuple[str, ...]
    """Tasks that served for learning as well: on these the gain is no evidence for new tasks."""
    identity: ResultIdentity

    @property
    def mean_gain(self) -> float | None:
        """Mean paired gain, after - before; None without pairs."""
        return self.counts.mean

    @property
    def missing(self) -> tuple[str, ...]:
        """The tasks that were dropped on both sides, because a score is missing on either."""
        return tuple(task.task_id for task in self.tasks if task.gain is None)

    def __str__(self) -> str:
        if self.counts.mean is None:
            return f"no task has both scores ({self.counts.missing} missing)"
        parts = [
            f"success {self.before_rate:.1%} before, {self.after_rate:.1%} after",
            str(self.counts),
            f"mean gain {self.counts.mean:+.3f} ({self.interval})",
        ]
        if self.scenarios is not None:
            parts.append(
                f"scenarios {self.scenarios.before} before, {self.scenarios.after} after of {self.scenarios.scenarios}"
            )
        parts.append(f"tokens before: {_shown_tokens(self.before_spend)}; after: {_shown_tokens(self.after_spend)}")
        if self.learned_from:
            parts.append(f"{len(self.learned_from)} of these tasks were used for learning")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain JSON values."""
        return {
            "tasks": [asdict(task) for task in self.tasks],
            "counts": asdict(self.counts),
            "before_mean": self.before_mean,
            "after_mean": self.after_mean,
            "before_rate": self.before_rate,
            "after_rate": self.after_rate,
            "interval": None if self.interval is None else asdict(self.interval),
            "scenarios": None if self.scenarios is None else asdict(self.scenarios),
            "before_spend": self.before_spend.to_dict(),
            "after_spend": self.after_spend.to_dict(),
            "learned_from": list(self.learned_from),
            "missing": list(self.missing),
            "identity": {
                "versions": dict(self.identity.versions),
                "seeds": list(self.identity.seeds),
                "config_hash": self.identity.config_hash,
                "data_roles": {role: list(ids) for role, ids in self.identity.data_roles.items()},
                "artifact_sha256": dict(self.identity.artifact_sha256),
            },
        }


def compare_outcomes(
    tasks: Sequence[ComparedTask],
    *,
    rng: random.Random,
    identity: ResultIdentity = ResultIdentity(),
    success: float = 1.0,
    level: float = 0.95,
) -> Comparison:
    """Return what the outcomes of two programs on the same tasks come to.

    Args:
        tasks: One record a task; ids are distinct.
        rng: For the bootstrap of the mean paired gain.
        identity: What the result belongs to; its data roles say which tasks served for learning.
        success: The score from which on a task counts as solved.
        level: Of the interval.

    Raises:
        ValueError: When a task id comes twice.
    """
    ids = [task.task_id for task in tasks]
    if len(set(ids)) < len(ids):
        twice = next(task_id for position, task_id in enumerate(ids) if task_id in ids[:position])
        raise ValueError(f"task ids must be distinct, got {twice!r} twice")
    gains = [task.gain for task in tasks]
    pairs = [
        (task.before.score, task.after.score)
        for task in tasks
        if task.before.score is not None and task.after.score is not None
    ]
    return Comparison(
        tasks=tuple(tasks),
        counts=count_pairs(gains),
        before_mean=_mean([before for before, _ in pairs]),
        after_mean=_mean([after for _, after in pairs]),
        before_rate=_mean([float(before >= success) for before, _ in pairs]),
        after_rate=_mean([float(after >= success) for _, after in pairs]),
        interval=bootstrap_interval([gain for gain in gains if gain is not None], rng=rng, level=level),
        scenarios=_count_scenarios(tasks, success),
        before_spend=sum((task.before.spend for task in tasks), Spend()),
        after_spend=sum((task.after.spend for task in tasks), Spend()),
        learned_from=_learned_from(ids, identity),
        identity=identity,
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _count_scenarios(tasks: Sequence[ComparedTask], success: float) -> ScenarioCounts | None:
    by_scenario: dict[str, list[ComparedTask]] = defaultdict(list)
    for task in tasks:
        if task.scenario is not None:
            by_scenario[task.scenario].append(task)
    if not by_scenario:
        return None
    complete = [members for members in by_scenario.values() if all(task.gain is not None for task in members)]
    return ScenarioCounts(
        scenarios=len(complete),
        before=sum(all(_succeeded(task.before, success) for task in members) for members in complete),
        after=sum(all(_succeeded(task.after, success) for task in members) for members in complete),
        incomplete=len(by_scenario) - len(complete),
    )


def _succeeded(outcome: ArmOutcome, success: float) -> bool:
    return outcome.score is not None and outcome.score >= success


def _shown_tokens(spend: Spend) -> str:
    unknown = f", {spend.calls_without_usage} calls of unknown usage" if spend.calls_without_usage else ""
    cached = f", {spend.cached_calls} answered by the cache" if spend.cached_calls else ""
    return f"{spend.input_tokens} in, {spend.output_tokens} out in {spend.lm_calls} calls{unknown}{cached}"


def _learned_from(task_ids: Sequence[str], identity: ResultIdentity) -> tuple[str, ...]:
    learning = {task_id for role, ids in identity.data_roles.items() if role != "evaluated" for task_id in ids}
    # A task that comes twice has a number after its name: "t1#2" is t1.
    return tuple(task_id for task_id in task_ids if {task_id, task_id.partition("#")[0]} & learning)
