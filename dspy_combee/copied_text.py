"""Does what was learned repeat the train set word for word? A rule should stand there, not an example."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import dspy

from dspy_combee.instructions import instructions_of
from dspy_combee.lessons import split_instruction
from dspy_combee.provenance import longest_shared_span
from dspy_combee.records import render_value

logger = logging.getLogger(__name__)

LONG_SHARED_SPAN = 60
"""A stretch of so many characters that a prompt shares with the train set is worth a warning."""


def copied_from_train_set(program: dspy.Module, student: dspy.Module, trainset: Sequence[dspy.Example]) -> str:
    """Return the longest stretch of the learned text that stands in a train example, and warn of a long one."""
    return shared_with_train_set(_learned_texts(program, student), trainset)


def shared_with_train_set(learned_texts: Iterable[str], trainset: Sequence[dspy.Example]) -> str:
    """Return the longest stretch of these texts that stands in a train example, and warn of a long one."""
    learned = " \n ".join(learned_texts)
    if not learned:
        return ""
    texts = (render_value(value) for example in trainset for value in dict(example).values())
    span = longest_shared_span(learned, texts)
    if len(span) >= LONG_SHARED_SPAN:
        logger.warning("What was learned shares %d characters with the train set: %.200r", len(span), span)
    return span


def _learned_texts(program: dspy.Module, student: dspy.Module) -> Iterator[str]:
    before = instructions_of(student)
    for name, instruction in instructions_of(program).items():
        own, lessons = split_instruction(instruction)
        known = set(before[name].splitlines())
        yield from (line for line in own.splitlines() if line not in known)
        yield from (lesson.text for lesson in lessons if f"- {lesson.text}" not in known)
