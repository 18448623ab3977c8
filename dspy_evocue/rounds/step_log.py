"""Base runs and the learner's own model calls on disk, so that a resumed run finds what it has paid for.

Trials, confirmations and decisions are in the trial memory; this log holds everything else that costs something.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dspy_combee.runtime.budget import Spend
from dspy_combee.runtime.run_log import RunLog

FILE_NAME = "steps.jsonl"


@dataclass(frozen=True, slots=True)
class KeptStep:
    """What one step gave and took."""

    key: str
    """Which step of the run it is; unique in a log."""
    stage: str
    content: Mapping[str, Any]
    """Plain JSON values."""
    spend: Spend


class StepLog:
    """The steps of a run by key. Safe to use from several threads."""

    def __init__(self, directory: str | None) -> None:
        """Read what the directory holds; without one, nothing is kept on disk."""
        self._log = None if directory is None else RunLog(directory, name=FILE_NAME)
        self._lock = threading.Lock()
        self._steps: dict[str, KeptStep] = {}
        for record in () if self._log is None else self._log.read():
            step = KeptStep(record["key"], record["stage"], record["content"], Spend.from_dict(record["spend"]))
            self._steps.setdefault(step.key, step)

    @property
    def steps(self) -> tuple[KeptStep, ...]:
        """All steps, oldest first."""
        with self._lock:
            return tuple(self._steps.values())

    def find(self, key: str) -> KeptStep | None:
        """Return the step under this key."""
        with self._lock:
            return self._steps.get(key)

    def keep(self, step: KeptStep) -> None:
        """Keep a step; it is on disk when this returns."""
        with self._lock:
            if self._log is not None:
                self._log.append(
                    {
                        "key": step.key,
                        "stage": step.stage,
                        "content": dict(step.content),
                        "spend": step.spend.to_dict(),
                    }
                )
            self._steps.setdefault(step.key, step)
