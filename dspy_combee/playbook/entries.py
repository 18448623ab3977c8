"""The records of a playbook: its entries, and the operations that change it.

Texts are normalised here once, so that whatever is stored survives rendering, DSPy's own clean-up of instructions,
JSON and parsing without a changed byte. Nothing here decides what an operation does.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Tag = Literal["helpful", "harmful", "neutral"]
DEFAULT_SECTION = "General"
ENTRY_ID = "[A-Za-z]+-?[0-9]+"
"""What an id looks like, as a regular expression."""


def normal_text(text: str) -> str:
    """Return a text as entries store it: trimmed, with plain line ends, without tabs or broken characters.

    DSPy expands tabs in instructions, and its JSON writer refuses lone surrogates: both would change or lose an entry.
    """
    plain = str(text).encode("utf-8", "replace").decode("utf-8")
    plain = plain.replace("\r\n", "\n").replace("\r", "\n").replace("\t", "    ").replace("\x00", "")
    return plain.strip()


def normal_section(name: str) -> str:
    """Return a section name on one line, without heading marks; the default section for an empty one."""
    return " ".join(normal_text(name).split()).lstrip("# ").strip() or DEFAULT_SECTION


def section_key(name: str) -> str:
    """Return what two spellings of one section share: "common_mistakes" and "Common Mistakes" are one section."""
    folded = unicodedata.normalize("NFKC", normal_section(name)).casefold().replace("&", " and ")
    return " ".join(re.findall(r"[^\W_]+", folded)) or folded


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key under which "r9" comes before "r10"."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple((0, int(part), part) if part[0] in "0123456789" else (1, 0, part) for part in parts)


def joined_ids(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return the record ids of all groups, each once, in natural order."""
    return tuple(sorted({record for group in groups for record in group}, key=natural_key))


@dataclass(frozen=True, slots=True)
class PlaybookEntry:
    """One lesson of a playbook, with what happened to the runs that had it in their prompt."""

    id: str
    """Stable and never given to another entry: a slug, then the number that orders entries by age ("e17")."""
    section: str
    text: str
    """May span lines; never contains tabs."""
    helpful: int = 0
    harmful: int = 0
    neutral: int = 0
    record_ids: tuple[str, ...] = ()
    """The records that taught it, each once, in natural order."""
    created: int = 0
    """The playbook's version at which it was added."""

    @property
    def number(self) -> int:
        """The number in the id: entries with a higher one are younger."""
        return int(re.findall(r"[0-9]+", self.id)[-1])

    @property
    def net_votes(self) -> int:
        """Helpful minus harmful votes."""
        return self.helpful - self.harmful


def normal_entry(state: Mapping[str, Any]) -> PlaybookEntry:
    """Return an entry from its fields as JSON holds them, also where a file was written by hand.

    Unknown fields are ignored.

    Raises:
        KeyError: A field is missing.
        TypeError: A field is of another type.
        ValueError: The id is none that a prompt can show, or a counter is no number.
    """
    if not re.fullmatch(ENTRY_ID, state["id"]):
        raise ValueError(f"an id must be a word and a number, such as e17, got {state['id']!r}")
    if not isinstance(state["text"], str):
        raise TypeError(f"a text must be text, got {type(state['text']).__name__}")
    counts = {name: int(state.get(name, 0)) for name in ("helpful", "harmful", "neutral", "created")}
    return PlaybookEntry(
        id=state["id"],
        section=normal_section(state["section"]),
        text=normal_text(state["text"]),
        record_ids=tuple(map(str, state["record_ids"])),
        **counts,
    )


@dataclass(frozen=True, slots=True)
class AddEntry:
    """Add one lesson. Two additions with the same section and text are one, taught by both."""

    text: str
    section: str = DEFAULT_SECTION
    record_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateEntry:
    """Give an entry a new text; its id and counters stay."""

    entry_id: str
    text: str
    section: str | None = None
    """None keeps the entry where it is."""
    record_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MergeEntries:
    """Put one text in the place of several entries; it keeps the oldest id and the sum of their counters."""

    entry_ids: tuple[str, ...]
    text: str
    section: str | None = None
    """None keeps the section of the oldest."""
    record_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoveEntry:
    """Take an entry out; its id is not used again."""

    entry_id: str
    reason: str = ""
    record_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Vote:
    """What one run says about one entry. A run has one vote an entry, however often it is counted."""

    entry_id: str
    record_id: str
    tag: Tag


Operation = AddEntry | UpdateEntry | MergeEntries | RemoveEntry | Vote


@dataclass(frozen=True, slots=True)
class Refused:
    """An operation that was not carried out."""

    operation: Operation
    reason: str
