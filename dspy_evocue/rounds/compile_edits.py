"""Which of a round's passing edits are compiled together, and in which order.

A later edit at a site replaces an earlier one. Combining two texts would be a new edit that nobody has tried, so it is
not done here. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dspy_evocue.edits import Edit
from dspy_evocue.rounds.candidate_trials import TriedCandidate


@dataclass(frozen=True, slots=True)
class CompiledEdits:
    """The edits to confirm together."""

    members: tuple[TriedCandidate, ...]
    """The best last: where two could act, the latest one does."""
    replaced: tuple[TriedCandidate, ...] = ()
    """Those that could never act, because a better one takes all of their entries, and skills that are not sound
    together with a better one."""

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits with their rules, in the order in which they are attached."""
        return tuple(one.edit for one in self.members)


def always_fit(edits: Sequence[Edit]) -> bool:
    """Say that edits fit together."""
    return True


def compile_edits(
    tried: Sequence[TriedCandidate], *, fits: Callable[[Sequence[Edit]], bool] = always_fit
) -> CompiledEdits:
    """Return the passing candidates in the order of what their trials promise, without those that could never act.

    Args:
        tried: A round's candidates.
        fits: Says whether the program can carry all of these edits at once.
    """
    members: list[TriedCandidate] = []
    replaced: list[TriedCandidate] = []
    for one in reversed(sorted((one for one in tried if one.passes), key=_promise)):  # of equals the last comes first
        hidden = any(_hides(better.edit, one.edit) for better in members)
        if hidden or not fits([one.edit, *(better.edit for better in members)]):
            replaced.insert(0, one)
        else:
            members.insert(0, one)
    return CompiledEdits(tuple(members), tuple(replaced))


def _promise(tried: TriedCandidate) -> float:
    return tried.fitted.objective if tried.fitted is not None else float("-inf")


def _hides(later: Edit, earlier: Edit) -> bool:
    is_alike = (later.acts_on, later.scope) == (earlier.acts_on, earlier.scope)
    return is_alike and not later.when.tests and set(earlier.sites) <= set(later.sites)
