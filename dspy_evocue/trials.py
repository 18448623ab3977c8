"""One paired trial: restore a past run to just before an edit can act, and go on twice, without it and with it.

Both arms run on the same program object, one after the other, under one rollout id. What differs is the edit. A trial
that cannot say what the edit did is unresolved; a score that could not be had is missing, never zero.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dspy_combee.runtime.budget import Meter, Spend
from dspy_evocue.artifact import check_edits
from dspy_evocue.checkpoints import Checkpoint, Recorder, Replayer, Tape
from dspy_evocue.edits import Edit
from dspy_evocue.entries import ACTIONS
from dspy_evocue.environments import Environment
from dspy_evocue.episodes import (
    Episode,
    Recording,
    RunPlan,
    check_example,
    check_recording,
    opened,
    plan_runs,
    record_run,
    run_episode,
    within_run,
)
from dspy_evocue.features import FeatureFunction
from dspy_evocue.fingerprints import fingerprint
from dspy_evocue.missing_scores import MissingScore
from dspy_evocue.rules import TrialKind, TrialStatus
from dspy_evocue.trial_record import TrialRecord, behaviour_changes, entered_states


def paired_trial(
    program: Any,
    edit: Edit | Sequence[Edit],
    example: Any,
    metric: Callable[..., Any],
    *,
    environment: Environment | None = None,
    recording: Recording | None = None,
    rollout_id: int = 1,
    from_start: bool = False,
    features: Sequence[FeatureFunction] = (),
    failure_score: float | None = 0.0,
    task_id: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> TrialRecord:
    """A/B one edit on one example, from the checkpoint just before it can act.

    Args:
        program: Any DSPy module, also one that carries edits; it is left as it is.
        edit: The edit, or several that are tried together.
        example: A `dspy.Example` with its inputs marked.
        metric: As for `dspy.Evaluate` or `dspy.GEPA`; called once a rollout.
        environment: How to restore the tools' world; None for recorded observations.
        recording: A run of this program on this example to restore from; None to make one first.
        rollout_id: Shared by both arms; another id gives another sample of both.
        from_start: Whether to run both arms from the beginning instead. Such a trial says nothing about rules.
        features: Functions for features that the edit's rule tests and that are not built in.
        failure_score: The score of an arm in which the program raised; None to leave it missing.
        task_id: The name of the task in the record; by default made from the example's inputs.
        clock: Where the seconds come from.

    Raises:
        CallSiteNotFoundError: When the edit names a predictor that the program does not have.
        MissingFeatureError: When the edit's rule tests a feature that nothing computes.
        RecordingError: When the recording is of another program or example.
        MetricError: When the metric returns something that is not a score.
    """
    plan = plan_runs(
        program, metric, environment=environment, features=tuple(features), failure_score=failure_score, clock=clock
    )
    edits = (edit,) if isinstance(edit, Edit) else tuple(edit)
    if not edits:
        raise ValueError("a trial needs at least one edit, got none")
    trial = Trial(plan, edits, example, rollout_id, task_id or task_name(example), from_start, recording)
    trial.check()
    return trial.run()


def task_name(example: Any) -> str:
    """Return a name for a task made from its inputs, the same in every process."""
    check_example(example)
    return "t" + fingerprint(example.inputs())[:8]


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial that is ready to run."""

    plan: RunPlan
    edits: tuple[Edit, ...]
    example: Any
    rollout_id: int
    task_id: str
    from_start: bool = False
    given: Recording | None = None
    acts_from: int = 0
    """The number of the recorded event before which the edits do not act; 0 for wherever they act first."""

    @property
    def most_metric_calls(self) -> int:
        """The most times that it calls the metric."""
        return 2 if self.from_start or self.given is not None else 3

    def check(self) -> None:
        """Check everything that can be checked before a model call; see `paired_trial` for what is raised."""
        check_example(self.example)
        check_edits(self.plan.program, (*self.plan.own_edits, *self.edits), self.plan.features)
        if self.given is not None and not self.from_start:
            check_recording(self.plan, self.given, self.example)

    def run(self) -> TrialRecord:
        """Run the trial."""
        began = self.plan.clock()
        record = self._from_start() if self.from_start else self._from_checkpoint()
        return replace(record, seconds=self.plan.clock() - began)

    def _from_start(self) -> TrialRecord:
        parent = self._run_arm(())
        edited = _Arm() if parent.episode.missing else self._run_arm(self.edits)
        record = self._judged(parent, edited)
        ids = {edit.edit_id for edit in self.edits}
        acted = any(event.edit_id in ids for event in edited.tape.events)
        if record.status != "unresolved" and not acted:
            entered = any(edited.tape.entered(edit) for edit in self.edits)
            return replace(record, status="skipped" if entered else "unreached", reason=_why_not(entered))
        return record

    def _from_checkpoint(self) -> TrialRecord:
        recording = self.given or record_run(self.plan, self.example)
        blank = self._blank(recording=Spend() if self.given else recording.episode.spend)
        if recording.episode.missing and not recording.tape.events:
            missing = recording.episode.missing
            return replace(blank, status="unresolved", reason=f"no recording: {missing}", missing=missing.kind)
        checkpoint = _first([recording.tape.checkpoint(edit, acts_from=self.acts_from) for edit in self.edits])
        if checkpoint is None:
            entered = any(recording.tape.entered(edit) for edit in self.edits)
            status: TrialStatus = "skipped" if entered else "unreached"
            return replace(blank, status=status, reason=_why_not(entered), before=recording.episode.score)
        found = replace(
            blank,
            site=f"{checkpoint.acting.source} -> {checkpoint.acting.node}",
            checkpoint=checkpoint.number,
            features=checkpoint.acting.features,
            prefix=recording.tape.events[checkpoint.number].spent,
        )
        parent = self._run_arm((), recording, checkpoint)
        fault = parent.episode.missing or _control_fault(recording.tape, parent.tape, checkpoint)
        edited = _Arm() if fault else self._run_arm(self.edits, recording, checkpoint)
        judged = self._judged(parent, edited, fault)
        return replace(
            judged,
            site=found.site,
            checkpoint=found.checkpoint,
            features=found.features,
            prefix=found.prefix,
            recording=found.recording,
        )

    def _blank(self, recording: Spend) -> TrialRecord:
        ids = tuple(edit.edit_id for edit in self.edits)
        kind: TrialKind = "task_start" if self.from_start else "matched_prefix"
        return TrialRecord(self.task_id, ids, kind, "unresolved", rollout_id=self.rollout_id, recording=recording)

    def _run_arm(
        self, edits: tuple[Edit, ...], recording: Recording | None = None, checkpoint: Checkpoint | None = None
    ) -> _Arm:
        meter = Meter()
        with opened(self.plan.environment) as environment:
            if recording is None or checkpoint is None:
                journal = Recorder(spent=lambda: meter.spend)
            else:
                journal = _replayer(recording.tape, checkpoint, environment, meter)
            episode = run_episode(
                self.plan,
                self.example,
                journal=journal,
                environment=environment,
                meter=meter,
                edits=edits,
                rollout_id=self.rollout_id,
            )
        if isinstance(journal, Replayer):
            missing = episode.missing or (MissingScore("replay", journal.fault) if journal.fault else None)
            episode = replace(episode, missing=missing, score=None if missing else episode.score)
        return _Arm(episode, journal.tape)

    def _judged(self, parent: _Arm, edited: _Arm, fault: MissingScore | None = None) -> TrialRecord:
        """Make the record of two arms; a score that is missing on one side is dropped on both."""
        record = replace(
            self._blank(Spend()),
            parent=parent.episode.spend,
            edited=edited.episode.spend,
            feedback=(parent.episode.feedback, edited.episode.feedback),
        )
        if fault is not None:
            return replace(record, reason=f"parent arm: {fault}", missing=fault.kind)
        for name, arm in (("parent", parent), ("edited", edited)):
            if arm.episode.score is None:
                missing = arm.episode.missing or MissingScore("program", arm.episode.error)
                return replace(record, reason=f"{name} arm: {missing}", missing=missing.kind)
        failure = edited.episode.error or self._attempt_failure(edited.tape)
        return replace(
            record,
            status="failed_attempt" if failure else "applied",
            reason=failure,
            before=parent.episode.score,
            after=edited.episode.score,
            changes=behaviour_changes(parent.tape, edited.tape),
            entered=entered_states(edited.tape, {edit.edit_id for edit in self.edits}),
        )

    def _attempt_failure(self, tape: Tape) -> str:
        """Return what the edit could not do, when it failed on every call on which it acted; empty otherwise."""
        ids = {edit.edit_id for edit in self.edits}
        failures = [event.attempt_failure for event in tape.events if event.edit_id in ids]
        return failures[0] if failures and all(failures) else ""


@dataclass(frozen=True, slots=True)
class _Arm:
    """One arm that ran, from the checkpoint on; blank for one that did not have to."""

    episode: Episode = field(default_factory=Episode)
    tape: Tape = field(default_factory=Tape)


def _replayer(tape: Tape, checkpoint: Checkpoint, environment: Environment | None, meter: Meter) -> Replayer:
    token = tape.events[checkpoint.number].snapshot
    return Replayer(
        tape,
        checkpoint.number,
        acts_again=environment is not None and token is None,
        go_live=None
        if environment is None or token is None
        else functools.partial(within_run, "restore", environment.restore, token),
        spent=lambda: meter.spend,
    )


def _control_fault(recorded: Tape, parent: Tape, checkpoint: Checkpoint) -> MissingScore | None:
    """Say where the parent arm acted on the world as the recording did, and saw something else; None when nowhere.

    Compared are the actions from the checkpoint on, for as long as both make the same ones: as long as they do, the
    world must answer the same, or it was not restored.
    """
    then = [event for event in recorded.events if event.kind in ACTIONS and event.number >= checkpoint.number]
    now = [event for event in parent.events if event.kind in ACTIONS]
    for old, new in zip(then, now, strict=False):
        if (old.node, old.input_key, old.branch) != (new.node, new.input_key, new.branch):
            return None
        if old.outcome_key != new.outcome_key:
            return MissingScore(
                "control_check",
                f"control check: the parent arm called {old.node} as the recording did, but observed "
                f"{new.output!r:.150} in place of {old.output!r:.150}; the tools' world was not restored",
            )
    return None


def _first(checkpoints: Sequence[Checkpoint | None]) -> Checkpoint | None:
    found = [checkpoint for checkpoint in checkpoints if checkpoint is not None]
    return min(found, key=lambda checkpoint: checkpoint.acting.number, default=None)


def _why_not(entered: bool) -> str:
    return "the edge was entered, but the rule never held" if entered else "the edge was never entered"
