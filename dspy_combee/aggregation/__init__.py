"""The family of aggregations, by the names that `Combee(aggregation=...)` takes."""

from __future__ import annotations

from dspy_combee.aggregation.base import Aggregation
from dspy_combee.aggregation.scan import DEFAULT_REFLECTION_CHARS, Scan
from dspy_combee.aggregation.single_pass import SinglePass

NAMES = ("scan", "single_pass")


def make_aggregation(
    aggregation: str | Aggregation,
    *,
    duplication: int = 2,
    group_size: int | None = None,
    max_fan_in: int | None = None,
    max_reflection_chars: int | None = None,
) -> Aggregation:
    """Return the aggregation of that name with these settings, or the object that was given.

    Raises:
        TypeError: it is neither a name nor an `Aggregation`.
        ValueError: the name is unknown, or a setting is out of range.
    """
    scan = Scan(
        duplication=duplication,
        group_size=group_size,
        max_fan_in=max_fan_in,
        max_reflection_chars=DEFAULT_REFLECTION_CHARS if max_reflection_chars is None else max_reflection_chars,
    )
    if isinstance(aggregation, str):
        if aggregation not in NAMES:
            raise ValueError(f"aggregation must be one of {', '.join(NAMES)}, or an Aggregation; got {aggregation!r}")
        return scan if aggregation == "scan" else SinglePass(max_reflection_chars=max_reflection_chars)
    if not isinstance(aggregation, Aggregation):
        raise TypeError(f"aggregation must be a name or an Aggregation, got {type(aggregation).__name__}")
    return aggregation
