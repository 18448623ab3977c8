"""What an earlier part of a run has left in its directory, for the part that goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import dspy

from dspy_combee.instructions import instructions_of
from dspy_combee.learners.gepa_state import check_checkpoint, read_checkpoint
from dspy_combee.lessons import Lesson
from dspy_combee.provenance import RecordSource
from dspy_combee.report.result import Round
from dspy_combee.runtime.budget import Spend
from dspy_combee.runtime.run_log import Fingerprint, RunLog, check_fingerprint

logger = logging.getLogger(__name__)

ROUNDS_FILE = "combee_rounds.jsonl"


@dataclass(frozen=True, slots=True)
class Earlier:
    """What is known of earlier parts of the run; empty for a new one."""

    is_resumed: bool = False
    rounds: tuple[Round, ...] = ()
    timings: tuple[tuple[int, float | None], ...] = ()
    """(batch size, usable seconds) of each round, for the batch-size controller."""
    lessons: Mapping[str, tuple[Lesson, ...]] = field(default_factory=dict)
    """By component: every lesson that was ever proposed, with its records."""
    sources: Mapping[str, RecordSource] = field(default_factory=dict)
    """The records that an aggregation has read."""
    spend: Spend | None = None
    next_number: int = 1
    """The first record number that no record has had."""
    iteration: int | None = None
    """`i` of GEPA's checkpoint; None when there is none."""


def read_earlier(log_dir: str | None, program: dspy.Module, val_size: int, fingerprint: Fingerprint) -> Earlier:
    """Read what is in a run's directory and make sure that it is this run's.

    Raises:
        ResumeMismatchError: it belongs to a run with another program, data or configuration.
        RunLogError: it holds a checkpoint that cannot be read.
    """
    if log_dir is None:
        return Earlier()
    checkpoint = read_checkpoint(log_dir)
    if checkpoint is not None:
        check_checkpoint(checkpoint, instructions_of(program), val_size, log_dir)
    check_fingerprint(log_dir, fingerprint)
    if checkpoint is None:
        return Earlier()
    written = list(RunLog(log_dir, name=ROUNDS_FILE).read())
    # A round that ended after the checkpoint is run again, and then stands in the log twice: the later one counts.
    by_number = {record["round"]["number"]: record for record in written}
    records = [by_number[number] for number in sorted(by_number) if number <= checkpoint["i"] + 1]
    logger.info(
        "Resumed at round %d, %d metric calls already spent.", checkpoint["i"] + 2, checkpoint["total_num_evals"]
    )
    return Earlier(
        is_resumed=True,
        rounds=tuple(Round.from_dict(record["round"]) for record in records),
        timings=tuple((record["round"]["batch_size"], record["usable_seconds"]) for record in records),
        lessons=_lessons(records),
        sources={source["record_id"]: RecordSource(**source) for record in records for source in record["sources"]},
        spend=Spend.from_dict(written[-1]["spend"]) if written else None,
        next_number=records[-1]["next_number"] if records else 1,
        iteration=checkpoint["i"],
    )


def _lessons(records: list[dict]) -> dict[str, tuple[Lesson, ...]]:
    lessons: dict[str, list[Lesson]] = {}
    for record in records:
        for component, known in record["lessons"].items():
            lessons.setdefault(component, []).extend(Lesson(text, tuple(ids)) for text, ids in known)
    return {component: tuple(known) for component, known in lessons.items()}
