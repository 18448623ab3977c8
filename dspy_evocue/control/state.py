"""What a run of a controller knows: frozen records, and nothing hidden from the operations that may read them.

Pure: knows neither dspy nor a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dspy_evocue.control.draft import Draft
from dspy_evocue.control.wiring import Scope

OBSERVATION_CHARACTERS = 4000
"""The most characters of one observation that a model is shown; the cut is marked."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One executed action and what the world answered."""

    action: str
    observation: str
    succeeded: bool = True


@dataclass(frozen=True, slots=True)
class Goal:
    """One requirement of the task, observed in the history or not."""

    requirement: str
    is_observed: bool


@dataclass(frozen=True, slots=True)
class ActiveInstruction:
    """A text that an edge carried and that still acts."""

    text: str
    scope: Scope
    addressee: str
    """The node that a "call" text is for."""


@dataclass(frozen=True, slots=True)
class ControlState:
    """The state of one run between two operations."""

    node: str
    """The node that control is at."""
    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """The inputs of the program and what plain nodes wrote."""
    draft: Draft = field(default_factory=Draft)
    history: tuple[Turn, ...] = ()
    notes: tuple[str, ...] = ()
    goals: tuple[Goal, ...] | None = None
    """None until they have been checked."""
    outcome: str = ""
    """How the last operation ended; empty before the first."""
    source: str = ""
    """The node that control came from; empty at the start."""
    active: tuple[ActiveInstruction, ...] = ()
    steps: int = 0
    """Operations performed so far; entering and leaving a skill and the stop are free."""
    actions: int = 0
    """Actions on the world so far."""
    model_calls: int = 0
    """Operations performed by a model so far."""
    path: tuple[str, ...] = ()
    """The edges taken, in order."""

    def view(self) -> dict[str, Any]:
        """Return what an operation may be shown, by the names of the table: texts, and the values as they are."""
        return {
            **self.values,
            "history": self.render_history(),
            "observation": _cut(self.history[-1].observation) if self.history else "",
            "notes": "\n".join(f"- {note}" for note in self.notes),
            "goals": self.render_goals(),
            "draft": self.draft.text,
            "problem": self.draft.problem,
        }

    def render_history(self) -> str:
        """Return the executed actions with their observations, then a pending action that was found invalid."""
        blocks = [
            f"[{number}] action:\n{turn.action}\nobservation:\n{_cut(turn.observation)}"
            for number, turn in enumerate(self.history, start=1)
        ]
        if self.draft.problem:
            blocks.append(f"[not executed] action:\n{self.draft.text}\nproblem:\n{self.draft.problem}")
        return "\n\n".join(blocks) or "(nothing yet)"

    def render_goals(self) -> str:
        """Return one line a requirement with its mark; empty when none have been checked."""
        return "\n".join(f"- [{'x' if goal.is_observed else ' '}] {goal.requirement}" for goal in self.goals or ())


def _cut(text: str) -> str:
    if len(text) <= OBSERVATION_CHARACTERS:
        return text
    half = OBSERVATION_CHARACTERS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
