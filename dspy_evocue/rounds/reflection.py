"""The learner's own model calls in a round: residual goals, knowledge cards, proposals. Each is kept as it is paid for.

All of them run in the DSPy context of the reflection model and see public episodes only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

import dspy

from dspy_combee.errors import LMUnavailableError
from dspy_combee.runtime.budget import Spend
from dspy_combee.runtime.retry import call_with_retry, is_lm_failure
from dspy_combee.seeding import branch_rng
from dspy_evocue.call_sites import CallSite
from dspy_evocue.knowledge import KnowledgeCard, write_cards
from dspy_evocue.proposal_checks import Checked, ProposedEdit
from dspy_evocue.proposer import ProposalRequest, Proposals
from dspy_evocue.public_episodes import PublicEpisode
from dspy_evocue.residual_goals import Goal, ResidualGoals, find_residual_goals
from dspy_evocue.rounds.paid_steps import PaidSteps, Step
from dspy_evocue.rounds.settings import LearnerSettings
from dspy_evocue.rounds.step_log import KeptStep, StepLog

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Reflection:
    """Asks the reflection model, once a question."""

    settings: LearnerSettings
    log: StepLog
    paid: PaidSteps

    def goals(self, episodes: Sequence[PublicEpisode], version: str, *, name: str) -> dict[str, ResidualGoals]:
        """Return the residual goals of each episode by task id: one call an episode.

        Args:
            episodes: Usually those that failed.
            version: The program that they are runs of.
            name: What the round is called in progress bars.
        """
        find = functools.partial(find_residual_goals, success=self.settings.perfect_score)
        steps = [
            self._step(f"goals/{version}/{one.task_id}", "residual goals", functools.partial(find, one), GOALS)
            for one in episodes
        ]
        found = self.paid.run(f"{name}: residual goals", steps)
        return {goals.task_id: goals for goals in found}

    def cards(self, episodes: Sequence[PublicEpisode], *, name: str) -> tuple[KnowledgeCard, ...]:
        """Return the round's knowledge cards: one call, none when no cards are wanted."""
        if not self.settings.max_cards or not episodes:
            return ()
        write = functools.partial(write_cards, episodes, max_cards=self.settings.max_cards)
        (cards,) = self.paid.run(
            f"{name}: knowledge cards", [self._step(f"{name}/cards", "knowledge cards", write, CARDS)]
        )
        return cards

    def proposals(self, request: ProposalRequest, *, name: str) -> Proposals:
        """Return the round's candidates."""
        propose = functools.partial(self.settings.proposer.propose, request)
        step = self._step(f"{name}/proposals", "proposals", propose, PROPOSALS)
        (proposals,) = self.paid.run(f"{name}: proposals", [step])
        return proposals

    def _step(self, key: str, stage: str, ask: Callable[[], Result], form: _Form[Result]) -> Step[Result]:
        known = self.log.find(key)
        return Step(
            run=functools.partial(self._ask, key, ask),
            keep=functools.partial(self._keep, key, stage, form),
            known=None if known is None else form.read(known.content),
        )

    def _ask(self, key: str, ask: Callable[[], Result]) -> Result:
        rng = branch_rng(self.settings.seed, "retry", key)
        try:
            with reflection_context(self.settings.reflection_lm):
                return call_with_retry(ask, self.settings.retry, rng)
        except Exception as error:
            if is_lm_failure(error):
                raise LMUnavailableError(f"the reflection model does not answer: {error}") from error
            raise

    def _keep(self, key: str, stage: str, form: _Form[Any], result: Any, spend: Spend) -> None:
        self.log.keep(KeptStep(key, stage, form.write(result), spend))


def reflection_context(reflection_lm: Any) -> AbstractContextManager[Any]:
    """Return the DSPy context in which the reflection model answers, to the learner alone: nothing is streamed."""
    return dspy.context(send_stream=None, **({} if reflection_lm is None else {"lm": reflection_lm}))


@dataclass(frozen=True, slots=True)
class _Form(Generic[Result]):
    """How a result is written as JSON and read back."""

    write: Callable[[Result], Mapping[str, Any]]
    read: Callable[[Mapping[str, Any]], Result]


def _read_goals(values: Mapping[str, Any]) -> ResidualGoals:
    return ResidualGoals(**{**values, "goals": tuple(Goal(**goal) for goal in values["goals"])})


def _read_cards(values: Mapping[str, Any]) -> tuple[KnowledgeCard, ...]:
    return tuple(KnowledgeCard(card["requirement"], tuple(card["source_tasks"])) for card in values["cards"])


def proposal_to_dict(edit: ProposedEdit) -> dict[str, Any]:
    """Return a proposed edit as plain JSON values."""
    return {**asdict(edit), "at": [site.to_dict() for site in edit.at], "cited_tasks": list(edit.cited_tasks)}


def proposal_from_dict(values: Mapping[str, Any]) -> ProposedEdit:
    """Read what `proposal_to_dict` wrote."""
    sites = tuple(CallSite.from_dict(site) for site in values["at"])
    return ProposedEdit(**{**values, "at": sites, "cited_tasks": tuple(values["cited_tasks"])})


def _write_proposals(proposals: Proposals) -> dict[str, Any]:
    return {
        "candidates": [proposal_to_dict(edit) for edit in proposals.candidates],
        "rejected": [
            {"edit": proposal_to_dict(one.edit), "problems": list(one.problems), "notes": list(one.notes)}
            for one in proposals.rejected
        ],
        "lm_calls": proposals.lm_calls,
        "failure": proposals.failure,
    }


def _read_proposals(values: Mapping[str, Any]) -> Proposals:
    return Proposals(
        candidates=tuple(map(proposal_from_dict, values["candidates"])),
        rejected=tuple(
            Checked(proposal_from_dict(one["edit"]), tuple(one["problems"]), tuple(one["notes"]))
            for one in values["rejected"]
        ),
        lm_calls=values["lm_calls"],
        failure=values["failure"],
    )


GOALS = _Form(asdict, _read_goals)
CARDS = _Form(lambda cards: {"cards": [asdict(card) for card in cards]}, _read_cards)
PROPOSALS = _Form(_write_proposals, _read_proposals)
