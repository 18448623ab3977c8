"""Propose candidate edits: read the index, ask for fragments, propose, hear what the checks say, revise once.

Three model calls a round at most: one to choose fragments (left out when the episodes fit as they are), one to
propose, one to revise (left out when the checks find nothing). Replies are held against the program and the listed
episodes by `proposal_checks.py`; what is still wrong after the revision is dropped, with the reasons kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import dspy
from dspy.utils.exceptions import AdapterParseError

from dspy_combee.errors import ReflectionError
from dspy_combee.replies import refuse_cut_prediction
from dspy_evocue.call_sites import CallSite
from dspy_evocue.proposal_checks import (
    MAX_TEXT_CHARS,
    Checked,
    ProposalLimits,
    ProposedEdit,
    SiteUse,
    check_proposal,
    no_entries,
    parse_site,
)
from dspy_evocue.public_episodes import PublicEpisode, cut_middle
from dspy_evocue.residual_goals import ResidualGoals
from dspy_evocue.signatures import (
    CandidateEdit,
    ChooseFragments,
    FragmentWanted,
    ProposeEdits,
    ReviseEdits,
    naming_entries,
)

logger = logging.getLogger(__name__)


def no_further_problems(edit: ProposedEdit) -> Sequence[str]:
    """Find nothing wrong with a candidate."""
    return ()


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """What a proposer is given. Public information only."""

    episodes: tuple[PublicEpisode, ...]
    sites: tuple[SiteUse, ...]
    """The entries that the program really used."""
    goals: Mapping[str, ResidualGoals] = field(default_factory=dict)
    """By task id, for the episodes that were judged."""
    earlier: str = ""
    """What was tried before and what came of it (the memory's index)."""
    tried: frozenset[tuple[str, tuple[CallSite, ...], str]] = frozenset()
    """Keys of edits that need not be proposed again."""
    untested: str = ""
    """Ideas and cards that nobody has tested here."""
    operations: str = ""
    """What each operation of a skill reads and writes; empty when only instructions are possible."""
    edges: tuple[SiteUse, ...] = ()
    """The edges of an explicit controller that were taken: where its skills sit. Empty for any other program."""
    skill_problems: Callable[[ProposedEdit], Sequence[str]] = no_further_problems
    """Why a candidate's skill cannot be tried on this program, one sentence each: the skill checker."""
    max_candidates: int = 2


@dataclass(frozen=True, slots=True)
class Proposals:
    """What came of a request."""

    candidates: tuple[ProposedEdit, ...]
    """Sound candidates, the most promising first; may be empty."""
    rejected: tuple[Checked, ...] = ()
    """Candidates that the checks refuse even after the revision."""
    lm_calls: int = 0
    """Predictor calls made."""
    failure: str = ""
    """Why there are none, when the model's reply could not be used."""


class Proposer(Protocol):
    """Where candidate edits come from. Called once a round, in the DSPy context of the reflection model."""

    def propose(self, request: ProposalRequest) -> Proposals:
        """Return at most `request.max_candidates` candidates; an outage raises, a useless reply gives none."""
        ...


@dataclass(frozen=True, slots=True)
class LMProposer:
    """The proposer that asks a language model."""

    propose_signature: Any = ProposeEdits
    """Has the fields of `ProposeEdits`; likewise the other two."""
    choose_signature: Any = ChooseFragments
    revise_signature: Any = ReviseEdits
    max_fragments: int = 4
    max_fragment_chars: int = 6000
    max_index_chars: int = 24000
    max_text_chars: int = MAX_TEXT_CHARS
    check: Callable[[ProposedEdit], Sequence[str]] = no_further_problems
    """Further problems of a candidate, one sentence each, besides those that the request finds."""

    def propose(self, request: ProposalRequest) -> Proposals:
        """Return checked candidates for the request."""
        calls = _CountedCalls()
        index = cut_middle(episode_index(request), self.max_index_chars)
        call_sites = "\n".join(map(str, request.sites)) or "(none was used)"
        try:
            fragments = self._fragments(request, index, calls)
            reply = calls.ask(
                naming_entries(self.propose_signature, _entries(request)),
                index=index,
                call_sites=call_sites,
                operations=request.operations,
                fragments=fragments,
                untested_evidence=request.untested,
                max_candidates=request.max_candidates,
            )
        except (AdapterParseError, ReflectionError) as error:
            why = "could not be parsed" if isinstance(error, AdapterParseError) else f"could not be used: {error}"
            logger.warning("no edits were proposed: the reply %s", why)
            logger.debug("%s", error)
            return Proposals((), lm_calls=calls.made, failure=f"the proposer's reply {why}")
        written = list(reply.candidates or [])[: request.max_candidates]
        checked = self._check_all(written, request)
        if any(one.worth_revising for one in checked):
            checked = self._revise(written, checked, request, call_sites, calls)
        sound = {one.edit.key: one.edit for one in checked if not one.problems}
        return Proposals(tuple(sound.values()), tuple(one for one in checked if one.problems), calls.made)

    def _fragments(self, request: ProposalRequest, index: str, calls: _CountedCalls) -> str:
        """Return the parts of episodes to read in full: all of them if they fit, otherwise those that are chosen."""
        room = self.max_fragments * self.max_fragment_chars
        whole = [(episode, 1, None) for episode in request.episodes]
        if sum(len(step.text) for episode in request.episodes for step in episode.steps) <= room // 2:
            return _render_fragments(whole, room)
        reply = calls.ask(self.choose_signature, index=index, max_fragments=self.max_fragments)
        wanted = existing_fragments(reply.fragments or [], request.episodes)[: self.max_fragments]
        return _render_fragments(wanted, self.max_fragment_chars)

    def _check_all(self, written: Sequence[CandidateEdit], request: ProposalRequest) -> list[Checked]:
        limits = ProposalLimits(
            sites=request.sites,
            task_ids=frozenset(episode.task_id for episode in request.episodes),
            task_values=frozenset(value for episode in request.episodes for value in episode.inputs.values()),
            tried=request.tried,
            allow_skills=bool(request.operations),
            edges=request.edges,
            max_text_chars=self.max_text_chars,
        )
        return [self._check_one(one, limits, request) for one in written]

    def _check_one(self, written: CandidateEdit, limits: ProposalLimits, request: ProposalRequest) -> Checked:
        sites: list[CallSite] = []
        unreadable: list[str] = []
        for text in written.at:
            try:
                sites.append(parse_site(text))
            except ValueError:
                unreadable.append(text)
        problems = [no_entries(unreadable, (*limits.sites, *limits.edges))] if unreadable else []
        edit = ProposedEdit(
            text=written.text.strip(),
            at=tuple(dict.fromkeys(sites)),
            scope=written.scope,
            expected_effect=written.expected_effect.strip(),
            cited_tasks=tuple(dict.fromkeys(task for task in written.cited_tasks if task in limits.task_ids)),
            skill=written.skill or None,
        )
        return check_proposal(edit, limits, site_problems=(*problems, *request.skill_problems(edit), *self.check(edit)))

    def _revise(
        self,
        written: Sequence[CandidateEdit],
        checked: list[Checked],
        request: ProposalRequest,
        call_sites: str,
        calls: _CountedCalls,
    ) -> list[Checked]:
        """Ask for one revision; where the reply is of no use, the first version stands."""
        try:
            reply = calls.ask(
                naming_entries(self.revise_signature, _entries(request)),
                call_sites=call_sites,
                operations=request.operations,
                proposed=list(written),
                feedback="\n".join(one.feedback(number) for number, one in enumerate(checked, start=1)),
            )
        except (AdapterParseError, ReflectionError) as error:
            logger.debug("the revision could not be used: %s", error)
            return checked
        revised = self._check_all(list(reply.candidates or [])[: len(checked)], request)
        # A revision that broke a sound candidate is worse than none.
        return [
            new if not new.problems or old.problems else old for old, new in zip(checked, revised, strict=False)
        ] + checked[len(revised) :]


def _entries(request: ProposalRequest) -> list[str]:
    """Return what a candidate may name: the entries that were used, and the edges where skills may sit."""
    return list(dict.fromkeys(f"{use.source} -> {use.target}" for use in (*request.sites, *request.edges)))


class _CountedCalls:
    """Ask typed questions and count them; a reply that cannot be parsed, or was cut off, is asked for once more."""

    def __init__(self) -> None:
        self.made = 0

    def ask(self, signature: Any, **inputs: Any) -> Any:
        predict = dspy.Predict(signature)
        try:
            return self._once(predict, inputs)
        except (AdapterParseError, ReflectionError) as error:
            logger.debug("asking once more: %s", error)
            # Another rollout id, because the cache would only repeat the reply.
            return self._once(predict, {**inputs, "config": {"rollout_id": 1, "temperature": 1.0}})

    def _once(self, predict: Any, inputs: Mapping[str, Any]) -> Any:
        self.made += 1
        reply = predict(**inputs)
        # DSPy repairs JSON that stops in the middle, and half an instruction may say the opposite of the whole.
        refuse_cut_prediction(predict)
        return reply


def episode_index(request: ProposalRequest, *, max_task_chars: int = 300) -> str:
    """Return the compact index: one entry an episode, then what was tried before."""
    lines = ["Episodes:"]
    for episode in request.episodes:
        goals = request.goals.get(episode.task_id)
        task = " / ".join(episode.task_text(max_chars=max_task_chars).split("\n"))
        lines.append(f"- {episode.task_id}: score {episode.score_text()}, {len(episode.steps)} steps. Task: {task}")
        if goals is not None:
            lines.append(f"  {goals}")
    return "\n".join([*lines, "", "Tried before:", request.earlier or "(nothing)"])


def existing_fragments(
    wanted: Sequence[FragmentWanted], episodes: Sequence[PublicEpisode]
) -> list[tuple[PublicEpisode, int, int | None]]:
    """Return the fragments that exist: of a listed episode, with at least one step."""
    by_id = {episode.task_id: episode for episode in episodes}
    found: dict[tuple[str, int, int | None], tuple[PublicEpisode, int, int | None]] = {}
    for fragment in wanted:
        episode = by_id.get(fragment.task)
        first, last = max(fragment.first_step, 1), fragment.last_step
        if episode is not None and first <= len(episode.steps) and (last is None or last >= first):
            found.setdefault((episode.task_id, first, last), (episode, first, last))
    return list(found.values())


def _render_fragments(fragments: Sequence[tuple[PublicEpisode, int, int | None]], max_chars: int) -> str:
    parts = [
        f"### {episode.task_id}\n{episode.history(first=first, last=last, max_chars=max_chars)}"
        for episode, first, last in fragments
    ]
    return "\n\n".join(parts) or "(none)"
