"""Residual goals: what a task requires that the public history does not yet show as satisfied (EvoCUE).

A model lists the requirements and cites the step that shows each one; code checks the citations. An episode in which
everything is shown and that still failed has another fault: *how* it was completed. This is hindsight for proposals; no
rule tests it (see DESIGN.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import dspy
from dspy.utils.exceptions import AdapterParseError

from dspy_evocue.public_episodes import MAX_EPISODE_CHARS, PublicEpisode
from dspy_evocue.signatures import FindResidualGoals, JudgedRequirement

logger = logging.getLogger(__name__)

Diagnosis = Literal["solved", "goals_missing", "wrongly_completed", "unknown"]
"""What is wrong with an episode: nothing; a requirement is not shown as satisfied; all are, and it failed all the
same; or nobody knows, because there is no score or no requirement."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One requirement of a task."""

    requirement: str
    observed_at: int | None
    """The number of the step that shows it as satisfied; None for a residual goal."""


@dataclass(frozen=True, slots=True)
class ResidualGoals:
    """The requirements of one episode and what they say about it."""

    task_id: str
    goals: tuple[Goal, ...]
    diagnosis: Diagnosis
    unproven: int = 0
    """Requirements called observed with a reference to a step that does not exist: they count as missing."""
    failure: str = ""
    """Why there are no goals, when the model's reply could not be used."""

    @property
    def residual(self) -> tuple[str, ...]:
        """The requirements that no step shows as satisfied."""
        return tuple(goal.requirement for goal in self.goals if goal.observed_at is None)

    def __str__(self) -> str:
        if self.diagnosis == "wrongly_completed":
            return "every requirement was observed and the score is still low: the fault is in how it was completed"
        if self.failure or not self.goals:
            return "requirements unknown"
        return "missing: " + "; ".join(self.residual) if self.residual else "all requirements observed"


def find_residual_goals(
    episode: PublicEpisode,
    *,
    signature: Any = FindResidualGoals,
    success: float = 1.0,
    max_chars: int = MAX_EPISODE_CHARS,
) -> ResidualGoals:
    """Ask the model in the DSPy context for the requirements of an episode: one call.

    A reply that cannot be parsed gives a record that says so; an outage raises.

    Args:
        episode: Public information only.
        signature: Has the fields of `FindResidualGoals`.
        success: The score from which on an episode counts as solved.
        max_chars: How much of the history the model is shown.
    """
    predict: Callable[..., Any] = dspy.Predict(signature)
    try:
        reply = predict(
            task=episode.task_text(max_chars=max_chars),
            history=episode.history(max_chars=max_chars),
            final_score=episode.score_text(),
        )
    except AdapterParseError as error:
        logger.debug("no requirements for %s: %s", episode.task_id, error)
        return ResidualGoals(
            episode.task_id, (), _diagnose(episode, (), success), failure="the reply has no requirements"
        )
    return check_goals(episode, reply.requirements or [], success=success)


def check_goals(
    episode: PublicEpisode, requirements: list[JudgedRequirement], *, success: float = 1.0
) -> ResidualGoals:
    """Keep what the episode bears out: an observed requirement must cite a step that exists."""
    goals: dict[str, Goal] = {}
    unproven = 0
    for judged in requirements:
        requirement = judged.requirement.strip()
        if not requirement:
            continue
        observed_at = judged.step if judged.status == "observed" else None
        if judged.status == "observed" and (observed_at is None or not 1 <= observed_at <= len(episode.steps)):
            unproven += 1
            observed_at = None
        goals.setdefault(requirement, Goal(requirement, observed_at))
    checked = tuple(goals.values())
    return ResidualGoals(episode.task_id, checked, _diagnose(episode, checked, success), unproven=unproven)


def _diagnose(episode: PublicEpisode, goals: tuple[Goal, ...], success: float) -> Diagnosis:
    if episode.final_score is None:
        return "unknown"
    if episode.final_score >= success:
        return "solved"
    if not goals:
        return "unknown"
    return "wrongly_completed" if all(goal.observed_at is not None for goal in goals) else "goals_missing"
