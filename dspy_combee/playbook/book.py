"""The playbook: an itemised, versioned set of lessons that grows by operations and is never rewritten as a whole.

It is a value: every change returns another playbook. It holds no model, makes no call, and decides nothing about
which operations are wise (that is the learner's business).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dspy_combee.clusters import Embedder
from dspy_combee.playbook.apply import apply_operations
from dspy_combee.playbook.deduplicate import deduplicate
from dspy_combee.playbook.entries import Operation, PlaybookEntry, Refused, normal_entry, normal_section
from dspy_combee.playbook.limit import CountTokens, Limited, approximate_tokens, within_limit
from dspy_combee.playbook.text import (
    join_instructions,
    parse_playbook,
    render_block,
    render_sections,
    split_instructions,
)

_STATE_ATTRIBUTE = "_playbook_state"


@dataclass(frozen=True, slots=True)
class Playbook:
    """Lessons by section, each with an id, counters and the records that taught it.

    Example:
        >>> from dspy_combee.playbook import AddEntry, Playbook
        >>> book = Playbook().apply([AddEntry("Round to two decimals.", section="Output")])
        >>> [entry.id for entry in book.entries]
        ['e1']
    """

    entries: tuple[PlaybookEntry, ...] = ()
    """By number, oldest first."""
    sections: tuple[str, ...] = ()
    """The known sections in display order; some may be empty."""
    next_number: int = 1
    """The number of the next new entry. Numbers are not given twice, not even after a removal."""
    version: int = 0
    """How many commits led here."""
    refused: tuple[Refused, ...] = field(default=(), compare=False)
    """What the last `apply` did not carry out, and why."""

    def __post_init__(self) -> None:
        ids = [entry.id for entry in self.entries]
        if len(set(ids)) != len(ids):
            raise ValueError(f"entry ids must be unique, got {sorted(i for i in set(ids) if ids.count(i) > 1)} twice")

    def __len__(self) -> int:
        return len(self.entries)

    def apply(self, operations: Iterable[Operation]) -> Playbook:
        """Return the playbook after a set of operations, in one commit.

        The same operations give the same playbook in any order, from however many groups they came.
        """
        applied = apply_operations(
            self.entries, self.sections, operations, next_number=self.next_number, version=self.version + 1
        )
        return Playbook(
            entries=applied.entries,
            sections=applied.sections,
            next_number=applied.next_number,
            version=self.version + 1,
            refused=applied.refused,
        )

    def deduplicated(
        self, *, likeness: float = 0.85, embed: Embedder | None = None, nearness: float = 0.95
    ) -> Playbook:
        """Return the playbook with entries that say the same folded into the oldest of them."""
        return replace(self, entries=deduplicate(self.entries, likeness=likeness, embed=embed, nearness=nearness))

    def limited(self, max_tokens: int, *, count_tokens: CountTokens = approximate_tokens) -> Limited:
        """Say which entries stay under a limit on the rendered text and which must go; see `keeping`."""
        return within_limit(
            self.entries,
            self.sections,
            max_tokens=max_tokens,
            version=self.version,
            next_number=self.next_number,
            count_tokens=count_tokens,
        )

    def keeping(self, entries: Iterable[PlaybookEntry]) -> Playbook:
        """Return the playbook with these of its entries only; numbers stay used."""
        wanted = {entry.id for entry in entries}
        return replace(self, entries=tuple(entry for entry in self.entries if entry.id in wanted))

    def numbering_after(self, other: Playbook) -> Playbook:
        """Return the playbook with no number left to give that the other one has given, as after going back to it."""
        return replace(self, next_number=max(self.next_number, other.next_number))

    def get(self, entry_id: str) -> PlaybookEntry | None:
        """Return the entry with an id, or None."""
        return next((entry for entry in self.entries if entry.id == entry_id), None)

    def render(self) -> str:
        """Return the playbook as it stands in a program's instructions, between its markers."""
        return render_block(self.entries, self._used_sections(), self.next_number)

    def listing(self) -> str:
        """Return the entries under their headings as somebody sees them who is not to follow them, but to mend them."""
        return "\n".join(render_sections(self.entries, self._used_sections()))

    def _used_sections(self) -> list[str]:
        used = {entry.section for entry in self.entries}
        known = [section for section in self.sections if section in used]
        return [*known, *sorted(used - set(known))]

    def in_instructions(self) -> str | None:
        """Return what a predictor's instructions hold of it; None for one that has never held an entry.

        One that has lost all of its entries leaves its markers there, with the next number: ids are not given twice.
        """
        return self.render() if self.entries or self.next_number > 1 else None

    @classmethod
    def parse(cls, text: str) -> Playbook:
        """Read a playbook from its rendered form, from instructions that hold one, or from plain lines or bullets.

        The rendered form has everything but the record ids and the commit numbers.
        """
        parsed = parse_playbook(text)
        return cls(entries=parsed.entries, sections=parsed.sections, next_number=parsed.next_number)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that `from_dict` reads."""
        return {
            "entries": [{**asdict(entry), "record_ids": list(entry.record_ids)} for entry in self.entries],
            "sections": list(self.sections),
            "next_number": self.next_number,
            "version": self.version,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Playbook:
        """Read what `to_dict` returned; unknown keys are ignored, so that a newer file can be read.

        Raises:
            ValueError: When the data is not that of a playbook.
        """
        try:
            entries = tuple(normal_entry(entry) for entry in state["entries"])
            number, version = int(state["next_number"]), int(state["version"])
            sections = tuple(normal_section(section) for section in state["sections"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"a playbook needs entries, sections, next_number and version, got {error}") from error
        number = max([number, *(entry.number + 1 for entry in entries)])
        return cls(entries=entries, sections=sections, next_number=number, version=version)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the playbook as JSON, at once or not at all."""
        target = os.fspath(path)
        with open(target + ".tmp", "w", encoding="utf-8") as file:
            json.dump(self.to_dict(), file, ensure_ascii=False, indent=1)
        os.replace(target + ".tmp", target)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Playbook:
        """Read a playbook that `save` wrote."""
        with open(path, encoding="utf-8") as file:
            return cls.from_dict(json.load(file))

    @classmethod
    def from_program(cls, program: Any, predictor: str | None = None) -> Playbook:
        """Return the playbook that a program carries in its predictors' instructions.

        Args:
            program: A `dspy.Module`.
            predictor: Whose playbook, as `named_predictors()` spells it; None when the program carries only one.

        Raises:
            ValueError: When there is no such predictor, or when None leaves a choice between different playbooks.
        """
        books = playbooks_of(program)
        if predictor is not None:
            if predictor not in books:
                raise ValueError(f"predictor must be one of {sorted(books)}, got {predictor!r}")
            return books[predictor]
        distinct = {book.render(): book for book in books.values() if book.in_instructions() or book.version}
        if len(distinct) > 1:
            raise ValueError(f"the program carries several playbooks: name the predictor, one of {sorted(books)}")
        return next(iter(distinct.values()), cls())


def playbooks_of(program: Any) -> dict[str, Playbook]:
    """Return the playbook of every predictor by its name; an empty one where there is none."""
    return {name: playbook_of(predictor) for name, predictor in program.named_predictors()}


def playbook_of(predictor: Any) -> Playbook:
    """Return the playbook of one predictor.

    The instructions decide. What they do not hold (record ids, commit numbers) comes from the predictor's own copy,
    when that still says the same as the instructions.
    """
    split = split_instructions(predictor.signature.instructions)
    state = getattr(predictor, _STATE_ATTRIBUTE, None)
    if state is not None:
        book = Playbook.from_dict(state)
        if split.block == book.in_instructions():
            return book
    return Playbook.parse(split.block) if split.block else Playbook()


def set_playbook(predictor: Any, book: Playbook) -> None:
    """Write a playbook into one predictor's instructions; the user's own text stays as it is, byte for byte."""
    split = split_instructions(predictor.signature.instructions)
    instructions = join_instructions(split, book.in_instructions())
    predictor.signature = predictor.signature.with_instructions(instructions)
    # Plain data, so that a program that was pickled whole loads where this package is not installed.
    setattr(predictor, _STATE_ATTRIBUTE, book.to_dict())
