"""What can be said of a proposed edit before anything is run: does it hold together, and which entries does it reach?

The answers go back to the proposer as feedback, once. This file is pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dspy_evocue.call_sites import START, CallSite
from dspy_evocue.public_episodes import is_only_a_task

MAX_TEXT_CHARS = 2000
"""The longest instruction that a call site may carry."""


@dataclass(frozen=True, slots=True)
class SiteUse:
    """An entry of the program that was really used, and how often."""

    source: str
    target: str
    entries: int
    """How often control came this way, over all episodes."""
    episodes: int
    """In how many episodes it did."""

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}: {self.entries} entries in {self.episodes} episodes"


@dataclass(frozen=True, slots=True)
class ProposedEdit:
    """A candidate edit as proposed: content, location, scope, expected effect, and the tasks that motivate it."""

    text: str
    at: tuple[CallSite, ...]
    scope: str = "call"
    expected_effect: str = ""
    cited_tasks: tuple[str, ...] = ()
    """They guide which checkpoints are tried; they never become a condition."""
    skill: Mapping[str, Any] | None = None
    """The operations of a structural edit; None for an instruction."""

    @property
    def key(self) -> tuple[str, tuple[CallSite, ...], str]:
        """What makes two proposals the same: content, location and scope."""
        content = self.text if self.skill is None else f"{self.text}\n{dict(self.skill)!r}"
        return (" ".join(content.split()).casefold(), tuple(sorted(self.at)), self.scope)


@dataclass(frozen=True, slots=True)
class Checked:
    """What the checks say of one candidate."""

    edit: ProposedEdit
    problems: tuple[str, ...] = ()
    """Why it cannot be tried, one sentence each; empty when it can."""
    notes: tuple[str, ...] = ()
    """What its author should know: what it reaches and what it misses."""
    worth_revising: bool = False
    """Whether a problem or a note asks for second thoughts."""

    def feedback(self, number: int) -> str:
        """Return the problems and notes as the author reads them."""
        return f"{number}. " + (" ".join((*self.problems, *self.notes)) or "Nothing to say.")


@dataclass(frozen=True, slots=True)
class ProposalLimits:
    """What a proposal is held against."""

    sites: tuple[SiteUse, ...]
    """The entries that the program really used."""
    task_ids: frozenset[str] = frozenset()
    """Ids of listed episodes: they may be cited, and must not appear in a text."""
    task_values: frozenset[str] = frozenset()
    """What the listed tasks were given; a text that is nothing else is the task, and no lesson."""
    tried: Collection[tuple[str, tuple[CallSite, ...], str]] = field(default=frozenset())
    """Keys of edits that were tried before."""
    allow_skills: bool = False
    edges: tuple[SiteUse, ...] = ()
    """The edges of an explicit controller that were taken, where its skills sit; empty for a program without a graph,
    whose skills sit on its entries."""
    max_text_chars: int = MAX_TEXT_CHARS


def parse_site(text: str) -> CallSite:
    """Read "source -> target".

    Raises:
        ValueError: When it does not read so.
    """
    source, arrow, target = (part.strip().strip("`'\"") for part in text.partition("->"))
    if not arrow or not source or not target:
        raise ValueError(f'an entry must read "source -> target", got {text!r}')
    return CallSite(source, target)


def check_proposal(edit: ProposedEdit, limits: ProposalLimits, *, site_problems: Sequence[str] = ()) -> Checked:
    """Check one candidate against the program and the episodes that are listed.

    Args:
        edit: The candidate.
        limits: What it is held against.
        site_problems: What was wrong with entries that could not be read.
    """
    sites = limits.edges if edit.skill is not None and limits.edges else limits.sites
    reached = [use for use in sites if any(site.matches(use.source, use.target) for site in edit.at)]
    problems = [*site_problems, *_content_problems(edit, limits)]
    if edit.at and not reached:
        problems.append(_unreached(edit, sites))
    elif not edit.at and not site_problems:
        problems.append("It names no entry.")
    acts = "is read" if edit.skill is None else "runs"
    notes = [f"It {acts} on {'; '.join(map(str, reached))}."] if reached else []
    missed = _later_entries_missed(reached, sites)
    if missed:
        notes.append(
            f"It {acts} on the first entry only, before anything was observed; the same predictor is entered again on "
            f"{'; '.join(map(str, missed))}. If it is needed at a later step, attach it there."
        )
    return Checked(edit, tuple(problems), tuple(notes), worth_revising=bool(problems or missed))


def _content_problems(edit: ProposedEdit, limits: ProposalLimits) -> list[str]:
    problems: list[str] = []
    if edit.skill is not None and not limits.allow_skills:
        problems.append("This program takes instructions only, no skills.")
    if edit.skill is None and not edit.text.strip():
        problems.append("Its text is empty.")
    if len(edit.text) > limits.max_text_chars:
        problems.append(f"Its text must have at most {limits.max_text_chars} characters, it has {len(edit.text)}.")
    if "<think>" in edit.text:
        problems.append("Its text contains unfinished thoughts (<think>).")
    named = sorted(task_id for task_id in limits.task_ids if _names(edit.text, task_id))
    if named:
        problems.append(f"Its text names {', '.join(named)}; it must make sense for other tasks too.")
    if is_only_a_task(edit.text, limits.task_values):
        problems.append("Its text is a listed task, not an instruction: say what to do in any such task, and when.")
    if edit.key in limits.tried:
        problems.append("The same edit at the same entries was tried before.")
    return problems


def _names(text: str, task_id: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(task_id)}(?![\w-])", text) is not None


def no_entries(texts: Sequence[str], sites: Sequence[SiteUse]) -> str:
    """Say in one sentence that texts name no entry, and what could be named."""
    return f'{", ".join(texts)}: no entry reads so; write "source -> target", one of {_known(sites)}.'


def _unreached(edit: ProposedEdit, sites: Sequence[SiteUse]) -> str:
    return f"{', '.join(map(str, edit.at))} was never entered; the entries of this program are {_known(sites)}."


def _known(sites: Sequence[SiteUse]) -> str:
    return "; ".join(dict.fromkeys(f"{use.source} -> {use.target}" for use in sites)) or "none"


def _later_entries_missed(reached: Sequence[SiteUse], sites: Sequence[SiteUse]) -> list[SiteUse]:
    """Return the later entries of the same predictors when only first ones are reached."""
    if not reached or any(use.source != START for use in reached):
        return []
    targets = {use.target for use in reached}
    return [use for use in sites if use.target in targets and use.source != START]
