"""Fingerprints: whether two values are the same for a replay, in this process or another.

A replay compares what goes into a call, and what comes back, with the recording. Values are compared by a canonical
text, so that object identity, dictionary order, memory addresses and the frames of a traceback do not count.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_FRAMES = re.compile(r"(?<=Traceback \(most recent call last\):\n)(?: {2}.*\n)+")
_MAX_DEPTH = 40


def fingerprint(value: Any) -> str:
    """Return 16 hexadecimal digits that equal values share."""
    text = json.dumps(canonical(value), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


def canonical(value: Any, depth: int = 0) -> Any:
    """Return the value as JSON that says all of it that a prompt could show."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return _ADDRESS.sub("", _FRAMES.sub("", value))
    if isinstance(value, float):
        return repr(value)
    if depth > _MAX_DEPTH:
        return "..."
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, Mapping):
        return {str(key): canonical(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(canonical(item, depth + 1), sort_keys=True) for item in value)
    return _canonical_object(value, depth)


def _canonical_object(value: Any, depth: int) -> Any:
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    content = _content(value)
    if content is None:
        return _ADDRESS.sub("", repr(value))
    return {type(value).__name__: canonical(content, depth + 1)}


def _content(value: Any) -> Mapping[str, Any] | None:
    """Return what an object holds: pydantic models, dataclasses, and DSPy's examples and predictions."""
    if hasattr(type(value), "model_fields"):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if is_dataclass(value):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if hasattr(value, "toDict"):
        return dict(value.items())
    return None
