"""The family of aggregations, by the names that `Combee(aggregation=...)` takes."""

from __future__ import annotations

from dspy_combee.aggregation.base import Aggregation
from dspy_combee.aggregation.hierarchical import Hierarchical
from dspy_combee.aggregation.salvage import Salvage
from dspy_combee.aggregation.scan import DEFAULT_REFLECTION_CHARS, Scan
from dspy_combee.aggregation.single_pass import SinglePass
from dspy_combee.aggregation.summarize import Summarize
from dspy_combee.aggregation.top_k import TopK

_CONDENSING = {"top_k": TopK, "summarize": Summarize, "hierarchical": Hierarchical}
NAMES = ("scan", "single_pass", *_CONDENSING)


def make_aggregation(
    aggregation: str | Aggregation,
    *,
    duplication: int = 2,
    group_size: int | None = None,
    max_fan_in: int | None = None,
    max_reflection_chars: int | None = None,
    salvage: bool = False,
) -> Aggregation:
    """Return the aggregation of that name with these settings, or the object that was given.

    `salvage` gives a scan one more pass over the records that no line cites.

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
        if aggregation == "single_pass":
            return SinglePass(max_reflection_chars=max_reflection_chars)
        if aggregation == "scan":
            return Salvage(scan) if salvage else scan
        return _CONDENSING[aggregation]()
    if not isinstance(aggregation, Aggregation):
        raise TypeError(f"aggregation must be a name or an Aggregation, got {type(aggregation).__name__}")
    return aggregation
