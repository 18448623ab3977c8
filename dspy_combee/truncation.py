"""Cut long text where the cut can be seen: head and tail stay, a marker says how much went from the middle."""

from __future__ import annotations


def cut_middle(text: str, max_chars: int) -> str:
    """Return the text, or its head and tail around a marker, in at most `max_chars` characters.

    Raises:
        ValueError: `max_chars` leaves no room for the marker (below 60).
    """
    if max_chars < 60:
        raise ValueError(f"max_chars must be at least 60, got {max_chars}")
    if len(text) <= max_chars:
        return text
    room = max_chars - len(_marker(len(text), len(text)))  # the longest that the marker can be
    head = (room * 2) // 3
    return text[:head] + _marker(len(text) - room, len(text)) + text[len(text) - (room - head) :]


def _marker(missing: int, total: int) -> str:
    return f" [... {missing:,} of {total:,} characters cut ...] "
