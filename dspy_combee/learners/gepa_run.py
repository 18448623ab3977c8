"""One compile of a wrapped `dspy.GEPA`: set up, run or resume, and whatever happens leave a result behind."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dspy

from dspy_combee.aggregation.waves import AGGREGATION_STAGE
from dspy_combee.copied_text import copied_from_train_set
from dspy_combee.errors import BudgetExhausted
from dspy_combee.learners.batch_control import BatchControl, controller_within, fixed_size_within
from dspy_combee.learners.gepa import GepaParts, GepaSettings, affordable_batch, metric_call_limit, wire
from dspy_combee.learners.gepa_components import feedback_calls, mark_components, without_marks
from dspy_combee.learners.gepa_crashes import CrashWatch
from dspy_combee.learners.gepa_evidence import EvidenceLog, SourcedMetric
from dspy_combee.learners.gepa_finish import best_candidate, provenance_of
from dspy_combee.learners.gepa_history import ROUNDS_FILE, read_earlier
from dspy_combee.learners.gepa_observer import GepaObserver
from dspy_combee.learners.gepa_proposer import CombeeProposer, ProposerHooks
from dspy_combee.learners.gepa_resume import RememberedDraws, ResumedValset
from dspy_combee.learners.gepa_state import keep_previous
from dspy_combee.learners.gepa_stopping import Stopping
from dspy_combee.metrics import MetricCall
from dspy_combee.provenance import RecordSource
from dspy_combee.report.diff import instruction_diff
from dspy_combee.report.result import CombeeResult, Round, StopReason
from dspy_combee.runtime.abort import Aborted, AbortSwitch
from dspy_combee.runtime.bars import share_progress_bars
from dspy_combee.runtime.budget import Meter
from dspy_combee.runtime.execution.threads import ThreadExecutor, default_num_workers
from dspy_combee.runtime.interrupt import notice_interrupt
from dspy_combee.runtime.python_syntax import share_parser
from dspy_combee.runtime.quiet import quiet_progress
from dspy_combee.runtime.run_log import Fingerprint, RunLog, fingerprint_run
from dspy_combee.scan import SMALL_BATCH
from dspy_combee.settings import RunSettings
from dspy_combee.tool_blocks import find_tool_blocks

logger = logging.getLogger(__name__)


class GepaRun:
    """The state of one compile. Built, run once, then read for its result."""

    def __init__(
        self,
        base: Any,
        settings: RunSettings,
        student: dspy.Module,
        trainset: Sequence[dspy.Example],
        valset: Sequence[dspy.Example] | None,
    ) -> None:
        self.result = CombeeResult(stop_reason="error")
        self._base = base
        self._settings = settings
        self._student = student
        self._trainset = list(trainset)
        self._valset = list(valset) if valset is not None else None
        self._log_dir = settings.log_dir or base.log_dir
        self._val_size = len(self._valset if self._valset is not None else self._trainset)
        self._num_threads = base.num_threads or default_num_workers()
        self._program = mark_components(student)
        self._limit = self._metric_call_limit()
        self._earlier = read_earlier(self._log_dir, student, self._val_size, self._fingerprint())
        self._meter = Meter(self._lm_budget(), already_spent=self._earlier.spend)
        self._logged_sources = len(self._earlier.sources)
        self._checked_program = self._earlier.is_resumed
        self._log = RunLog(self._log_dir, name=ROUNDS_FILE) if self._log_dir else None
        self._parts = self._build_parts()

    def run(self) -> dspy.Module:
        """Compile, and set `result` whatever happens.

        Raises:
            KeyboardInterrupt: the run was interrupted and `on_interrupt` is "raise".
            CombeeError: the metric or the model cannot be used.
        """
        began = self._settings.clock()
        reason: StopReason = "error"
        error: BaseException | None = None
        compiled: dspy.Module | None = None
        try:
            compiled = self._compile()
            reason = self._parts.stopping.reason or "completed"
        except BudgetExhausted as exhausted:
            reason = "budget"
            logger.warning("%s: returning the best program so far.", exhausted)
        except KeyboardInterrupt as interrupt:
            reason, error = "interrupted", interrupt
        except Aborted as aborted:
            # A worker that was refused a call may be heard before the one that was interrupted.
            was_interrupted = self._parts.abort.was_interrupted and self._parts.abort.error is None
            reason = "interrupted" if was_interrupted else "error"
            error = KeyboardInterrupt() if was_interrupted else self._parts.abort.error or aborted
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._parts.abort.is_closed = True
            best = compiled if compiled is not None else self._best_so_far()
            self.result = self._finish(best, reason, error, self._settings.clock() - began)
        if error is not None and not (reason == "interrupted" and self._settings.on_interrupt == "return"):
            raise error
        return self.result.best_program

    def _compile(self) -> dspy.Module:
        wired = wire(self._base, self._parts, self._gepa_settings(), self._limit)
        valset: Any = self._valset
        if self._earlier.is_resumed:
            valset = ResumedValset(self._valset if self._valset is not None else self._trainset)
        else:
            self._warn_of_small_budget()
        share_progress_bars()
        share_parser()
        with (
            self._meter.installed(),
            notice_interrupt(self._parts.abort.interrupt),
            # Never streamed, also when compiled inside a streaming app: that path of DSPy's knows no retries.
            dspy.context(callbacks=[self._parts.crashes, *dspy.settings.callbacks], send_stream=None),
            quiet_progress(keep_main_bar=self._settings.progress),
        ):
            compiled = wired.compile(self._program, trainset=self._trainset, valset=valset)
        if self._parts.abort.error is not None:
            raise Aborted(str(self._parts.abort.error))
        return without_marks(compiled, self._student)

    def _build_parts(self) -> GepaParts:
        base, settings = self._base, self._settings
        abort = AbortSwitch()
        crashes = CrashWatch(abort, num_threads=self._num_threads)
        evidence = EvidenceLog(
            {id(example): index for index, example in enumerate(self._trainset)},
            {id(example): index for index, example in enumerate(self._valset or ())},
            next_number=self._earlier.next_number,
            read=dict(self._earlier.sources),
        )
        metric = SourcedMetric(
            MetricCall(base.metric_fn, perfect_score=base.perfect_score),
            evidence,
            failure_score=base.failure_score,
            abort=abort,
            on_scored=self._meter.count_metric_calls,
        )
        control = self._batch_control()
        observer = GepaObserver(
            control=control,
            meter=self._meter,
            crashes=crashes,
            evidence=evidence,
            on_round=self._keep_round,
            on_state_saved=self._keep_checkpoint,
            clock=settings.clock,
        )
        observer.rounds.extend(self._earlier.rounds)
        stopping = Stopping(
            observer=observer,
            on_checkpoint=self._before_checkpoint,
            perfect_score=base.perfect_score,
            patience=settings.patience,
            max_metric_calls=lambda: self._limit,
            affordable=self._is_affordable,
            own=_as_list(base.gepa_kwargs.get("stop_callbacks")),
        )
        return GepaParts(
            metric=metric,
            proposer=self._proposer(observer, is_plain=self._is_plain_gepa(control)),
            observer=observer,
            stopping=stopping,
            control=control,
            crashes=crashes,
            evidence=evidence,
            abort=abort,
            on_selected=self._prepare_feedback,
            draws=self._draws(control),
        )

    def _proposer(self, observer: GepaObserver, *, is_plain: bool) -> CombeeProposer:
        base, settings = self._base, self._settings
        proposer = CombeeProposer(
            base.custom_instruction_proposer,
            aggregation=settings.aggregation,
            form=settings.form,
            max_instruction_chars=settings.max_instruction_chars,
            executor=settings.executor,
            seed=settings.seed,
            plain_up_to=SMALL_BATCH if is_plain else 0,
            hooks=ProposerHooks(
                pending=observer.pending,
                extra_records=observer.crashed_records,
                on_report=observer.note_report,
                perfect_score=base.perfect_score if base.skip_perfect_score else None,
                tool_blocks=find_tool_blocks(self._student),
                stage=lambda: self._meter.stage(AGGREGATION_STAGE),
            ),
        )
        for component, lessons in self._earlier.lessons.items():
            proposer.remember_provenance(component, lessons)
        return proposer

    def _is_plain_gepa(self, control: BatchControl) -> bool:
        """Whether GEPA's own sampler and proposer decide, as in a run without Combee."""
        return self._has_own_sampler() or (control.fixed is not None and control.fixed <= SMALL_BATCH)

    def _has_own_sampler(self) -> bool:
        return self._base.gepa_kwargs.get("batch_sampler") is not None

    def _draws(self, control: BatchControl) -> RememberedDraws | None:
        if self._log_dir is None or not self._is_plain_gepa(control):
            return None
        own = self._base.gepa_kwargs.get("sampling_strategy")
        return RememberedDraws(own, self._log_dir, resumed_at=self._earlier.iteration)

    def _prepare_feedback(
        self, trajectories: Sequence[Any], candidate: Mapping[str, str], names: Sequence[str]
    ) -> None:
        """Ask the metric for feedback in as many threads as rollouts run in; GEPA would ask in one."""
        self._parts.observer.select_rollouts(trajectories, candidate)
        if len(trajectories) > SMALL_BATCH and self._num_threads > 1:
            calls = feedback_calls(trajectories, names, self._program)
            self._parts.metric.prepare(calls, ThreadExecutor(self._num_threads))

    def _before_checkpoint(self, iteration: int) -> None:
        self._parts.abort.refuse_when_closed()
        if not self._checked_program:
            self._checked_program = True
            examples = self._valset if self._valset is not None else self._trainset
            self._parts.crashes.refuse_broken_program(examples)
        if self._parts.draws is not None:
            self._parts.draws.save(iteration)

    def _warn_of_small_budget(self) -> None:
        size = self._parts.control.size()
        proposals = max(0, self._limit - self._val_size) // (2 * size + self._val_size)
        if proposals < 3:
            logger.warning(
                "The budget of %d metric calls allows about %d proposals: %d validate the student, a proposal takes up "
                "to %d (a batch of %d before and after, and %d to validate it).",
                self._limit,
                proposals,
                self._val_size,
                2 * size + self._val_size,
                size,
                self._val_size,
            )

    def _batch_control(self) -> BatchControl:
        settings = self._settings
        fixed = None
        if settings.batch_size is not None:
            fixed = fixed_size_within(
                settings.batch_size,
                train_size=len(self._trainset),
                metric_calls=self._limit,
                val_size=self._val_size,
            )
        controller = controller_within(
            settings.controller,
            train_size=len(self._trainset),
            metric_calls=self._limit,
            num_threads=self._num_threads,
        )
        control = BatchControl(controller, fixed)
        control.replay(self._earlier.timings)
        return control

    def _metric_call_limit(self) -> int:
        val_size = len(self._valset) if self._valset is not None else None
        own = metric_call_limit(self._base, self._student, len(self._trainset), val_size)
        budgeted = self._settings.budget.max_metric_calls
        return own if budgeted is None else min(own, budgeted)

    def _lm_budget(self) -> Any:
        """Return the budget without its metric calls: GEPA keeps those itself, between iterations."""
        return replace(self._settings.budget, max_metric_calls=None)

    def _is_affordable(self, state: Any) -> bool:
        """Whether the budget allows another whole batch; batches as small as GEPA's own may run past it as there."""
        control = self._parts.control
        if self._is_plain_gepa(control):
            return True
        affordable = affordable_batch(state, self._limit)
        needed = control.fixed if control.fixed is not None else control.controller.candidates[0]
        return affordable is None or affordable >= needed

    def _gepa_settings(self) -> GepaSettings:
        return GepaSettings(
            seed=self._settings.seed,
            log_dir=self._log_dir,
            frozen=self._settings.frozen,
            is_resumed=self._earlier.is_resumed,
            own_sampler=self._has_own_sampler(),
        )

    def _fingerprint(self) -> Fingerprint:
        config = {
            "metric": getattr(self._base.metric_fn, "__qualname__", type(self._base.metric_fn).__qualname__),
            "seed": self._settings.seed,
            "batch size": self._settings.batch_size or "auto",
            "aggregation": self._settings.aggregation.name,
            "form": self._settings.form,
        }
        return fingerprint_run(self._student, trainset=self._trainset, valset=self._valset, config=config)

    def _keep_round(self, finished: Round, usable_seconds: float | None) -> None:
        if self._log is None:
            return
        reports = [report for report in self._parts.observer.reports if report.lessons]
        self._parts.observer.reports.clear()
        self._log.append(
            {
                "round": finished.to_dict(),
                "usable_seconds": usable_seconds,
                "spend": self._meter.spend.to_dict(),
                "lessons": {
                    report.component: [[one.text, list(one.record_ids)] for one in report.lessons] for report in reports
                },
                "sources": [source.to_dict() for source in self._new_sources()],
                "next_number": self._parts.evidence.next_number,
            }
        )

    def _new_sources(self) -> list[RecordSource]:
        """Return the sources of the read records that have not been written to the log yet."""
        sources = list(self._parts.evidence.read.values())[self._logged_sources :]
        self._logged_sources += len(sources)
        return sources

    def _keep_checkpoint(self) -> None:
        if self._log_dir is not None:
            keep_previous(self._log_dir)

    def _best_so_far(self) -> dspy.Module:
        """Return the best candidate of a run that GEPA did not bring to its end."""
        state = self._parts.observer.state
        if state is None:
            return self._student.deepcopy()
        return best_candidate(state, self._student, with_results=self._base.track_stats, seed=self._base.seed)

    def _finish(
        self, best: dspy.Module, reason: StopReason, error: BaseException | None, seconds: float
    ) -> CombeeResult:
        observer, control = self._parts.observer, self._parts.control
        scores = list(observer.state.program_full_scores_val_set) if observer.state is not None else []
        missing, scored = self._parts.metric.missing_feedback()
        if missing and reason != "error":
            logger.warning("%d of %d feedback texts are empty: there the score alone is shown.", missing, scored)
        return CombeeResult(
            stop_reason=reason,
            rounds=tuple(observer.rounds),
            seconds=seconds,
            spend=self._meter.spend,
            spend_by_stage=self._meter.spend_by_stage,
            batch_size=control.size() if control.fixed is None else control.fixed,
            fit=control.fit,
            provenance=provenance_of(best, self._parts.proposer, self._parts.evidence),
            seed_score=scores[0] if scores else observer.seed_score,
            best_score=max(scores) if scores else observer.seed_score,
            unreached=dict(observer.unreached),
            error="" if error is None else f"{type(error).__name__}: {error}",
            config=self._config(),
            longest_shared_span=copied_from_train_set(best, self._student, self._trainset),
            diff=instruction_diff(self._student, best),
            best_program=best,
        )

    def _config(self) -> dict[str, Any]:
        return {
            "base": "dspy.GEPA",
            "aggregation": self._settings.aggregation.name,
            "form": self._settings.form,
            "batch_size": self._settings.batch_size or "auto",
            "max_metric_calls": self._limit,
            "seed": self._settings.seed,
            "train_size": len(self._trainset),
            "val_size": self._val_size,
            "versions": {name: importlib.metadata.version(name) for name in ("dspy", "gepa")},
        }


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) else [value]
