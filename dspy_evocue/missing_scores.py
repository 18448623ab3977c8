"""Why a score is missing, as a type. It is recorded where the failure happens and never read out of a message. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MissingKind = Literal["model", "metric", "program", "environment", "replay", "control_check", "not_run"]
"""Whose fault it is: a language model's provider (an outage), the metric, the program (it raised, and `failure_score`
is None), the environment (it raised), a rerun that left its recording, a world not restored, or a budget's end."""


@dataclass(frozen=True, slots=True)
class MissingScore:
    """Why a run has no score. Missing is not zero."""

    kind: MissingKind
    reason: str
    """What happened, in words; for readers only."""

    def __str__(self) -> str:
        """Return the words."""
        return self.reason
