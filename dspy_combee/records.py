"""Turn one reflective record into text for an aggregation call: readable, JSON-safe, bounded, nothing cut unseen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspy_combee.truncation import cut_middle

IMAGE_PLACEHOLDER = "[image]"


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
    return f"[{record_id}]\n" + "\n".join(f"{key}: {text}" for key, text in parts)


def render_value(value: Any) -> str:
    """Return any value a trace may hold as text: images as a placeholder, histories turn by turn."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return "; ".join(f"{key} = {render_value(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(render_value(item) for item in value)
    kind = type(value).__name__
    if kind in ("Image", "Audio", "File"):
        return IMAGE_PLACEHOLDER if kind == "Image" else f"[{kind.lower()}]"
    if kind == "History":
        return " | ".join(render_value(message) for message in value.messages)
    return str(value)


def _shorten(parts: list[tuple[str, str]], max_chars: int) -> list[tuple[str, str]]:
    """Cut the longest parts to one common length so that all together fit; short parts stay whole."""
    room = max_chars - sum(len(key) + 3 for key, _ in parts)
    if sum(len(text) for _, text in parts) <= room:
        return parts
    lengths = sorted(len(text) for _, text in parts)
    for index, length in enumerate(lengths):
        share = room // (len(lengths) - index)
        if length > share:
            limit = max(share, 60)
            return [(key, cut_middle(text, limit)) for key, text in parts]
        room -= length
    return parts
