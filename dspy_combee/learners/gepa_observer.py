"""Watch a GEPA run through its callbacks: which batch, which rollouts, what came of it, how long it took.

GEPA swallows what a callback raises, so nothing here decides anything: it keeps records for those who do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dspy_combee.learners.batch_control import BatchControl
from dspy_combee.learners.gepa_components import reached_components
from dspy_combee.learners.gepa_crashes import CrashWatch, Rollouts, crashed_records
from dspy_combee.learners.gepa_evidence import EvidenceLog
from dspy_combee.learners.gepa_proposer import ProposalReport
from dspy_combee.report.result import Round
from dspy_combee.runtime.budget import Meter

logger = logging.getLogger(__name__)

Pending = tuple[Mapping[str, str], Mapping[str, Sequence[Any]], Sequence[str]]


@dataclass(slots=True)
class _Iteration:
    """The iteration in progress."""

    number: int
    began: float
    cached_calls: int
    parent_inputs: list[Sequence[Any]] = field(default_factory=list)
    rollouts: list[Rollouts] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    selected: Rollouts | None = None
    pending: list[Pending] = field(default_factory=list)
    reports: list[ProposalReport] = field(default_factory=list)
    seconds: float | None = None
    is_merge: bool = False
    is_accepted: bool = False
    val_score: float | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    """An iteration that GEPA has left, by itself or by a fault."""

    finished: Round
    usable_seconds: float | None
    """What the controller may take for the time of a batch; None where it says nothing."""
    proposal_errors: tuple[str, ...]
    """Why every proposal of the iteration failed; empty when one did not, or none was made."""


class GepaObserver:
    """A GEPA callback that turns events into rounds."""

    def __init__(
        self,
        *,
        control: BatchControl,
        meter: Meter,
        crashes: CrashWatch,
        evidence: EvidenceLog,
        on_round: Callable[[Round, float | None], None],
        on_state_saved: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the collaborators.

        Args:
            control: Told of every iteration's size and time.
            meter: Says whether answers came from the cache.
            crashes: Knows the error texts of crashed examples.
            evidence: Gives crashed records their ids.
            on_round: Called with each finished round and its usable seconds (None where they say nothing).
            on_state_saved: Called when GEPA has written its state.
            clock: Where the seconds come from.
        """
        self.state: Any = None
        self.rounds: list[Round] = []
        self.reports: list[ProposalReport] = []
        self.seed_score: float | None = None
        self.failed_proposals = 0
        self.last_proposal_error = ""
        self.unreached: dict[str, int] = {}
        self._reached: set[str] = set()
        self._control = control
        self._meter = meter
        self._crashes = crashes
        self._evidence = evidence
        self._on_round = on_round
        self._on_state_saved = on_state_saved
        self._clock = clock
        self._now: _Iteration | None = None
        self._ended: _Ended | None = None
        self._rollouts_of: dict[int, Rollouts] = {}
        self._crashed: dict[int, list[dict[str, Any]]] = {}

    def select_rollouts(self, trajectories: Sequence[Any], candidate: Mapping[str, str]) -> None:
        """Note whose records GEPA builds next (told by the component selector, which it asks just before)."""
        self._count_unreached(trajectories, list(candidate))
        if self._now is not None:
            self._now.selected = next((r for r in self._now.rollouts if r.trajectories is trajectories), None)

    def pending(self) -> list[Pending]:
        """Return all proposals that GEPA has announced for this iteration."""
        return list(self._now.pending) if self._now is not None else []

    def crashed_records(self, dataset: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
        """Return the records of examples that crashed in the rollouts behind a reflective dataset."""
        key = _dataset_key(dataset)
        rollouts = self._rollouts_of.get(key)
        if rollouts is None:
            return []
        if key not in self._crashed:
            self._crashed[key] = crashed_records(rollouts, self._crashes, self._evidence)
        return self._crashed[key]

    def note_report(self, report: ProposalReport) -> None:
        """Take note of what a proposal did to a component."""
        self.reports.append(report)
        if self._now is not None:
            self._now.reports.append(report)
        for record in report.records:
            if record.source is not None:
                self._evidence.mark_read(record.source)

    def settle(self) -> None:
        """Take the last iteration into the records: it has come to its end, neither interrupted nor failed."""
        ended, self._ended = self._ended, None
        if ended is None:
            return
        if ended.finished.batch_size:
            self._control.observe(batch_size=ended.finished.batch_size, seconds=ended.usable_seconds)
        if ended.proposal_errors:
            self.failed_proposals += 1
            self.last_proposal_error = ended.proposal_errors[-1]
        elif ended.finished.calls:
            self.failed_proposals = 0
        self.rounds.append(ended.finished)
        self._on_round(ended.finished, ended.usable_seconds)
        logger.info("%s", describe(ended.finished))

    def _count_unreached(self, trajectories: Sequence[Any], names: Sequence[str]) -> None:
        """Count, for each predictor that no rollout ever called, the rollouts that passed it by."""
        called = reached_components(trajectories)
        for name in names:
            if name in called:
                self._reached.add(name)
                self.unreached.pop(name, None)
            elif name not in self._reached:
                self.unreached[name] = self.unreached.get(name, 0) + len(trajectories)

    def on_optimization_start(self, event: Mapping[str, Any]) -> None:
        """Count what comes next as validation: that of the student."""
        self._meter.stage_outside = "validate"

    def on_iteration_start(self, event: Mapping[str, Any]) -> None:
        """Open a round."""
        self._meter.stage_outside = "generate"
        self.state = event["state"]
        self._rollouts_of.clear()
        self._crashed.clear()
        self._now = _Iteration(event["iteration"], self._clock(), self._meter.spend.cached_calls)

    def on_evaluation_start(self, event: Mapping[str, Any]) -> None:
        """Remember the examples of a parent's evaluation."""
        self._meter.stage_outside = "generate"
        if self._now is not None and event["candidate_idx"] is not None:
            self._now.parent_inputs.append(event["inputs"])

    def on_evaluation_end(self, event: Mapping[str, Any]) -> None:
        """Pair a parent's rollouts with its examples; time a child's."""
        if self._now is None:
            return
        if event["candidate_idx"] is None:
            # GEPA announces evaluations on a batch only; what it scores after a child's is the validation set.
            self._meter.stage_outside = "validate"
            self._now.after.extend(event["scores"])
            self._now.seconds = self._clock() - self._now.began
            return
        examples = self._now.parent_inputs[len(self._now.rollouts)]
        self._now.rollouts.append(Rollouts(examples, event["trajectories"] or []))
        self._now.before.extend(event["scores"])

    def on_proposal_start(self, event: Mapping[str, Any]) -> None:
        """Link the announced records with the rollouts they come from."""
        if self._now is None:
            return
        dataset = event["reflective_dataset"]
        self._now.pending.append((event["parent_candidate"], dataset, event["components"]))
        if self._now.selected is not None:
            self._rollouts_of[_dataset_key(dataset)] = self._now.selected

    def on_merge_attempted(self, event: Mapping[str, Any]) -> None:
        """Mark the round as a merge: its time says nothing about batches."""
        if self._now is not None:
            self._now.is_merge = True

    def on_candidate_accepted(self, event: Mapping[str, Any]) -> None:
        """Mark the round as accepted."""
        if self._now is not None:
            self._now.is_accepted = True

    def on_valset_evaluated(self, event: Mapping[str, Any]) -> None:
        """Keep the validation score of the seed and of accepted proposals."""
        if event["iteration"] == 0:
            self.seed_score = event["average_score"]
        elif self._now is not None:
            self._now.val_score = event["average_score"]

    def on_state_saved(self, event: Mapping[str, Any]) -> None:
        """Pass on that GEPA has a new checkpoint."""
        self._on_state_saved()

    def on_iteration_end(self, event: Mapping[str, Any]) -> None:
        """Close the round. GEPA says so after a fault as well, so it counts only once `settle` is called."""
        now, self._now = self._now, None
        if now is None:
            return
        batch_size = len(now.rollouts[0].examples) if now.rollouts else 0
        is_warm = self._meter.spend.cached_calls > now.cached_calls
        usable = now.seconds if now.seconds and not now.is_merge and not is_warm else None
        finished = replace(
            _as_round(now, batch_size, now.seconds or self._clock() - now.began),
            metric_calls=self._meter.spend.metric_calls,
        )
        errors = tuple(report.error for report in now.reports if report.has_failed)
        self._ended = _Ended(finished, usable, errors if len(errors) == len(now.reports) else ())


def describe(finished: Round) -> str:
    """Return one line about a round, with its numbers."""
    parts = [f"Round {finished.number}: batch {finished.batch_size}, {finished.seconds:.1f} s"]
    if finished.batch_score_before is not None and finished.batch_score_after is not None:
        parts.append(f"batch score {finished.batch_score_before:.3f} -> {finished.batch_score_after:.3f}")
    if finished.calls:
        parts.append(f"{finished.records_read} records in {len(finished.calls)} aggregation calls")
    if finished.entries:
        parts.append(f"{finished.entries} lessons")
    parts.append("accepted" if finished.is_accepted else "not accepted")
    if finished.val_score is not None:
        parts.append(f"validation {finished.val_score:.3f}")
    parts.extend(finished.notes)
    return ", ".join(parts)


def _as_round(now: _Iteration, batch_size: int, seconds: float) -> Round:
    aggregated = [report.aggregated for report in now.reports if report.aggregated is not None]
    notes = [result.note for result in aggregated if result.note]
    notes.extend(f"{report.component}: {report.error}" for report in now.reports if report.error)
    return Round(
        number=now.number,
        batch_size=batch_size,
        seconds=seconds,
        batch_score_before=sum(now.before) / len(now.before) if now.before else None,
        batch_score_after=sum(now.after) / len(now.after) if now.after else None,
        is_accepted=now.is_accepted,
        val_score=now.val_score if now.is_accepted else None,
        components=tuple(report.component for report in now.reports if report.text is not None),
        calls=tuple(call for result in aggregated for call in result.calls),
        records_read=len({record.record_id for report in now.reports for record in report.records}),
        uncited=tuple(rid for result in aggregated for rid in result.uncited),
        entries=sum(len(report.lessons) for report in now.reports),
        left_out=tuple(lesson.text for report in now.reports for lesson in report.left_out),
        notes=tuple(("merge of two candidates", *notes) if now.is_merge else notes),
    )


def _dataset_key(dataset: Mapping[str, Sequence[Any]]) -> int:
    """Identify a reflective dataset: GEPA shows callbacks a copy of it that shares the records' values."""
    for records in dataset.values():
        for record in records:
            return id(record["Inputs"])
    return 0
