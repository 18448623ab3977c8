"""The one aggregation call of ACE: reflections in, playbook operations out; at upper levels, operations merged.

Code checks whatever the model proposes. A text that would lose a number, code, name or negation of what it replaces
does not replace it; a removal needs votes against the entry or another entry that says the same; a citation of a
record that the call was not shown is dropped.

Of the playbook a call sees the entries that the reflections voted on: those that it may have to change. A weak model
that is shown all of it copies it in place of the reflections' lessons, and a large one is paid for in every call. A
lesson that is there already is folded into it in code.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import dspy

from dspy_combee.conflicts import find_conflicts, refuted_numbers, side_by_side
from dspy_combee.errors import ReflectionError
from dspy_combee.learners.ace_signatures import Curate, CuratedChange, CurateGrown, MergeLessons, read_changes
from dspy_combee.learners.base import Reflection
from dspy_combee.learners.playbook_update import PlaybookUpdate, as_additions, as_lessons, join_updates
from dspy_combee.lessons import Lesson, Merge, apply_operations
from dspy_combee.playbook import (
    AddEntry,
    MergeEntries,
    Operation,
    Playbook,
    PlaybookEntry,
    RemoveEntry,
    UpdateEntry,
    Vote,
)
from dspy_combee.playbook.entries import DEFAULT_SECTION, joined_ids
from dspy_combee.replies import refuse_cut_prediction, usable_text
from dspy_combee.rule_sentences import repeated_advice
from dspy_combee.specifics import contains_rule, lost_specifics, polarity_words, specific_tokens
from dspy_combee.truncation import cut_middle
from dspy_combee.typed_lessons import ask_for_lists, cut_to_rules, read_lessons

logger = logging.getLogger(__name__)

MAX_ENTRY_CHARS = 2_000
"""A longer text is not one lesson; it is left out, never cut."""
MAX_ERROR_CHARS = 1_000
"""The most of a reply that cannot be parsed that its error quotes."""


@dataclass(frozen=True, slots=True)
class PlaybookCurate:
    """Distil operations on one playbook (a `Curate`). Calls the model of `dspy.settings.lm`."""

    component: str
    task: str
    """The user's own instructions, without the playbook."""
    book: Playbook
    """The snapshot that every group of the round curates against."""

    def __call__(self, reflections: Sequence[Reflection]) -> PlaybookUpdate:
        """Make one call; none when there is nothing that a call could decide.

        Raises:
            ReflectionError: The reply is cut off, or cannot be parsed.
            Exception: What the model raises for itself.
        """
        if all(isinstance(reflection.update, PlaybookUpdate) for reflection in reflections):
            return self._merge(join_updates(reflection.update for reflection in reflections))
        return self._curate(reflections)

    def _curate(self, reflections: Sequence[Reflection]) -> PlaybookUpdate:
        votes = votes_of(reflections, self.book)
        voted_on = {vote.entry_id for vote in votes}
        old = self.book.keeping(entry for entry in self.book.entries if entry.id in voted_on)
        shown = "\n\n".join(f"[{', '.join(r.record_ids)}]\n{r.text}" for r in reflections)
        if old.entries:
            reply = ask_for_lists(CurateGrown, task=self.task, playbook=old.listing(), reflections=shown)
        else:
            reply = ask_for_lists(Curate, task=self.task, reflections=shown)
        lessons = read_lessons(reply["lessons"], [rid for reflection in reflections for rid in reflection.record_ids])
        changes = read_changes(reply.get("changes", ()))
        if reply["lessons"] and not lessons and not changes:
            raise ReflectionError(f"none of the {len(reply['lessons'])} lessons of the reply makes sense")
        checked = (self._checked(change, old, reflections, votes) for change in changes)
        operations = (*_additions(lessons, reflections), *(change for change in checked if change is not None))
        return join_updates([PlaybookUpdate(self.component, operations, votes)])

    def _checked(
        self, change: CuratedChange, shown: Playbook, reflections: Sequence[Reflection], votes: tuple[Vote, ...]
    ) -> Operation | None:
        """Return the change as an operation that loses nothing, or None when it makes no sense for what was shown."""
        old = [entry for entry_id in dict.fromkeys(change.entry_ids) if (entry := shown.get(entry_id))]
        records = cited_records(change, reflections)
        if change.operation == "REMOVE":
            return self._checked_removal(old, records, votes)
        text = _entry_text(change.text)
        if not text:
            return None
        if not old:
            return AddEntry(text, DEFAULT_SECTION, records)
        loses = _loses(text, old)
        if change.operation == "UPDATE" or len(old) == 1:
            if loses and old[0].net_votes >= 0:
                return AddEntry(text, old[0].section, records)
            return UpdateEntry(old[0].id, text, None, records)
        return None if loses else MergeEntries(tuple(entry.id for entry in old), text, None, records)

    def _checked_removal(
        self, old: Sequence[PlaybookEntry], records: tuple[str, ...], votes: tuple[Vote, ...]
    ) -> Operation | None:
        if len(old) != 1:
            return None
        entry = old[0]
        against = entry.harmful + sum(vote.entry_id == entry.id and vote.tag == "harmful" for vote in votes)
        in_favour = entry.helpful + sum(vote.entry_id == entry.id and vote.tag == "helpful" for vote in votes)
        if against > in_favour:
            return RemoveEntry(entry.id, f"{against} votes against, {in_favour} for", records)
        others = (other for other in self.book.entries if other.id != entry.id)
        holder = next((other for other in others if contains_rule(other.text, entry.text)), None)
        return RemoveEntry(entry.id, f"{holder.id} says the same", records) if holder else None

    def _merge(self, joined: PlaybookUpdate) -> PlaybookUpdate:
        """Let the model merge the additions of several groups; whatever it does not mention, or loses, is kept."""
        lessons = as_lessons(operation for operation in joined.operations if isinstance(operation, AddEntry))
        if len(lessons) < 2:
            return joined
        conflicts = find_conflicts([lesson.text for lesson in lessons])
        evidence = [lesson.record_ids for lesson in lessons]
        reply = ask(
            MergeLessons,
            rules="\n".join(_numbered(number, lesson) for number, lesson in enumerate(lessons, start=1)),
            contradictions="\n".join(side_by_side(conflict, evidence) for conflict in conflicts) or "none",
        )
        named = (int(number) for number in re.findall(r"\d+", reply.refuted or ""))
        refuted = refuted_numbers(named, conflicts, evidence)
        kept = [lesson for number, lesson in enumerate(lessons, start=1) if number not in refuted]
        renumbered = {
            old: new for new, old in enumerate((n for n in range(1, len(lessons) + 1) if n not in refuted), 1)
        }
        merges = [
            Merge(numbers, text)
            for merge in reply.merges.root
            if len(numbers := tuple(renumbered[n] for n in dict.fromkeys(merge.numbers) if n in renumbered)) > 1
            and (text := _entry_text(merge.text))
        ]
        applied = apply_operations(kept, merges)
        for refusal in applied.refused:
            logger.debug("Refused: %s", refusal)
        others = (operation for operation in joined.operations if not isinstance(operation, AddEntry))
        return replace(joined, operations=(*as_additions(applied.lessons), *others))


def ask(signature: type[dspy.Signature], **inputs: Any) -> Any:
    """Make one call to `dspy.settings.lm` and return its prediction, unless the reply was cut off.

    Raises:
        ReflectionError: The model stopped at its token limit, or its reply cannot be parsed.
    """
    from dspy.utils.exceptions import AdapterParseError

    # A predictor of its own for each call: its history holds this call alone, whatever other threads do.
    predict = dspy.Predict(signature)
    try:
        with dspy.context(trace=None):
            reply = predict(**inputs)
    except AdapterParseError as error:
        raise ReflectionError(f"the reply cannot be parsed: {cut_middle(str(error), MAX_ERROR_CHARS)}") from error
    refuse_cut_prediction(predict)
    return reply


def votes_of(reflections: Sequence[Reflection], book: Playbook) -> tuple[Vote, ...]:
    """Return the votes that the reflections carry on entries of the playbook, one a run and entry."""
    found: set[Vote] = set()
    for reflection in reflections:
        for entry_id, tag, record_id in votes_in(reflection):
            if book.get(entry_id) and tag in ("helpful", "harmful", "neutral"):
                found.add(Vote(entry_id, record_id, tag))
    return tuple(found)


def votes_in(reflection: Reflection) -> list[tuple[str, Any, str]]:
    """Return entry id, tag and record id of each vote that a reflection carries.

    A vote without a record of its own is that of the reflection's record.
    """
    details = reflection.details if isinstance(reflection.details, dict) else {}
    return [
        (vote[0], vote[1], vote[2] if len(vote) > 2 else reflection.record_ids[0]) for vote in details.get("votes", ())
    ]


def _additions(lessons: Sequence[Lesson], reflections: Sequence[Reflection]) -> list[AddEntry]:
    """Return the new entries that lessons are, each cut down to its rule; one that only repeats its case is none."""
    cases = {rid: told(reflection, "case") for reflection in reflections for rid in reflection.record_ids}
    advice = repeated_advice(told(reflection, "feedback") for reflection in reflections)
    return [
        AddEntry(text, lesson.heading or DEFAULT_SECTION, lesson.record_ids or sources_of(text, reflections))
        for lesson in cut_to_rules(lessons, cases, advice=advice)
        if (text := _entry_text(lesson.text))
    ]


def told(reflection: Reflection, name: str) -> str:
    """Return what a reflection's details say under a name; empty where they say nothing."""
    details = reflection.details if isinstance(reflection.details, dict) else {}
    return str(details.get(name, ""))


def cited_records(change: CuratedChange, reflections: Sequence[Reflection]) -> tuple[str, ...]:
    """Return the shown records that a change cites; where it cites none, those that code can tell it came from."""
    shown = {record_id.casefold(): record_id for reflection in reflections for record_id in reflection.record_ids}
    cited = joined_ids(tuple(shown[name.casefold()] for name in change.record_ids if name.casefold() in shown))
    return cited or sources_of(change.text, reflections)


def sources_of(text: str, reflections: Sequence[Reflection]) -> tuple[str, ...]:
    """Return the only record there is, or the records of the only reflection with all particulars of a text."""
    shown = {reflection.record_ids for reflection in reflections}
    if len(shown) == 1 and len(record_ids := next(iter(shown))) == 1:
        return record_ids
    if not specific_tokens(text):
        return ()
    sources = {reflection.record_ids for reflection in reflections if not lost_specifics(reflection.text, (text,))}
    return next(iter(sources)) if len(sources) == 1 else ()


def _entry_text(text: str) -> str:
    """Return the text of an entry, or an empty one for a text that is none."""
    try:
        return usable_text(text, max_chars=MAX_ENTRY_CHARS)
    except ReflectionError as error:
        if text.strip():
            logger.info("A curated entry is left out: %s", error)
        return ""


def _loses(text: str, old: Sequence[PlaybookEntry]) -> bool:
    parts = tuple(entry.text for entry in old)
    if lost_specifics(text, parts):
        return True
    return not frozenset[str]().union(*(polarity_words(part) for part in parts)) <= polarity_words(text)


def _numbered(number: int, lesson: Lesson) -> str:
    return f"{number}. ({lesson.heading}) {lesson.text} [{', '.join(lesson.record_ids)}]"
