"""What a run of Combee leaves behind: rounds, costs, the controller's fit, provenance, and why it stopped."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from dspy_combee.aggregation.base import CallRecord
from dspy_combee.batch_size import DelayFit
from dspy_combee.provenance import Provenance
from dspy_combee.runtime.budget import Spend
from dspy_combee.runtime.run_log import write_atomically

StopReason = Literal["perfect", "budget", "no_improvement", "interrupted", "error", "stopped", "completed"]
"""Why a run ended: a perfect validation score, the budget, no better candidate for `patience` rounds, Ctrl-C, an
error, a stop callback of the user's own, or because all planned work was done."""


@dataclass(frozen=True, slots=True)
class Round:
    """One iteration: a batch, its reflections, the proposal, its test."""

    number: int
    """From 1, in the order in which they ran; goes on after a resume."""
    batch_size: int
    """Examples in the batch."""
    seconds: float
    """Wall time up to the test of the proposal on the batch."""
    batch_score_before: float | None = None
    """Mean score of the parent on the batch; None when nothing was scored."""
    batch_score_after: float | None = None
    """Mean score of the proposal on the batch; None when there was no proposal."""
    is_accepted: bool = False
    """Whether the proposal became a candidate."""
    val_score: float | None = None
    """Mean validation score of the accepted proposal."""
    components: tuple[str, ...] = ()
    """The predictors whose instruction was proposed."""
    calls: tuple[CallRecord, ...] = ()
    """The aggregation calls, level by level."""
    records_read: int = 0
    """Distinct records that the aggregation read."""
    uncited: tuple[str, ...] = ()
    """Records that no line of the proposal cites."""
    entries: int = 0
    """Learned lines in the proposal."""
    left_out: tuple[str, ...] = ()
    """Learned lines that had to go because of the length limit."""
    notes: tuple[str, ...] = ()
    """What went wrong or was stood in for, in words."""
    metric_calls: int | None = None
    """Examples scored since the run began, up to the end of this round; None when they were not counted."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Round:
        """Return the round that `to_dict` wrote."""
        lists = ("components", "uncited", "left_out", "notes")
        calls = tuple(
            CallRecord(**{**call, "record_ids": tuple(call["record_ids"])}) for call in values.get("calls", ())
        )
        return cls(**{**values, "calls": calls, **{name: tuple(values.get(name, ())) for name in lists}})


@dataclass(frozen=True, slots=True)
class CombeeResult:
    """The record of one `compile`. Nothing in it needs a model to be read."""

    stop_reason: StopReason
    rounds: tuple[Round, ...] = ()
    """All rounds, those before a resume included."""
    seconds: float = 0.0
    """Wall time of this `compile`."""
    spend: Spend = field(default_factory=Spend)
    """What the run has spent, earlier parts of a resumed run included."""
    spend_by_stage: Mapping[str, Spend] = field(default_factory=dict)
    batch_size: int | None = None
    """The batch size in force at the end."""
    fit: DelayFit | None = None
    """The controller's last fit; None when the batch size was given or could not be profiled."""
    provenance: Provenance = field(default_factory=Provenance)
    seed_score: float | None = None
    """Mean validation score of the student."""
    best_score: float | None = None
    """Mean validation score of the returned program."""
    unreached: Mapping[str, int] = field(default_factory=dict)
    """Predictors that were never called, with the number of rollouts in which they were not."""
    error: str = ""
    """What ended the run, when `stop_reason` is "error" or "interrupted"."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The settings and versions of the run."""
    longest_shared_span: str = ""
    """The longest stretch of what was learned that stands word for word in the train set; empty below 20 characters."""
    diff: str = ""
    """The learned instructions against the student's, as a unified diff."""
    best_program: Any = field(default=None, compare=False)
    """The program with the best validation score, without a validation the last; set also when `compile` raised."""
    last_program: Any = field(default=None, compare=False)
    """The program after the last round, where a run in rounds keeps it; it may have validated worse than the best."""

    @property
    def improvement(self) -> float | None:
        """Gain of the validation score over the student's; None when one of them is missing."""
        if self.seed_score is None or self.best_score is None:
            return None
        return self.best_score - self.seed_score

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the program, ready for JSON."""
        names = (
            "stop_reason",
            "seconds",
            "batch_size",
            "seed_score",
            "best_score",
            "error",
            "diff",
            "longest_shared_span",
        )
        return {
            **{name: getattr(self, name) for name in names},
            "rounds": [item.to_dict() for item in self.rounds],
            "spend": self.spend.to_dict(),
            "spend_by_stage": {name: spend.to_dict() for name, spend in self.spend_by_stage.items()},
            "fit": None if self.fit is None else {name: _finite(value) for name, value in asdict(self.fit).items()},
            "provenance": self.provenance.to_dict(),
            "unreached": dict(self.unreached),
            "config": dict(self.config),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict()` as JSON. The program is saved by its own `save`."""
        write_atomically(path, json.dumps(self.to_dict(), indent=1, default=str))

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a self-contained HTML page."""
        from dspy_combee.report.html import render_page

        write_atomically(path, render_page(self))

    def __repr__(self) -> str:
        """Return one line; `to_dict` has everything, a notebook shows a page."""
        scores = [None if score is None else round(score, 3) for score in (self.seed_score, self.best_score)]
        return (
            f"CombeeResult(stop_reason={self.stop_reason!r}, validation score {scores[0]} -> {scores[1]}, "
            f"{len(self.rounds)} rounds, {self.spend.metric_calls} metric calls, {self.spend.lm_calls} model calls, "
            f"{len(self.provenance.lines)} learned lines, {self.seconds:.1f} s)"
        )

    def _repr_html_(self) -> str:
        from dspy_combee.report.html import render_result

        return render_result(self)


def _finite(value: Any) -> Any:
    """Return the value, or None for a number that JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
