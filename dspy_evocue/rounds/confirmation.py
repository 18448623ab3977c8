"""Confirm a round's compiled edits against their parent, from task start, on tasks that nothing was learned from.

A criterion that may be looked at after every pair stops as soon as it accepts; any criterion stops when acceptance has
become unlikely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dspy_evocue.acceptance import AcceptanceCriterion, Anytime, Decision, decide, should_stop
from dspy_evocue.edits import Edit
from dspy_evocue.episodes import RunPlan
from dspy_evocue.memory import MemoryRecord, TrialMemory
from dspy_evocue.rounds.candidate_trials import ROLLOUTS_PER_ROUND, trial_step
from dspy_evocue.rounds.faults import missing_from
from dspy_evocue.rounds.paid_steps import PaidSteps, Step
from dspy_evocue.rounds.tasks import ConfirmationPair
from dspy_evocue.trial_record import TrialRecord
from dspy_evocue.trials import Trial

STAGE = "confirmation"
_FIRST_ROLLOUT = ROLLOUTS_PER_ROUND // 2


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A confirmation that has ended."""

    pairs: tuple[TrialRecord, ...]
    """In the order in which the criterion saw them."""
    planned: int
    """How many pairs would have been run at the most."""
    decision: Decision


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The confirmation of one round."""

    plan: RunPlan
    edits: tuple[Edit, ...]
    """Compiled: they are run together."""
    edit_ids: tuple[str, ...]
    """The candidates that they come from, for the memory."""
    criterion: AcceptanceCriterion
    largest_gain: float
    places: Sequence[ConfirmationPair]
    memory: TrialMemory
    paid: PaidSteps
    version: str
    name: str
    number: int

    def run(self) -> Confirmed:
        """Run pairs until the criterion has decided, acceptance is unlikely, or all are run."""
        pairs: list[TrialRecord] = []
        while len(pairs) < len(self.places):
            wave = self.places[len(pairs) : len(pairs) + self._wave(pairs)]
            pairs += self.paid.run(f"{self.name}: {STAGE}", [self._step(place) for place in wave], missing=missing_from)
            gains = [pair.gain for pair in pairs]
            if self._may_look_early and decide(self.criterion, gains).accepted:
                break
            if should_stop(self.criterion, gains, len(self.places), largest_gain=self.largest_gain):
                break
        decision = decide(self.criterion, [pair.gain for pair in pairs])
        self._remember(decision)
        return Confirmed(tuple(pairs), len(self.places), decision)

    @property
    def _may_look_early(self) -> bool:
        return isinstance(self.criterion, Anytime)

    def _wave(self, pairs: Sequence[TrialRecord]) -> int:
        """Return how many pairs to run before the next look: no more than a quick decision needs anyway."""
        remaining = len(self.places) - len(pairs)
        if not self._may_look_early:
            return math.ceil(remaining / 2)
        known = [pair.gain for pair in pairs if pair.gain is not None]
        for gains in range(1, remaining + 1):
            if self.criterion.judge([*known, *(self.largest_gain,) * gains]).accepted:
                return math.ceil(gains / 2)
        return 1

    def _step(self, place: ConfirmationPair) -> Step[TrialRecord]:
        trial = Trial(
            self.plan,
            self.edits,
            place.task.example,
            rollout_id=self.number * ROLLOUTS_PER_ROUND + _FIRST_ROLLOUT + place.number,
            task_id=place.task.task_id,
            from_start=True,
        )
        trial.check()
        key = f"{self.name}/confirmation/{'+'.join(self.edit_ids)}/{place.number}/{place.task.task_id}"
        return trial_step(trial, key, self.edit_ids[0], "confirmation", self.memory, self.version)

    def _remember(self, decision: Decision) -> None:
        together = f" Confirmed together: {', '.join(self.edit_ids)}." if len(self.edit_ids) > 1 else ""
        for edit_id in self.edit_ids:
            self.memory.remember(
                MemoryRecord(
                    key=f"{self.name}/decision/{edit_id}/confirmation",
                    kind="decision",
                    edit_id=edit_id,
                    parent_version=self.version,
                    content={"stage": STAGE, **decision.to_dict(), "reason": decision.reason + together},
                )
            )
