"""What a run of EvoCUE leaves behind: candidates, trials, rules, decisions, costs, and why it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dspy_combee.report.result import StopReason
from dspy_combee.runtime.budget import Spend
from dspy_combee.runtime.run_log import write_atomically
from dspy_evocue.acceptance import Decision
from dspy_evocue.comparison import ResultIdentity
from dspy_evocue.edits import Edit
from dspy_evocue.proposal_checks import SiteUse
from dspy_evocue.report.explain import explain_result
from dspy_evocue.rules import FittedRule
from dspy_evocue.trial_record import TrialRecord


@dataclass(frozen=True, slots=True)
class CandidateOutcome:
    """One candidate of a round: what was proposed, how its trials went, and what became of it."""

    edit_id: str
    """As it was tried, before a rule was fitted."""
    edit: Edit
    """With its rule."""
    expected_effect: str
    cited_tasks: tuple[str, ...]
    trials: tuple[TrialRecord, ...]
    planned_trials: int
    """More than there are trials when it was stopped early."""
    fitted: FittedRule | None
    """The best rule, whether it passes or not."""
    passed: bool
    reason: str
    """What the trials say, in words."""
    fate: str
    """"rejected" by its trials, "replaced" by a better one at the same entry, "not confirmed", "inherited", or
    "undecided" when the run ended first."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {
            "edit_id": self.edit_id,
            "edit": self.edit.to_dict(),
            "expected_effect": self.expected_effect,
            "cited_tasks": list(self.cited_tasks),
            "trials": [trial.to_dict() for trial in self.trials],
            "planned_trials": self.planned_trials,
            "fitted": None if self.fitted is None else {**asdict(self.fitted), "rule": self.fitted.rule.to_dict()},
            "passed": self.passed,
            "reason": self.reason,
            "fate": self.fate,
        }


@dataclass(frozen=True, slots=True)
class ConfirmationOutcome:
    """The comparison of a round's compiled program with its parent on tasks that nothing was learned from."""

    pairs: tuple[TrialRecord, ...]
    planned_pairs: int
    """The most that would have been run."""
    decision: Decision
    edit_ids: tuple[str, ...]
    """The candidates that were compiled together."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {
            "pairs": [pair.to_dict() for pair in self.pairs],
            "planned_pairs": self.planned_pairs,
            "decision": self.decision.to_dict(),
            "edit_ids": list(self.edit_ids),
        }


@dataclass(frozen=True, slots=True)
class Round:
    """One round: what the parent did, what was proposed, tried and confirmed."""

    number: int
    """From 1."""
    parent_version: str
    """The program that the round started from."""
    base_scores: Mapping[str, float | None]
    """The parent's score on each recorded task; None where it is missing."""
    sites: tuple[SiteUse, ...] = ()
    """The entries that the parent used."""
    diagnoses: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with each failed task, by its residual goals."""
    candidates: tuple[CandidateOutcome, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    """Proposals that the checks refused: text and reasons."""
    confirmation: ConfirmationOutcome | None = None
    notes: tuple[str, ...] = ()
    """What went otherwise than planned, in words."""

    @property
    def inherited(self) -> tuple[Edit, ...]:
        """The edits that later rounds start with."""
        return tuple(one.edit for one in self.candidates if one.fate == "inherited")

    @property
    def mean_base_score(self) -> float | None:
        """The parent's mean score on the tasks that have one."""
        known = [score for score in self.base_scores.values() if score is not None]
        return sum(known) / len(known) if known else None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {
            "number": self.number,
            "parent_version": self.parent_version,
            "base_scores": dict(self.base_scores),
            "sites": [asdict(site) for site in self.sites],
            "diagnoses": dict(self.diagnoses),
            "candidates": [one.to_dict() for one in self.candidates],
            "refused": [list(one) for one in self.refused],
            "confirmation": None if self.confirmation is None else self.confirmation.to_dict(),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Savings:
    """What checkpoints and early stopping saved."""

    prefix_calls: int
    """Model calls before the checkpoints that two full runs a trial would have made."""
    prefix_tokens: int
    trials_not_run: int
    """Trials of candidates that were stopped early."""
    pairs_not_run: int
    """Confirmation pairs that a decision did not need."""


@dataclass(frozen=True, slots=True)
class EvoCUEResult:
    """The record of one `compile`. Nothing in it needs a model to be read."""

    stop_reason: StopReason
    rounds: tuple[Round, ...] = ()
    """All rounds, those before a resume included; the last one may be unfinished."""
    edits: tuple[Edit, ...] = ()
    """What was learned in this run and is attached to the returned program."""
    seconds: float = 0.0
    """Wall time of this `compile`."""
    spend: Spend = field(default_factory=Spend)
    """What the run has spent, earlier parts of a resumed run included."""
    spend_by_stage: Mapping[str, Spend] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What the user should know about the data, in words."""
    error: str = ""
    """What ended the run, when `stop_reason` is "error", "interrupted" or "budget"."""
    identity: ResultIdentity = field(default_factory=ResultIdentity)
    """Versions, seed, settings, and which tasks served for what (`compare(..., learned=identity.data_roles)`)."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the run."""
    longest_shared_span: str = ""
    """The longest stretch that the learned edits share with a task word for word: one may be copied; empty for none."""
    best_program: Any = field(default=None, compare=False)
    """The program as it was when the run ended; set also when `compile` raised."""

    @property
    def trials(self) -> tuple[TrialRecord, ...]:
        """The trials of all candidates, in order; confirmations are with their rounds."""
        return tuple(trial for one in self.rounds for candidate in one.candidates for trial in candidate.trials)

    @property
    def savings(self) -> Savings:
        """What checkpoints and early stopping saved, against full reruns of everything planned."""
        candidates = [candidate for one in self.rounds for candidate in one.candidates]
        confirmations = [one.confirmation for one in self.rounds if one.confirmation is not None]
        restored = [trial for trial in self.trials if trial.status in ("applied", "failed_attempt")]
        return Savings(
            prefix_calls=2 * sum(trial.prefix.lm_calls + trial.prefix.cached_calls for trial in restored),
            prefix_tokens=2 * sum(trial.prefix.total_tokens for trial in restored),
            trials_not_run=sum(one.planned_trials - len(one.trials) for one in candidates),
            pairs_not_run=sum(one.planned_pairs - len(one.pairs) for one in confirmations),
        )

    def explain(self) -> str:
        """Say in plain words what was tried, what came of it, and what the program has learned."""
        return explain_result(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the program, ready for JSON."""
        identity = self.identity
        return {
            "stop_reason": self.stop_reason,
            "rounds": [one.to_dict() for one in self.rounds],
            "edits": [{"id": edit.edit_id, **edit.to_dict()} for edit in self.edits],
            "seconds": self.seconds,
            "spend": self.spend.to_dict(),
            "spend_by_stage": {name: spend.to_dict() for name, spend in self.spend_by_stage.items()},
            "savings": asdict(self.savings),
            "notes": list(self.notes),
            "error": self.error,
            "identity": {
                "versions": dict(identity.versions),
                "seeds": list(identity.seeds),
                "config_hash": identity.config_hash,
                "data_roles": {role: list(ids) for role, ids in identity.data_roles.items()},
                "artifact_sha256": dict(identity.artifact_sha256),
            },
            "config": dict(self.config),
            "longest_shared_span": self.longest_shared_span,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict()` as JSON. The program is saved by its own `save`."""
        write_atomically(path, json.dumps(self.to_dict(), indent=1, default=str))

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a self-contained HTML page."""
        from dspy_evocue.report.result_html import result_page

        write_atomically(path, result_page(self))

    def _repr_html_(self) -> str:
        from dspy_evocue.report.result_html import result_html

        return result_html(self)
