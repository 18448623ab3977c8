"""What a run keeps on disk, so that a killed one goes on where it was and pays for nothing twice.

Three files: the checkpoint (replaced as a whole after each round), the rounds, and the records of the round that is
under way, each written as soon as its reflection is there. Without a directory nothing is kept.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspy_combee.learners.base import Reflection
from dspy_combee.rounds.records import RoundRecord
from dspy_combee.runtime.budget import Spend
from dspy_combee.runtime.run_log import RunLog, read_with_fallback, write_atomically

logger = logging.getLogger(__name__)

_CHECKPOINT = "checkpoint.json"


@dataclass(frozen=True, slots=True)
class Learned:
    """What one record gave: the score of its run and the reflections on it, or why there are none."""

    record_id: str
    score: float | None
    reflections: tuple[Reflection, ...]
    feedback: str = ""
    """The metric's words or the error text, cut when it is long."""
    error: str = ""
    """Why there is no prediction, score or reflection; empty when all went well."""
    is_recalled: bool = False
    """Whether an interrupted run had done it."""


class RunFiles:
    """The files of one run. Safe to use from several threads."""

    def __init__(self, directory: str | os.PathLike[str] | None) -> None:
        """Read what an earlier part of the run left behind.

        Raises:
            RunLogError: The directory cannot be written, or its checkpoint cannot be read.
        """
        self._directory = Path(directory) if directory is not None else None
        self._log = RunLog(directory, name="rounds.jsonl") if directory is not None else None
        self._recalled: dict[str, Mapping[str, Any]] = {}
        self._rounds: dict[int, RoundRecord] = {}
        for record in self._log.read() if self._log is not None else ():
            if record.get("kind") == "round":
                known = RoundRecord.from_dict(record["round"])
                self._rounds[known.index] = known
            elif record.get("kind") in ("learned", "validated"):
                self._recalled[record["key"]] = record

    @property
    def is_kept(self) -> bool:
        """Whether anything is kept."""
        return self._directory is not None

    def checkpoint(self) -> dict[str, Any] | None:
        """Return the last checkpoint; None when there is none."""
        if self._directory is None:
            return None
        try:
            return read_with_fallback(self._directory / _CHECKPOINT)
        except FileNotFoundError:
            return None

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        if self._directory is not None:
            write_atomically(self._directory / _CHECKPOINT, json.dumps(state))

    def rounds(self, count: int) -> list[RoundRecord]:
        """Return the first `count` rounds; those that a torn file lost are left out."""
        return [self._rounds[index] for index in range(count) if index in self._rounds]

    def add_round(self, record: RoundRecord) -> None:
        """Keep a finished round."""
        if self._log is not None:
            self._log.append({"kind": "round", "round": record.to_dict()})

    def recall(self, round_index: int, record_id: str) -> Learned | None:
        """Return what an interrupted run had learned from a record of this round; None when it had not."""
        found = self._recalled.get(f"{round_index}/{record_id}")
        if found is None:
            return None
        reflections = tuple(
            Reflection(**{**reflection, "record_ids": tuple(reflection["record_ids"])})
            for reflection in found["reflections"]
        )
        feedback = found.get("feedback", "")
        return Learned(record_id, found["score"], reflections, feedback, found["error"], is_recalled=True)

    def keep(self, round_index: int, learned: Learned) -> None:
        """Keep what was learned from a record, unless its reflections hold what JSON cannot."""
        if self._log is None or learned.is_recalled:
            return
        reflections = [
            {
                "text": r.text,
                "record_ids": r.record_ids,
                "component": r.component,
                "score": r.score,
                "details": r.details,
            }
            for r in learned.reflections
        ]
        key = f"{round_index}/{learned.record_id}"
        try:
            self._log.append(
                {
                    "kind": "learned",
                    "key": key,
                    "score": learned.score,
                    "feedback": learned.feedback,
                    "error": learned.error,
                    "reflections": reflections,
                }
            )
        except TypeError:
            logger.debug("The reflections on %s hold what JSON cannot: a resumed run makes them anew", key)

    def recall_score(self, round_index: int, example: int) -> float | None:
        """Return the score that an interrupted validation had found for an example; None when it had not."""
        found = self._recalled.get(f"{round_index}/validation/{example}")
        return None if found is None else found["score"]

    def keep_score(self, round_index: int, example: int, score: float) -> None:
        """Keep the score of one example of a validation under way."""
        key = f"{round_index}/validation/{example}"
        if self._log is not None and key not in self._recalled:
            self._recalled[key] = {"score": score}
            self._log.append({"kind": "validated", "key": key, "score": score})


def spent_before(directory: str | os.PathLike[str] | None) -> Spend:
    """Return what the earlier parts of a run had spent at their last checkpoint, for `Meter(already_spent=...)`."""
    state = RunFiles(directory).checkpoint() if directory is not None else None
    return Spend.from_dict(state["spend"]) if state else Spend()
