"""Which of a round's passing edits are compiled together, and in which order.

A later edit at a site replaces an earlier one. Combining two texts would be a new edit that nobody has tried, so it is
not done here. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspy_evocue.edits import Edit
from dspy_evocue.rounds.candidate_trials import TriedCandidate


@dataclass(frozen=True, slots=True)
class CompiledEdits:
    """The edits to confirm together."""

    members: tuple[TriedCandidate, ...]
    """The best last: where two could act, the latest one does."""
    replaced: tuple[TriedCandidate, ...] = ()
    """Those that could never act, because a better one takes all of their entries."""

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits with their rules, in the order in which they are attached."""
        return tuple(one.edit for one in self.members)


def compile_edits(tried: Sequence[TriedCandidate]) -> CompiledEdits:
    """Return the passing candidates in the order of what their trials promise, without those that could never act."""
    passing = sorted((one for one in tried if one.passes), key=_promise)
    replaced = [
        one
        for position, one in enumerate(passing)
        if any(_hides(later.edit, one.edit) for later in passing[position + 1 :])
    ]
    return CompiledEdits(tuple(one for one in passing if one not in replaced), tuple(replaced))


def _promise(tried: TriedCandidate) -> float:
    return tried.fitted.objective if tried.fitted is not None else float("-inf")


def _hides(later: Edit, earlier: Edit) -> bool:
    return not later.when.tests and later.scope == earlier.scope and set(earlier.sites) <= set(later.sites)
