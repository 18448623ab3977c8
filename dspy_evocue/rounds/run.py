"""One compile of EvoCUE: set up or resume, run the rounds, and whatever happens leave a result behind.

A resumed run goes through the same rounds again and finds everything that was paid for under its key, so it decides
as before and pays only for what is left.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import dspy

from dspy_combee.copied_text import shared_with_train_set
from dspy_combee.errors import BudgetExhausted
from dspy_combee.report.result import StopReason
from dspy_combee.runtime.abort import Aborted, AbortSwitch
from dspy_combee.runtime.budget import Meter, Spend
from dspy_combee.runtime.execution.threads import default_num_workers
from dspy_combee.runtime.interrupt_watch import refusing_calls_when_closed
from dspy_combee.runtime.run_log import Fingerprint, check_fingerprint, fingerprint_run
from dspy_combee.runtime.stable_json import stable_json
from dspy_evocue.acceptance import Anytime
from dspy_evocue.artifact import Evolved, attach
from dspy_evocue.comparison import ResultIdentity
from dspy_evocue.edits import Edit
from dspy_evocue.environments import ForkingEnvironment
from dspy_evocue.episodes import program_key
from dspy_evocue.features import feature_name
from dspy_evocue.instrument import state_of
from dspy_evocue.memory import TrialMemory
from dspy_evocue.proposal_checks import ProposedEdit
from dspy_evocue.report.result import EvoCUEResult, Round
from dspy_evocue.rounds.base_runs import BaseRuns
from dspy_evocue.rounds.paid_steps import PaidSteps
from dspy_evocue.rounds.reflection import Reflection
from dspy_evocue.rounds.round import RoundParts, RoundRun
from dspy_evocue.rounds.scoring import CountedMetric
from dspy_evocue.rounds.settings import LearnerSettings
from dspy_evocue.rounds.step_log import StepLog
from dspy_evocue.rounds.tasks import TaskPools

logger = logging.getLogger(__name__)

_PACKAGES = ("dspy", "dspy-combee")


class LearnerRun:
    """The state of one compile. Built, run once, then read for its result."""

    def __init__(self, settings: LearnerSettings, student: dspy.Module, pools: TaskPools) -> None:
        """Check the directory and read what it holds; nothing is paid for.

        Raises:
            ResumeMismatchError: When `log_dir` belongs to another run.
        """
        self.result = EvoCUEResult(stop_reason="error")
        self._settings = settings
        self._student = student
        self._program = attach(student)
        self._pools = pools
        self._finished: list[Round] = []
        self._current: RoundRun | None = None
        self._abort = AbortSwitch()
        self._tried: list[ProposedEdit] = []
        is_resumed = settings.log_dir is not None and check_fingerprint(settings.log_dir, self._fingerprint())
        self._log = StepLog(settings.log_dir)
        self._memory = TrialMemory(settings.log_dir)
        self._earlier = _spend_by_stage(self._log, self._memory)
        self._meter = Meter(settings.budget, already_spent=sum(self._earlier.values(), Spend()))
        if is_resumed:
            spent = self._meter.spend
            logger.info(
                "Resumed in %s: %d steps and %d trial records, %d metric calls and %d model calls already spent.",
                settings.log_dir,
                len(self._log.steps),
                self._memory.resumed,
                spent.metric_calls,
                spent.lm_calls,
            )

    def run(self) -> dspy.Module:
        """Learn, and set `result` whatever happens.

        Raises:
            KeyboardInterrupt: When the run was interrupted and `on_interrupt` is "raise".
            CombeeError: When the metric or a model cannot be used.
        """
        began = self._settings.clock()
        reason: StopReason = "error"
        error: BaseException | None = None
        try:
            with self._meter.installed(), refusing_calls_when_closed(self._abort):
                reason = self._rounds()
        except BudgetExhausted as exhausted:
            reason, error = "budget", exhausted
            logger.warning("%s: returning what is confirmed so far.", exhausted)
        except KeyboardInterrupt as interrupt:
            reason, error = "interrupted", interrupt
        except Aborted:
            # A worker that was refused a call may be heard before the one that was interrupted.
            reason, error = "interrupted", KeyboardInterrupt()
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._abort.is_closed = True
            self.result = self._finish(reason, error, self._settings.clock() - began)
        if isinstance(error, KeyboardInterrupt) and self._settings.on_interrupt == "raise":
            raise error
        return self._program

    def _rounds(self) -> StopReason:
        parts = self._parts()
        reason = self._run_rounds(parts)
        parts.paid.keep_the_rest()
        return reason

    def _run_rounds(self, parts: RoundParts) -> StopReason:
        fruitless = 0
        for number in range(1, self._settings.max_rounds + 1):
            current = self._current = RoundRun(parts, self._program, number, tuple(self._tried), self._hypotheses())
            self._program = current.run()
            self._end_round(current)
            if current.is_perfect:
                return "perfect"
            fruitless = 0 if current.record.inherited else fruitless + 1
            if self._settings.patience is not None and fruitless >= self._settings.patience:
                return "no_improvement"
        return "completed"

    def _end_round(self, current: RoundRun) -> None:
        self._current = None
        self._finished.append(current.record)
        self._tried += current.proposed
        record = current.record
        logger.info(
            "Round %d: mean score %s, %d candidates tried, %d inherited; %d metric calls so far.",
            record.number,
            "unknown" if record.mean_base_score is None else f"{record.mean_base_score:.3f}",
            len(record.candidates),
            len(record.inherited),
            self._meter.spend.metric_calls,
        )

    def _parts(self) -> RoundParts:
        settings = self._settings
        is_bounded = isinstance(settings.criterion, Anytime)
        metric = CountedMetric(
            settings.metric,
            perfect_score=settings.perfect_score,
            low=settings.criterion.low if isinstance(settings.criterion, Anytime) else None,
            reason=f"acceptance={settings.criterion.name!r}" if is_bounded else "",
        )
        paid = PaidSteps(self._meter, num_threads=_num_threads(settings), progress=settings.progress)
        return RoundParts(
            settings=settings,
            metric=metric,
            pools=self._pools,
            base_runs=BaseRuns(self._log, settings.log_dir),
            reflection=Reflection(settings, self._log, paid),
            memory=self._memory,
            paid=paid,
        )

    def _hypotheses(self) -> tuple[str, ...]:
        """Return what earlier candidates were expected to do where no trial has told."""
        return tuple(
            candidate.expected_effect
            for one in self._finished
            for candidate in one.candidates
            if candidate.expected_effect and not any(trial.evidence.is_usable for trial in candidate.trials)
        )

    def _finish(self, reason: StopReason, error: BaseException | None, seconds: float) -> EvoCUEResult:
        rounds = [*self._finished, *([self._current.record] if self._current is not None else [])]
        by_stage = defaultdict(Spend, self._earlier)
        for stage, spend in self._meter.spend_by_stage.items():
            if stage != "earlier":
                by_stage[stage] += spend
        learned = self._learned()
        tasks = [task.example for task in (*self._pools.learning, *self._pools.confirmation)]
        return EvoCUEResult(
            stop_reason=reason,
            rounds=tuple(rounds),
            edits=learned,
            seconds=seconds,
            spend=self._meter.spend,
            spend_by_stage=dict(by_stage),
            notes=self._pools.notes,
            error="" if error is None else f"{type(error).__name__}: {error}",
            identity=self._identity(rounds),
            config=self._config(),
            longest_shared_span=shared_with_train_set((edit.describe() for edit in learned), tasks),
            best_program=self._program,
        )

    def _learned(self) -> tuple[Edit, ...]:
        state = state_of(self._student)
        own = {edit.edit_id for edit in state.edits} if state is not None else set[str]()
        return tuple(edit for edit in Evolved(self._program).edits if edit.edit_id not in own)

    def _identity(self, rounds: Sequence[Round]) -> ResultIdentity:
        proposed = {task_id: None for one in rounds for task_id in one.base_scores}
        tried = {trial.task_id: None for one in rounds for item in one.candidates for trial in item.trials}
        confirmed = {
            pair.task_id: None for one in rounds if one.confirmation is not None for pair in one.confirmation.pairs
        }
        return ResultIdentity(
            versions=_versions(),
            seeds=(self._settings.seed,),
            config_hash=_sha256(self._config()),
            data_roles={"proposed": tuple(proposed), "tried": tuple(tried), "confirmed": tuple(confirmed)},
            artifact_sha256={
                "before": _sha256(self._student.dump_state()),
                "after": _sha256(self._program.dump_state()),
            },
        )

    def _fingerprint(self) -> Fingerprint:
        learning = [task.example for task in self._pools.learning]
        confirming = [task.example for task in self._pools.confirmation]
        config = {**self._config(), "program": program_key(self._student)}
        return fingerprint_run(self._student, trainset=learning, valset=confirming, config=config)

    def _config(self) -> dict[str, Any]:
        settings = self._settings
        metric = settings.metric
        return {
            "metric": getattr(metric, "__qualname__", type(metric).__qualname__),
            "seed": settings.seed,
            "max_rounds": settings.max_rounds,
            "candidates_per_round": settings.candidates_per_round,
            "proposal_tasks": settings.proposal_tasks,
            "trial_tasks": settings.trial_tasks,
            "confirmation_tasks": settings.confirmation_tasks,
            "acceptance": repr(settings.criterion),
            "environment": None if settings.environment is None else type(settings.environment).__qualname__,
            "features": [feature_name(function) for function in settings.features],
            "knowledge": list(settings.knowledge),
            "max_cards": settings.max_cards,
            "skills": settings.skills,
            "failure_score": settings.failure_score,
            "perfect_score": settings.perfect_score,
        }


def _num_threads(settings: LearnerSettings) -> int:
    alone = settings.environment is not None and not isinstance(settings.environment, ForkingEnvironment)
    return 1 if alone else settings.num_threads or default_num_workers()


def _spend_by_stage(log: StepLog, memory: TrialMemory) -> Mapping[str, Spend]:
    """Return what a run has spent before it was resumed."""
    spent: dict[str, Spend] = defaultdict(Spend)
    for step in log.steps:
        spent[step.stage] += step.spend
    for record in memory.records():
        if record.kind in ("trial", "confirmation"):
            stage = "trials" if record.kind == "trial" else "confirmation"
            spent[stage] += Spend.from_dict(record.content["spend"])
    return dict(spent)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _sha256(value: Any) -> str:
    return hashlib.sha256(stable_json(value).encode("ascii")).hexdigest()
