"""One group's update of a playbook: operations and votes, and how the updates of several groups become one.

Joining does not depend on the order of the groups. Nothing is dropped: lessons that say the same
are folded, everything else is kept. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dspy_combee.learners.base import Entry
from dspy_combee.lessons import Lesson, merge_in_code
from dspy_combee.playbook.entries import (
    AddEntry,
    MergeEntries,
    Operation,
    RemoveEntry,
    UpdateEntry,
    Vote,
    joined_ids,
    natural_key,
    normal_section,
    section_key,
)


@dataclass(frozen=True, slots=True)
class PlaybookUpdate:
    """What one curate call wants changed (an `Update` of `learners.base`)."""

    component: str
    """The predictor whose playbook it changes; empty when the program has one for all."""
    operations: tuple[Operation, ...] = ()
    """Changes to entries; votes are kept apart."""
    votes: tuple[Vote, ...] = field(default=())
    """One a run and entry, in natural order."""

    @property
    def entries(self) -> Sequence[Entry]:
        """One entry an operation, with the records behind it; for an update of votes alone, one a vote."""
        if not self.operations:
            return tuple(Entry(f"{vote.entry_id} was {vote.tag}", (vote.record_id,)) for vote in self.votes)
        return tuple(Entry(describe(operation), _record_ids(operation)) for operation in self.operations)

    def render(self) -> str:
        """Return the operations one a line, each with the records behind it."""
        return "\n".join(
            f"- {entry.text}" + (f" [{', '.join(entry.record_ids)}]" if entry.record_ids else "")
            for entry in self.entries
        )


def describe(operation: Operation) -> str:
    """Return an operation in words."""
    if isinstance(operation, AddEntry):
        return f"ADD ({operation.section}) {operation.text}"
    if isinstance(operation, UpdateEntry):
        return f"UPDATE {operation.entry_id}: {operation.text}"
    if isinstance(operation, MergeEntries):
        return f"MERGE {', '.join(operation.entry_ids)}: {operation.text}"
    if isinstance(operation, RemoveEntry):
        return f"REMOVE {operation.entry_id}" + (f": {operation.reason}" if operation.reason else "")
    return f"VOTE {operation.entry_id}: {operation.tag}"


def join_updates(updates: Iterable[PlaybookUpdate]) -> PlaybookUpdate:
    """Return one update that holds everything the updates hold, with additions that say the same folded into one.

    Raises:
        ValueError: When there is none, or they are about different predictors.
    """
    updates = tuple(updates)
    components = {update.component for update in updates}
    if len(components) != 1:
        raise ValueError(f"updates to join must be about one predictor, got {sorted(components)}")
    operations = {operation for update in updates for operation in update.operations}
    additions = [operation for operation in operations if isinstance(operation, AddEntry)]
    others = sorted((op for op in operations if not isinstance(op, AddEntry)), key=repr)
    votes = sorted({vote for update in updates for vote in update.votes}, key=_vote_key)
    return PlaybookUpdate(
        component=components.pop(),
        operations=(*as_additions(as_lessons(additions)), *others),
        votes=tuple(votes),
    )


def as_lessons(additions: Iterable[AddEntry]) -> tuple[Lesson, ...]:
    """Return additions as lessons, in an order that does not depend on theirs, folded where they say the same."""
    spelling: dict[str, str] = {}
    additions = list(additions)
    for section in sorted(normal_section(addition.section) for addition in additions):
        spelling.setdefault(section_key(section), section)
    ordered = sorted(additions, key=lambda a: ([natural_key(record) for record in a.record_ids], a.text, a.section))
    lessons = [Lesson(a.text, joined_ids(a.record_ids), spelling[section_key(a.section)]) for a in ordered]
    return merge_in_code(lessons)


def as_additions(lessons: Iterable[Lesson]) -> tuple[AddEntry, ...]:
    """Return lessons as additions, in their order."""
    return tuple(AddEntry(lesson.text, lesson.heading, joined_ids(lesson.record_ids)) for lesson in lessons)


def _record_ids(operation: Operation) -> tuple[str, ...]:
    return (operation.record_id,) if isinstance(operation, Vote) else operation.record_ids


def _vote_key(vote: Vote) -> tuple[object, ...]:
    return (natural_key(vote.record_id), natural_key(vote.entry_id), vote.tag)
