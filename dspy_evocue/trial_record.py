"""What one paired trial found, and which calls its arms differ in. Nothing is run here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import Any

from dspy_combee.runtime.budget import Spend
from dspy_evocue.checkpoints import Event, Tape
from dspy_evocue.missing_scores import MissingKind
from dspy_evocue.rules import EnteredState, RuleEvidence, TrialKind, TrialStatus


@dataclass(frozen=True, slots=True)
class BehaviourChange:
    """One call that differs between the arms."""

    position: int
    """Calls after the checkpoint, from 0 (the call on which the edit acts)."""
    parent: str
    """What the parent arm did there; empty when it had ended."""
    edited: str
    """What the edited arm did there; empty when it had ended."""


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """What one paired trial found."""

    task_id: str
    edit_ids: tuple[str, ...]
    kind: TrialKind
    """`task_start` trials ran both programs from the beginning and carry no features."""
    status: TrialStatus
    before: float | None = None
    """The parent arm's score; None when it could not be had."""
    after: float | None = None
    """The edited arm's score; None when it could not be had."""
    reason: str = ""
    """Why the trial is unresolved, unreached or skipped; in a failed attempt what the program raised, or what the edit
    could not do."""
    missing: MissingKind | None = None
    """Whose fault it is that an unresolved trial has no scores; None for every other trial."""
    site: str = ""
    """The edge on which the edit acted first."""
    checkpoint: int | None = None
    """The number of the call from which on both arms ran; None when nothing was restored."""
    features: Mapping[str, str] = field(default_factory=dict)
    """The state before the edit acted."""
    changes: tuple[BehaviourChange, ...] = ()
    """Which calls differ between the arms."""
    entered: tuple[EnteredState, ...] = ()
    """Of a skill on a controller's edge: each state in which the edited arm entered it, in order."""
    rollout_id: int | None = None
    recording: Spend = field(default_factory=Spend)
    """What the recording took, when this trial made it; nothing when it was given one."""
    prefix: Spend = field(default_factory=Spend)
    """What the recorded calls before the checkpoint had taken: saved twice."""
    parent: Spend = field(default_factory=Spend)
    edited: Spend = field(default_factory=Spend)
    feedback: tuple[str, str] = ("", "")
    """The metric's words on the parent arm and on the edited one."""
    seconds: float = 0.0

    @property
    def gain(self) -> float | None:
        """The paired difference, after - before; None when either score is missing."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def evidence(self) -> RuleEvidence:
        """What this trial says to the rule."""
        return RuleEvidence(
            self.task_id, self.before, self.after, self.features, self.status, self.kind, bool(self.changes)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON values; `from_dict` reads it back."""
        return {
            **asdict(self),
            "features": dict(self.features),
            "edit_ids": list(self.edit_ids),
            "changes": [asdict(change) for change in self.changes],
            "entered": [{"features": dict(state.features), "changed": state.changed} for state in self.entered],
            "feedback": list(self.feedback),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrialRecord:
        """Read what `to_dict` wrote."""
        known = {item.name: values[item.name] for item in fields(cls) if item.name in values}
        for name in ("recording", "prefix", "parent", "edited"):
            if name in known:
                known[name] = Spend.from_dict(known[name])
        known["edit_ids"] = tuple(known["edit_ids"])
        known["changes"] = tuple(BehaviourChange(**change) for change in known.get("changes", ()))
        known["entered"] = tuple(EnteredState(**state) for state in known.get("entered", ()))
        known["feedback"] = tuple(known.get("feedback", ("", "")))
        return cls(**known)

    def _repr_html_(self) -> str:
        from dspy_evocue.report.html import trials_html

        return trials_html([self])

    def __str__(self) -> str:
        scores = f"{_shown(self.before)} -> {_shown(self.after)}"
        return f"{self.task_id}: {self.status}, {scores}" + (f" ({self.reason})" if self.reason else "")


def entered_states(edited: Tape, edit_ids: Collection[str]) -> tuple[EnteredState, ...]:
    """Return the states in which a run entered the skills of these edits; a skill is noted right after its edge."""
    return tuple(
        EnteredState(edge.features, bool(event.output))
        for edge, event in pairwise(edited.events)
        if event.kind == "skill" and event.edit_id in edit_ids
    )


def behaviour_changes(parent: Tape, edited: Tape) -> tuple[BehaviourChange, ...]:
    """Return which calls differ between two runs: by position on the main line, in any order on parallel branches.

    What a skill on a controller's edge does inside itself changes nothing yet; what the program does after it may.
    """
    changes = []
    parent, edited = (Tape(tuple(filter(_is_the_programs_own, tape.events))) for tape in (parent, edited))
    lines = (parent.branch("0"), edited.branch("0"))
    for position in range(max(map(len, lines))):
        before, after = (_said(line[position]) if position < len(line) else "" for line in lines)
        if before != after:
            changes.append(BehaviourChange(position, before, after))
    aside = [sorted(_said(event) for event in tape.events if event.branch != "0") for tape in (parent, edited)]
    for position, (before, after) in enumerate(_paired(*aside)):
        if before != after:
            changes.append(BehaviourChange(position, before, after))
    return tuple(changes)


def _paired(first: list[str], second: list[str]) -> list[tuple[str, str]]:
    length = max(len(first), len(second))
    return list(zip(first + [""] * (length - len(first)), second + [""] * (length - len(second)), strict=True))


def _is_the_programs_own(event: Event) -> bool:
    return event.kind != "skill" and event.within is None


def _said(event: Event) -> str:
    """Return what a call was and what came of it, short enough to be kept in a record."""
    return f"{event.node} {event.input_key} = {event.outcome_key}"


def _shown(score: float | None) -> str:
    return "missing" if score is None else f"{score:g}"
