"""One JSON text for any value, the same in every process: what fingerprints are made of.

It is for comparing and for reading, not for loading back.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Mapping, Set
from datetime import date, time
from typing import Any

_MEMORY_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def stable_json(value: Any) -> str:
    """Return JSON with sorted keys, for values of any type.

    Examples and predictions of DSPy, pydantic models, dataclasses and arrays are shown by their contents, functions and
    classes by their names, sets in sorted order, and anything else by its `repr` without memory addresses.
    """
    return json.dumps(to_plain(value), sort_keys=True, ensure_ascii=True)


def to_plain(value: Any) -> Any:
    """Return the value made of dicts with text keys, lists, text, numbers, booleans and None only."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return _plain_mapping(value)
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, Set):
        return sorted((to_plain(item) for item in value), key=_sort_key)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, type) or (callable(value) and hasattr(value, "__module__") and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    contents = _contents(value)
    return _MEMORY_ADDRESS.sub("", repr(value)) if contents is None else contents


def _plain_mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    # Keys that are not text keep their type visible: 1 and "1" are different keys.
    return {key if isinstance(key, str) else stable_json([key]): to_plain(item) for key, item in value.items()}


def _contents(value: Any) -> Any:
    """Return what a known kind of container holds; None for anything else."""
    input_keys = getattr(value, "_input_keys", None)
    if callable(getattr(value, "toDict", None)):  # dspy.Example and its subclasses
        fields = _plain_mapping(dict(value.items()))
        return fields if input_keys is None else {"fields": fields, "inputs": sorted(input_keys)}
    if callable(getattr(value, "model_dump", None)):
        return to_plain(value.model_dump())
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if callable(getattr(value, "tolist", None)):  # arrays and their scalars; their repr leaves out the middle
        return to_plain(value.tolist())
    return None


def _sort_key(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True)
