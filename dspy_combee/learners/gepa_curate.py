"""What one aggregation call does for GEPA: write lessons, or rewrite the instruction.

Two forms of one `Curate` (Combee, section 3.1). *Lessons*: a first-level call returns typed lessons with the ids of
their records, an upper call returns operations on the numbered lessons, each checked by code; nothing is lost unsaid.
*Rewrite*, as published: every call writes a whole new instruction.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy

from dspy_combee.conflicts import Conflict, find_conflicts, refuted_numbers, side_by_side
from dspy_combee.errors import ReflectionError
from dspy_combee.learners.base import Entry, Reflection, TextUpdate, Update
from dspy_combee.lessons import (
    Drop,
    Group,
    Lesson,
    LessonUpdate,
    Merge,
    Operation,
    apply_operations,
    merge_in_code,
)
from dspy_combee.records import render_value
from dspy_combee.replies import recover_instruction, refuse_cut_prediction, usable_instruction, usable_text
from dspy_combee.signatures import CombineInstructions, ExtractLessons, ReviseContradictingLessons, ReviseLessons
from dspy_combee.typed_lessons import ask_for_lists, cut_to_rules, read_lessons

_OPERATION_LINE = re.compile(r"^\W*(MERGE|DROP|GROUP)\W+((?:\d+\s*(?:,|and|&|\+)?\s*)+)(?::\s*(.*))?", re.IGNORECASE)

Proposer = Callable[..., dict[str, str]]
"""GEPA's `instruction_proposer`: keywords `candidate`, `reflective_dataset`, `components_to_update`."""


@dataclass(frozen=True, slots=True)
class LessonCurate:
    """Distil lessons from records, or tidy lessons of several groups (a `Curate`).

    A reply line without a known record id is kept and cites nothing: a missing citation is reported, not invented.
    """

    advice: frozenset[str] = frozenset()
    """Sentences that the feedbacks of the batch repeat word for word without being specific (`repeated_advice`)."""
    known: tuple[Lesson, ...] = ()
    """The lessons that stand in the prompt already; operations may change them as they may change new ones."""

    def __call__(self, reflections: Sequence[Reflection]) -> LessonUpdate:
        """Make one call.

        Raises:
            ReflectionError: the reply is cut off, blank or still reasoning.
        """
        if reflections[0].update is None:
            return self._extract(reflections)
        return self._revise([reflection.update for reflection in reflections])

    def _extract(self, reflections: Sequence[Reflection]) -> LessonUpdate:
        record_ids = [rid for reflection in reflections for rid in reflection.record_ids]
        cases = {rid: _case(reflection) for reflection in reflections for rid in reflection.record_ids}
        records = "\n\n".join(reflection.text for reflection in reflections)
        found = read_lessons(ask_for_lists(ExtractLessons, records=records)["lessons"], record_ids)
        return LessonUpdate(merge_in_code(cut_to_rules(found, cases, advice=self.advice)))

    def _revise(self, updates: Sequence[LessonUpdate]) -> LessonUpdate:
        joined = join_lessons(updates)
        has_all = joined.covers_known or not self.known
        lessons = joined.entries if has_all else merge_in_code([*self.known, *joined.entries])
        if len(lessons) < 2:
            return LessonUpdate(lessons, covers_known=True)
        numbered = "\n".join(f"{number}. {lesson.text}" for number, lesson in enumerate(lessons, start=1))
        conflicts = find_conflicts([lesson.text for lesson in lessons])
        if not conflicts:
            reply = _ask(ReviseLessons, "operations", rules=numbered)
            return LessonUpdate(apply_operations(lessons, parse_operations(reply)).lessons, covers_known=True)
        evidence = [lesson.record_ids for lesson in lessons]
        pairs = "\n".join(side_by_side(conflict, evidence) for conflict in conflicts)
        reply = _ask(ReviseContradictingLessons, "operations", rules=numbered, contradictions=pairs)
        return LessonUpdate(settled(lessons, parse_operations(reply), conflicts), covers_known=True)


@dataclass(frozen=True, slots=True)
class RewriteCurate:
    """Write a new instruction from records, or combine the instructions of several groups (a `Curate`)."""

    component: str
    candidate: Mapping[str, str]
    """Every component's current text, as GEPA hands it over; not modified."""
    propose: Proposer
    """The wrapped optimizer's own proposer; called once a group."""
    max_chars: int | None = None
    """A longer instruction is refused."""

    def __call__(self, reflections: Sequence[Reflection]) -> TextUpdate:
        """Make one call.

        Raises:
            ReflectionError: the reply is cut off, blank or still reasoning.
        """
        record_ids = tuple(dict.fromkeys(rid for reflection in reflections for rid in reflection.record_ids))
        if reflections[0].update is None:
            records = [reflection.details for reflection in reflections]
            text = propose_once(self.propose, self.candidate, self.component, records)
        else:
            text = self._combine([reflection.update for reflection in reflections])
        return TextUpdate((Entry(usable_instruction(text, max_chars=self.max_chars), record_ids),))

    def _combine(self, updates: Sequence[Update]) -> str:
        proposals = "\n\n".join(
            f"[{number}]\n" + "\n".join(entry.text for entry in update.entries)
            for number, update in enumerate(updates, start=1)
        )
        current = self.candidate[self.component]
        reply = _ask(CombineInstructions, "new_instruction", current_instruction=current, proposals=proposals)
        return recover_instruction(reply)


def settled(
    lessons: Sequence[Lesson], operations: Sequence[Operation], conflicts: Sequence[Conflict]
) -> tuple[Lesson, ...]:
    """Return the lessons after operations that may also drop a side of a contradiction.

    A side goes only when no fewer records stand behind the other, which stays; every other operation is checked as
    always.
    """
    dropped = [operation.number for operation in operations if isinstance(operation, Drop)]
    refuted = refuted_numbers(dropped, conflicts, [lesson.record_ids for lesson in lessons])
    # Only what stays is numbered anew, so the operations are applied first; a drop that loses something is refused.
    others = [one for one in operations if not (isinstance(one, Drop) and one.number in refuted)]
    used = {number for one in others if not isinstance(one, Drop) for number in one.numbers}
    gone = {lessons[number - 1] for number in refuted - used}
    return tuple(lesson for lesson in apply_operations(lessons, others).lessons if lesson not in gone)


def join_lessons(updates: Sequence[LessonUpdate]) -> LessonUpdate:
    """Join the lessons of several groups in code: what one group says and another one too is said once."""
    lessons = merge_in_code(lesson for update in updates for lesson in update.entries)
    return LessonUpdate(lessons, covers_known=any(update.covers_known for update in updates))


def parse_operations(reply: str) -> tuple[Operation, ...]:
    """Read lines such as `MERGE 2, 5: text`, `DROP 4`, `GROUP 1, 3: heading`; other lines are ignored."""
    operations: list[Operation] = []
    for line in reply.splitlines():
        match = _OPERATION_LINE.match(line)
        if not match:
            continue
        kind, numbers = match.group(1).upper(), tuple(int(number) for number in re.findall(r"\d+", match.group(2)))
        text = (match.group(3) or "").strip()
        if kind == "DROP":
            operations.extend(Drop(number) for number in numbers)
        else:
            operations.append(Merge(numbers, text) if kind == "MERGE" else Group(numbers, text))
    return tuple(operations)


def propose_once(
    propose: Proposer, candidate: Mapping[str, str], component: str, records: Sequence[Mapping[str, Any]]
) -> str:
    """Ask the wrapped optimizer's proposer for one component's new text, and refuse a reply that is not whole.

    Raises:
        ReflectionError: the reply is blank, cut off or still reasoning, or there is none for the component.
    """
    from dspy.utils.exceptions import AdapterParseError

    own = _with_own_history(propose)
    try:
        texts = own(
            candidate=dict(candidate), reflective_dataset={component: list(records)}, components_to_update=[component]
        )
    except AdapterParseError as error:
        refuse_cut_prediction(getattr(own, "propose", None))
        return recover_instruction(error.lm_response)
    except ValueError as error:
        raise ReflectionError(f"the proposal for {component!r} cannot be used: {error}") from error
    if not isinstance(texts, Mapping) or component not in texts:
        raise ReflectionError(f"the instruction proposer returned no text for {component!r}")
    refuse_cut_prediction(getattr(own, "propose", None))
    return usable_text(texts[component])


def _ask(signature: type[dspy.Signature], field: str, **inputs: str) -> str:
    """Make one typed call with a predictor of its own, so that its history holds this call only."""
    from dspy.utils.exceptions import AdapterParseError

    predictor = dspy.Predict(signature)
    try:
        with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
            reply = getattr(predictor(**inputs), field)
    except AdapterParseError as error:
        refuse_cut_prediction(predictor)
        reply = recover_instruction(error.lm_response, field)
    refuse_cut_prediction(predictor)
    return usable_text(reply)


def _with_own_history(propose: Proposer) -> Proposer:
    """Return DSPy's own proposer with predictors of its own: calls of other threads must not mix into the history."""
    from dspy.teleprompt.gepa import instruction_proposal

    builtin: Any = instruction_proposal.InstructionProposer
    if not isinstance(propose, builtin):
        return propose
    own: Any = copy.copy(propose)
    own.propose = own.propose.deepcopy()
    return own


def _case(reflection: Reflection) -> str:
    """Return what a record says of its own case: everything but the feedback."""
    record = reflection.details if isinstance(reflection.details, Mapping) else {}
    return " ".join(render_value(value) for key, value in record.items() if key != "Feedback")
