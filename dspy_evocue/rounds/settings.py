"""What a user asked of an EvoCUE run, checked and in one record, for the stages that carry it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dspy_combee.runtime.budget import Budget
from dspy_combee.runtime.retry import RetryPolicy
from dspy_combee.settings import OnInterrupt
from dspy_evocue.acceptance import AcceptanceCriterion, Anytime, find_criterion
from dspy_evocue.environments import Environment
from dspy_evocue.features import FeatureFunction
from dspy_evocue.proposer import Proposer


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """The settings of one `compile`, as `EvoCUE` checked them."""

    metric: Callable[..., Any]
    reflection_lm: Any
    """None for the model of the DSPy context."""
    proposer: Proposer
    max_rounds: int
    candidates_per_round: int
    proposal_tasks: int
    """Tasks that are recorded in a round; proposals are made from them and trials start in them."""
    trial_tasks: int
    confirmation_tasks: int
    acceptance: str | AcceptanceCriterion
    environment: Environment | None
    features: tuple[FeatureFunction, ...]
    knowledge: tuple[str, ...]
    max_cards: int
    skills: bool
    """Whether candidates may be skills."""
    failure_score: float | None
    perfect_score: float
    budget: Budget
    num_threads: int | None
    seed: int
    log_dir: str | None
    progress: bool
    patience: int | None
    on_interrupt: OnInterrupt
    retry: RetryPolicy
    """How often a call of the reflection model is tried."""
    clock: Callable[[], float]

    @property
    def low_score(self) -> float:
        """The lowest score on the metric's scale."""
        return min(0.0, self.failure_score or 0.0)

    @property
    def largest_gain(self) -> float:
        """The largest difference that a pair can have."""
        return self.perfect_score - self.low_score

    @property
    def criterion(self) -> AcceptanceCriterion:
        """The acceptance criterion for one decision; "anytime" by name is on the metric's scale."""
        if self.acceptance == "anytime":
            return Anytime(low=self.low_score, high=self.perfect_score)
        return find_criterion(self.acceptance)

    @property
    def confirmation_pairs(self) -> int:
        """The most pairs of a confirmation: twice the tasks for a criterion that may be looked at after each pair."""
        return self.confirmation_tasks * (2 if isinstance(self.criterion, Anytime) else 1)
