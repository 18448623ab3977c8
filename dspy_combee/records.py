"""Turn one reflective record into text for an aggregation call: readable, JSON-safe, bounded, nothing cut unseen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dspy_combee.truncation import cut_middle

IMAGE_PLACEHOLDER = "[image]"
_MEDIA = ("Image", "Audio", "File")


def render_record(record_id: str, record: Mapping[str, Any], *, max_chars: int | None = None) -> str:
    """Return a record as text headed by its id.

    Args:
        record_id: The id that the model is asked to cite.
        record: GEPA's shape: "Inputs", "Generated Outputs", "Feedback"; other keys are rendered as well.
        max_chars: The longest text wanted; the longest parts are cut in the middle first, with a marker.
    """
    parts = [(key, render_value(value)) for key, value in record.items()]
    if max_chars is not None:
        parts = _shorten(parts, max_chars - len(record_id) - 4)
    return _sendable(f"[{record_id}]\n" + "\n".join(f"{key}: {text}" for key, text in parts))


def sendable_record(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record in its own shape, every text that no provider could receive made one that it can."""
    whole = render_value(record)
    if _sendable(whole) == whole:
        return record
    return _map_leaves(record, lambda text: None if _sendable(text) == text else _sendable(text))


def render_value(value: Any) -> str:
    """Return any value a trace may hold as text: images as a placeholder, histories turn by turn."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return "; ".join(f"{key} = {render_value(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(render_value(item) for item in value)
    kind = type(value).__name__
    if kind in _MEDIA:
        return IMAGE_PLACEHOLDER if kind == "Image" else f"[{kind.lower()}]"
    if kind == "History":
        return " | ".join(render_value(message) for message in value.messages)
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - whatever a user's own class raises, its record has more to say
        return f"[{kind}]"


def holds_media(value: Any) -> bool:
    """Whether a value is or holds one that `render_value` shows in another way than its own text."""
    if isinstance(value, Mapping):
        return any(map(holds_media, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_media, value))
    return type(value).__name__ in (*_MEDIA, "History")


def shorten_record(record: Mapping[str, Any], max_chars: int) -> Mapping[str, Any]:
    """Return a record whose text is about as long as wanted, in its own shape; itself when it is short enough.

    Its longest texts are cut to one common length, in the middle and with a marker.
    """
    total = len(render_record("", record))
    if total <= max_chars:
        return record
    lengths: list[int] = []
    _map_leaves(record, lambda text: lengths.append(len(text)))
    limit = _common_limit(lengths, max_chars - (total - sum(lengths)))
    return _map_leaves(record, lambda text: cut_middle(text, limit) if len(text) > limit else None)


def _sendable(text: str) -> str:
    # One lone surrogate, as in the output of a tool, and no provider could receive the other records of a group either.
    return text.encode("utf-8", "replace").decode("utf-8")


def _map_leaves(value: Any, replace: Callable[[str], str | None]) -> Any:
    """Return a copy in which each leaf for whose text `replace` gives another one is that text."""
    if isinstance(value, Mapping):
        return {key: _map_leaves(item, replace) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_leaves(item, replace) for item in value]
    shorter = replace(render_value(value))
    return value if shorter is None else shorter


def _shorten(parts: list[tuple[str, str]], max_chars: int) -> list[tuple[str, str]]:
    """Cut the longest parts to one common length so that all together fit; short parts stay whole."""
    room = max_chars - sum(len(key) + 3 for key, _ in parts)
    if sum(len(text) for _, text in parts) <= room:
        return parts
    limit = _common_limit([len(text) for _, text in parts], room)
    return [(key, cut_middle(text, limit)) for key, text in parts]


def _common_limit(lengths: Sequence[int], room: int) -> int:
    """Return the length to which the longest texts must be cut so that all fit into `room`; 60 at the least."""
    ascending = sorted(lengths)
    for index, length in enumerate(ascending):
        share = room // (len(ascending) - index)
        if length > share:
            return max(share, 60)
        room -= length
    return max(ascending, default=60)
