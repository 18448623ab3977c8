"""Where a line of a prompt came from, and which records ended nowhere. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RecordSource:
    """Where a record came from."""

    record_id: str
    example_index: int | None
    """The example's position in the trainset (or the trace's in the recorded traces); None when it is unknown."""
    score: float | None
    """The rollout's score; None when the program or the metric raised, or nothing was scored."""
    feedback: str
    """The metric's words, or the error text."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {
            "record_id": self.record_id,
            "example_index": self.example_index,
            "score": self.score,
            "feedback": self.feedback,
        }


@dataclass(frozen=True, slots=True)
class SourcedLine:
    """One learned line of the final program with the records behind it."""

    component: str
    text: str
    record_ids: tuple[str, ...]
    """Empty when the model cited none: missing citations are reported, not invented."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Answers "where did this line come from" and "which reflections ended nowhere"."""

    lines: tuple[SourcedLine, ...] = ()
    """The learned lines of the final program, in order."""
    sources: Mapping[str, RecordSource] = field(default_factory=dict[str, RecordSource])
    """Every record that an aggregation has read, by id."""

    def sources_of(self, text: str) -> tuple[RecordSource, ...]:
        """Return the records behind a learned line.

        Args:
            text: The line, with or without its bullet; a part of it is enough when only one line has it.

        Raises:
            KeyError: no learned line, or more than one, has this text.
        """
        wanted = text.strip().removeprefix("- ")
        found = [line for line in self.lines if line.text == wanted] or [
            line for line in self.lines if wanted in line.text
        ]
        if len(found) != 1:
            raise KeyError(f"one learned line must have the text {text!r}, {len(found)} of {len(self.lines)} have it")
        return tuple(self.sources[rid] for rid in found[0].record_ids if rid in self.sources)

    def unused(self) -> tuple[RecordSource, ...]:
        """Return the records that no learned line cites, in the order in which they were read."""
        cited = {rid for line in self.lines for rid in line.record_ids}
        return tuple(source for rid, source in self.sources.items() if rid not in cited)

    def uncited_lines(self) -> tuple[SourcedLine, ...]:
        """Return the lines for which the model named no record."""
        return tuple(line for line in self.lines if not line.record_ids)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "lines": [
                {"component": line.component, "text": line.text, "record_ids": list(line.record_ids)}
                for line in self.lines
            ],
            "sources": [source.to_dict() for source in self.sources.values()],
        }


def longest_shared_span(text: str, training_texts: Iterable[str], *, minimum: int = 20) -> str:
    """Return the longest stretch of a prompt that stands word for word in a training text; empty below `minimum`.

    A long one says that the prompt copies training data instead of stating a rule.

    Args:
        text: The learned text.
        training_texts: Texts of training examples.
        minimum: The fewest characters that count.
    """
    words = text.split()
    places: dict[str, list[int]] = defaultdict(list)
    for position, word in enumerate(words):
        places[word].append(position)
    longest = ""
    for training_text in training_texts:
        longest = max(longest, _longest_common_words(words, places, training_text.split()), key=len)
    return longest if len(longest) >= minimum else ""


def _longest_common_words(words: Sequence[str], places: Mapping[str, Sequence[int]], other: Sequence[str]) -> str:
    """Return the longest run of words in both, by characters; only places where the words meet are looked at."""
    best = ""
    starts: dict[int, int] = {}
    for word in other:
        # By the position of the last word of each run that goes on to here: where it starts.
        starts = {position: starts.get(position - 1, position) for position in places.get(word, ())}
        for position, start in starts.items():
            run = " ".join(words[start : position + 1])
            best = max(best, run, key=len)
    return best
