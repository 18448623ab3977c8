"""Which records of a batch an aggregation reads, under which ids."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspy_combee.learners.base import Reflection
from dspy_combee.learners.gepa_evidence import SourcedFeedback
from dspy_combee.provenance import RecordSource
from dspy_combee.records import render_record, sendable_record, shorten_record
from dspy_combee.scan import SMALL_BATCH


@dataclass(frozen=True, slots=True)
class ReflectiveRecord:
    """One of GEPA's records with its id."""

    record_id: str
    record: Mapping[str, Any]
    source: RecordSource | None
    """None for records of a run that Combee does not observe (`dspy.GEPA(instruction_proposer=...)`)."""


def identify(records: Sequence[Mapping[str, Any]], numbers: Iterator[int]) -> list[ReflectiveRecord]:
    """Give each record the id of its source, or the next number where the source is not known."""
    identified: list[ReflectiveRecord] = []
    for record in records:
        feedback = record.get("Feedback")
        source = feedback.source if isinstance(feedback, SourcedFeedback) else None
        identified.append(ReflectiveRecord(source.record_id if source else f"r{next(numbers)}", record, source))
    return identified


def without_perfect(records: Sequence[ReflectiveRecord], perfect_score: float | None) -> list[ReflectiveRecord]:
    """Return the records that can teach something: a perfect rollout in a large batch only crowds the others out.

    Small batches are read whole, and so is a batch that is perfect throughout.
    """
    if perfect_score is None or len(records) <= SMALL_BATCH:
        return list(records)
    imperfect = [
        record
        for record in records
        if record.source is None or record.source.score is None or record.source.score < perfect_score
    ]
    return imperfect or list(records)


def as_reflections(
    records: Sequence[ReflectiveRecord], component: str, *, max_chars: int | None = None
) -> tuple[Reflection, ...]:
    """Return the records as an aggregation reads them, none longer than `max_chars` as text."""
    reflections: list[Reflection] = []
    for record in records:
        details = sendable_record(record.record)
        text = render_record(record.record_id, details)
        if max_chars is not None and len(text) > max_chars:
            details = shorten_record(details, max_chars - len(record.record_id) - 4)
            text = render_record(record.record_id, details, max_chars=max_chars)
        score = record.source.score if record.source else None
        reflections.append(Reflection(text, (record.record_id,), component, score=score, details=details))
    return tuple(reflections)


def counting(start: int = 1) -> Iterator[int]:
    """Return record numbers from `start` upwards."""
    return itertools.count(start)
