"""What stays in a playbook that must not grow past a number of tokens.

Whole entries go, the least valuable first; none is ever cut. An entry's value is its net votes, and an entry that was
added in the last commit counts as if one vote had helped: it has had no chance yet, but it does not push out what has
proved itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dspy_combee.playbook.entries import PlaybookEntry
from dspy_combee.playbook.text import render_block

CountTokens = Callable[[str], int]
_PIECES = re.compile(r"[A-Za-z]+|[0-9]+|\s+|[^A-Za-z0-9\s]")


def approximate_tokens(text: str) -> int:
    """Return a cautious token count by shape alone: a word of six letters is one, so are three digits or one mark.

    Real tokenizers give a little less on English prose and code. Pass your model's own count where it matters.
    """
    total = 0
    for piece in _PIECES.findall(text):
        if piece.isspace():
            total += piece.count("\n")
        elif piece.isascii() and piece.isalpha():
            total += -(-len(piece) // 6)
        elif piece.isascii() and piece.isdigit():
            total += -(-len(piece) // 3)
        else:
            total += 1 if piece.isascii() else 2
    return total


@dataclass(frozen=True, slots=True)
class Limited:
    """A playbook's entries under a limit."""

    kept: tuple[PlaybookEntry, ...]
    """By number."""
    dropped: tuple[PlaybookEntry, ...]
    """The least valuable first."""
    tokens: int
    """What the kept entries take in the prompt, markers and headings included; 0 when none is kept."""


def within_limit(
    entries: Sequence[PlaybookEntry],
    sections: Sequence[str],
    *,
    max_tokens: int,
    version: int,
    next_number: int,
    count_tokens: CountTokens = approximate_tokens,
) -> Limited:
    """Drop the least valuable entries until the rendered playbook takes at most `max_tokens`.

    Args:
        entries: In any order.
        sections: In display order; those left without an entry are not counted.
        max_tokens: The limit on the rendered text, at least 1.
        version: The last commit; entries created in it are the new ones.
        next_number: What the rendered text carries along.
        count_tokens: How the model counts; any function that does not shrink when text is added.
    """
    doomed = sorted(entries, key=lambda entry: _value(entry, version))

    def size(dropped: int) -> int:
        kept = doomed[dropped:]
        used = [section for section in sections if any(entry.section == section for entry in kept)]
        return count_tokens(render_block(kept, used, next_number)) if kept else 0

    low, high = 0, len(doomed)
    while low < high:
        middle = (low + high) // 2
        if size(middle) <= max_tokens:
            high = middle
        else:
            low = middle + 1
    kept = tuple(sorted(doomed[low:], key=lambda entry: (entry.number, entry.id)))
    return Limited(kept=kept, dropped=tuple(doomed[:low]), tokens=size(low))


def _value(entry: PlaybookEntry, version: int) -> tuple[int, bool, int, int, str]:
    """Order entries by what the playbook loses with them: the smallest goes first, the older of equals."""
    is_new = entry.created == version
    return (entry.net_votes + is_new, is_new, entry.helpful, len(entry.record_ids), f"{entry.number:012d}{entry.id}")
