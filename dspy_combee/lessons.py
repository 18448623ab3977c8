"""Lessons: the typed entries of a loss-checked update, how they are merged in code, and where they stand in a prompt.

With a weak aggregator the last rewriting of a scan is where every specific lesson dies. So nothing is rewritten
here: a lesson goes only into another one that says all of it, and whatever no operation mentions is kept. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dspy_combee.specifics import contains_rule, coverage, lost_specifics, polarity_words
from dspy_combee.twins import TwinIndex

OPENING = "<learned_lessons>"
CLOSING = "</learned_lessons>"
_PREFACE = "Apply every one of these rules whose condition holds:"


@dataclass(frozen=True, slots=True)
class Lesson:
    """One rule in one line."""

    text: str
    """One line, never blank."""
    record_ids: tuple[str, ...] = ()
    """The records that taught it, without repeats, in order of first mention."""
    heading: str = ""
    """The group it is rendered under; empty for none."""


@dataclass(frozen=True, slots=True)
class LessonUpdate:
    """An update made of lessons (an `Update` of `learners.base`)."""

    entries: tuple[Lesson, ...]
    covers_known: bool = False
    """Whether the lessons that stood in the prompt before are among the entries, where operations may have changed
    them; otherwise the update is to be added to them."""

    def render(self) -> str:
        """Return the lessons one a line, each with the ids of its records in front."""
        return "\n".join(f"[{', '.join(lesson.record_ids)}] {lesson.text}" for lesson in self.entries)


@dataclass(frozen=True, slots=True)
class Merge:
    """Say several numbered lessons in one text."""

    numbers: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Leave a numbered lesson out, since another one says it."""

    number: int


@dataclass(frozen=True, slots=True)
class Group:
    """Put numbered lessons under one heading."""

    numbers: tuple[int, ...]
    heading: str


Operation = Merge | Drop | Group

MERGE_COVERAGE = 0.6
"""The part of a lesson's meaningful words that a merged text must have: without specific tokens nothing else tells a
merged rule from any other text."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The lessons after operations, and which of these were refused, with the reason in words."""

    lessons: tuple[Lesson, ...]
    refused: tuple[str, ...]


def merge_in_code(lessons: Iterable[Lesson]) -> tuple[Lesson, ...]:
    """Fold lessons into others that say all they say; first appearance decides the order.

    Two lessons become one when one contains the other, or when they came from the same record, share their specific
    tokens and most of their words (two readings of one reflection), or are the same but for filler.
    Of the two the fuller text stays and the record ids are joined.
    """
    kept: list[Lesson] = []
    index = TwinIndex()
    for lesson in lessons:
        number = index.find(lesson.text, lesson.record_ids)
        if number is None:
            number = len(kept)
            kept.append(lesson)
        else:
            kept[number] = _fold(kept[number], lesson)
        index.put(number, kept[number].text, kept[number].record_ids)
    return tuple(kept)


def apply_operations(lessons: Sequence[Lesson], operations: Iterable[Operation]) -> Applied:
    """Apply operations on lessons numbered from 1, each checked; what no accepted operation mentions is kept.

    A merge whose text loses a specific token of its parts is refused, and so is a drop of a lesson that no other
    kept lesson contains, a number that does not exist or was used up by an earlier operation, and a blank text.
    """
    standing: dict[int, Lesson] = dict(enumerate(lessons, start=1))
    refused: list[str] = []
    for operation in operations:
        problem = _apply_one(standing, operation)
        if problem:
            refused.append(problem)
    return Applied(tuple(standing[number] for number in sorted(standing)), tuple(refused))


def fit_lessons(lessons: Sequence[Lesson], max_chars: int | None) -> tuple[tuple[Lesson, ...], tuple[Lesson, ...]]:
    """Split lessons into those that fit `max_chars` of rendered block and those that had to go.

    The least supported go first (fewest records), among equals the latest; lessons are never cut inside.
    """
    chars = len(render_block(lessons))
    if max_chars is None or chars <= max_chars:
        return tuple(lessons), ()
    under = Counter(lesson.heading for lesson in lessons)
    kept = set(range(len(lessons)))
    for index in sorted(kept, key=lambda index: (len(lessons[index].record_ids), -index)):
        kept.discard(index)
        chars -= _line_chars(lessons[index], under)
        if chars <= max_chars or not kept:
            break
    return (
        tuple(lessons[index] for index in sorted(kept)),
        tuple(lesson for index, lesson in enumerate(lessons) if index not in kept),
    )


def render_block(lessons: Sequence[Lesson]) -> str:
    """Return the lessons as they stand in an instruction, between markers; empty when there are none."""
    if not lessons:
        return ""
    lines = [OPENING, _PREFACE]
    headings = dict.fromkeys(lesson.heading for lesson in lessons)
    for heading in sorted(headings, key=lambda heading: heading != ""):
        if heading:
            lines.append(f"# {heading}")
        lines.extend(f"- {lesson.text}" for lesson in lessons if lesson.heading == heading)
    return "\n".join([*lines, CLOSING])


def attach_lessons(instruction: str, lessons: Sequence[Lesson]) -> str:
    """Return the user's own text, byte for byte, followed by the block of lessons in place of an earlier one."""
    own, _ = split_instruction(instruction)
    block = render_block(lessons)
    return f"{own}\n\n{block}" if block else own


def split_instruction(instruction: str) -> tuple[str, tuple[Lesson, ...]]:
    """Split an instruction into the user's own text and the lessons of the block at its end, if there is one."""
    head, opening, body = instruction.rpartition(f"\n\n{OPENING}\n")
    if not opening or not body.endswith(f"\n{CLOSING}"):
        return instruction, ()
    lessons: list[Lesson] = []
    heading = ""
    for line in body.removesuffix(f"\n{CLOSING}").split("\n"):
        if line.startswith("- "):
            lessons.append(Lesson(line[2:], heading=heading))
        elif line.startswith("# "):
            heading = line[2:]
        elif line != _PREFACE:
            return instruction, ()
    return head, tuple(lessons)


def one_line(text: str) -> str:
    """Return the text with line breaks and runs of white space folded into single spaces."""
    return " ".join(text.split())


def _line_chars(lesson: Lesson, under: Counter[str]) -> int:
    """Return by how much a rendered block shrinks without the lesson; its heading goes with the last one under it."""
    under[lesson.heading] -= 1
    heading = len(f"# {lesson.heading}\n") if lesson.heading and not under[lesson.heading] else 0
    return len(f"- {lesson.text}\n") + heading


def _apply_one(standing: dict[int, Lesson], operation: Operation) -> str:
    """Apply one operation to the standing lessons in place; return why it was refused, or an empty string."""
    numbers = (operation.number,) if isinstance(operation, Drop) else operation.numbers
    missing = [number for number in numbers if number not in standing]
    if missing or not numbers:
        return f"{operation}: the numbers must be those of standing lessons, got {missing or 'none'}"
    if isinstance(operation, Drop):
        return _apply_drop(standing, operation)
    if isinstance(operation, Group):
        return _apply_group(standing, operation)
    return _apply_merge(standing, operation)


def _apply_drop(standing: dict[int, Lesson], drop: Drop) -> str:
    dropped = standing[drop.number]
    holders = (
        number
        for number, lesson in standing.items()
        if number != drop.number and contains_rule(lesson.text, dropped.text)
    )
    holder = next(holders, None)
    if holder is None:
        return f"{drop}: no other lesson says what it says"
    standing[holder] = _with_ids(standing[holder], standing.pop(drop.number))
    return ""


def _apply_group(standing: dict[int, Lesson], group: Group) -> str:
    heading = one_line(group.heading)
    if heading.casefold() in ("", "heading"):
        return f"{group}: the heading must say something, got {heading!r}"
    for number in group.numbers:
        standing[number] = replace(standing[number], heading=heading)
    return ""


def _apply_merge(standing: dict[int, Lesson], merge: Merge) -> str:
    numbers = tuple(dict.fromkeys(merge.numbers))
    text = one_line(merge.text)
    parts = tuple(standing[number].text for number in numbers)
    if not text:
        return f"{merge}: the text is blank"
    lost = lost_specifics(text, parts)
    if lost:
        return f"{merge}: the text loses {', '.join(lost)}"
    thinned = [part for part in parts if coverage(text, part) < MERGE_COVERAGE]
    if thinned:
        return f"{merge}: the text leaves out most of {thinned[0]!r}"
    if not frozenset().union(*(polarity_words(part) for part in parts)) <= polarity_words(text):
        return f"{merge}: the text loses a negation or bound"
    merged = replace(standing[numbers[0]], text=text)
    for number in numbers[1:]:
        merged = _with_ids(merged, standing.pop(number))
    standing[numbers[0]] = merged
    return ""


def _fold(one: Lesson, other: Lesson) -> Lesson:
    if one.text == other.text:
        return _with_ids(one, other)
    fuller = other if contains_rule(other.text, one.text) or len(other.text) > len(one.text) else one
    if contains_rule(one.text, other.text):
        fuller = one
    return replace(_with_ids(one, other), text=fuller.text)


def _with_ids(one: Lesson, other: Lesson) -> Lesson:
    if one.record_ids == other.record_ids:
        return one
    return replace(one, record_ids=tuple(dict.fromkeys((*one.record_ids, *other.record_ids))))
