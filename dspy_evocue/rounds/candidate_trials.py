"""Try a round's candidates by paired trials from checkpoints, and fit to each the rule that says when it acts.

Which checkpoints are tried is guided by the tasks that a candidate cites, within tasks that its entry reaches, and with
some solved tasks among them, where it could do harm. A trial that cannot be restored is run from the task's start.
An edge of an explicit controller is taken in every phase of a run, and what a skill does from its first entry on says
nothing of the later ones: there a task is tried once more, from the first entry in another state on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dspy_combee.runtime.budget import Spend
from dspy_evocue.acceptance import should_stop
from dspy_evocue.checkpoints import Event
from dspy_evocue.edits import Edit
from dspy_evocue.episodes import Recording, RunPlan
from dspy_evocue.memory import MemoryRecord, TrialMemory
from dspy_evocue.proposal_checks import ProposedEdit
from dspy_evocue.rounds.faults import missing_from
from dspy_evocue.rounds.paid_steps import PaidSteps, Step
from dspy_evocue.rounds.proposed_edits import edit_length
from dspy_evocue.rounds.settings import LearnerSettings
from dspy_evocue.rounds.tasks import Task
from dspy_evocue.rules import FittedRule, Rule, fit_rule, narrow_rule
from dspy_evocue.trial_record import TrialRecord
from dspy_evocue.trials import Trial

STAGE = "trials"
SOLVED_SHARE = 4
"""One of so many trial places is kept for solved tasks."""
WAVES = 4
"""A candidate's trials come in so many waves; between them it is asked whether the rest is worth its price."""
ROLLOUTS_PER_ROUND = 100_000
"""Rollout ids of one round lie below those of the next."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal, and the edit that it comes to while no rule is fitted."""

    proposed: ProposedEdit
    edit: Edit


@dataclass(frozen=True, slots=True)
class Place:
    """Where a candidate is tried."""

    task: int
    """The position of the task."""
    acts_from: int = 0
    """The number of the recorded event before which it does not act; 0 for wherever it acts first."""


@dataclass(frozen=True, slots=True)
class TriedCandidate:
    """A candidate after its trials."""

    candidate: Candidate
    trials: tuple[TrialRecord, ...]
    planned: int
    """How many trials would have been run; fewer were when the candidate was hopeless."""
    fitted: FittedRule | None
    """The best rule, whether it passes or not; None when too few tasks say anything."""

    @property
    def passes(self) -> bool:
        """Whether it is worth confirming."""
        return self.fitted is not None and self.fitted.passes

    @property
    def rule(self) -> Rule:
        """When the edit is to act: the best rule, without states in which the trials saw a skill do nothing."""
        if self.fitted is None:
            return self.candidate.edit.when
        return narrow_rule(self.fitted.rule, [state for trial in self.trials for state in trial.entered])

    @property
    def edit(self) -> Edit:
        """The edit with its rule."""
        edit: Any = self.candidate.edit
        return replace(edit, when=self.rule)

    @property
    def reason(self) -> str:
        """What the trials say, in words."""
        early = ""
        if len(self.trials) < self.planned:
            early = f" (stopped after {len(self.trials)} of {self.planned} trials: no mean gain was likely any more)"
        if self.fitted is not None:
            narrowed = f"; it did nothing except when {self.rule}" if self.rule != self.fitted.rule else ""
            return f"{self.fitted}{narrowed}{early}"
        usable = len({trial.task_id for trial in self.trials if trial.evidence.is_usable})
        return f"only {usable} tasks say anything about it, too few for a rule{early}"


@dataclass(frozen=True, slots=True)
class CandidateTrials:
    """The trial stage of one round."""

    settings: LearnerSettings
    plan: RunPlan
    tasks: Sequence[Task]
    recordings: Sequence[Recording]
    """Of the plan's program, one a task, in their order."""
    memory: TrialMemory
    paid: PaidSteps
    version: str
    """The program that the candidates are tried on."""
    name: str
    """What the round is called in keys."""
    number: int

    def try_all(self, candidates: Sequence[Candidate]) -> list[TriedCandidate]:
        """Run the trials of all candidates side by side and fit their rules."""
        chosen = [self._places(candidate) for candidate in candidates]
        records: list[list[TrialRecord]] = [[] for _ in candidates]
        wave = max(1, math.ceil(self.settings.trial_tasks / WAVES))
        while True:
            due = [
                (position, place)
                for position, places in enumerate(chosen)
                if not self._is_hopeless(places, records[position])
                for place in places[len(records[position]) : len(records[position]) + wave]
            ]
            if not due:
                break
            for (position, _), record in zip(
                due, self._run([(candidates[position], place) for position, place in due]), strict=True
            ):
                records[position].append(record)
        return [
            self._fit(candidate, tuple(tried), len(places))
            for candidate, tried, places in zip(candidates, records, chosen, strict=True)
        ]

    def _places(self, candidate: Candidate) -> list[Place]:
        """Return where to try a candidate, task by task."""
        return [
            place
            for task in self._tasks(candidate)
            for place in (Place(task), *self._later_places(candidate.edit, task))
        ]

    def _later_places(self, edit: Edit, task: int) -> list[Place]:
        if edit.acts_on != "edge":
            return []
        event = another_state(self.recordings[task].tape.acting(edit))
        return [] if event is None else [Place(task, acts_from=event.number)]

    def _tasks(self, candidate: Candidate) -> list[int]:
        """Return the positions of the tasks to try a candidate on."""
        usable = [place for place, run in enumerate(self.recordings) if not run.episode.missing]
        reached = [place for place in usable if self.recordings[place].tape.checkpoint(candidate.edit) is not None]
        scores = {place: self.recordings[place].episode.score or 0.0 for place in usable}
        names = {place: self.tasks[place].task_id for place in usable}
        cited = [place for place in reached if names[place] in candidate.proposed.cited_tasks]
        return choose_places(
            reached,
            cited=cited,
            solved=[place for place in reached if scores[place] >= self.settings.perfect_score],
            # Trials that are not reached cost nothing, and the memory should know of them.
            spare=[place for place in usable if place not in reached],
            count=self.settings.trial_tasks,
        )

    def _run(self, due: Sequence[tuple[Candidate, Place]]) -> list[TrialRecord]:
        stage = f"{self.name}: {STAGE}"
        records = self.paid.run(stage, [self._step(*one, from_start=False) for one in due], missing=missing_from)
        again = [
            index
            for index, record in enumerate(records)
            if not due[index][1].acts_from and self._is_worth_a_full_run(record)
        ]
        full = self.paid.run(stage, [self._step(*due[index], from_start=True) for index in again], missing=missing_from)
        for index, record in zip(again, full, strict=True):
            records[index] = record
        return records

    def _step(self, candidate: Candidate, place: Place, *, from_start: bool) -> Step[TrialRecord]:
        task = self.tasks[place.task]
        trial = Trial(
            self.plan,
            (candidate.edit,),
            task.example,
            # Two candidates of a round share the parent's sample of a task, so a warm cache answers it once.
            rollout_id=self.number * ROLLOUTS_PER_ROUND + place.task + 1,
            task_id=task.task_id,
            from_start=from_start,
            given=None if from_start else self.recordings[place.task],
            acts_from=place.acts_from,
        )
        trial.check()
        edit_id = candidate.edit.edit_id
        start = "/from start" if from_start else f"/from event {place.acts_from}" if place.acts_from else ""
        key = f"{self.name}/trial/{edit_id}/{task.task_id}{start}"
        return trial_step(trial, key, edit_id, "trial", self.memory, self.version)

    def _is_worth_a_full_run(self, record: TrialRecord) -> bool:
        """Say whether a trial failed because its checkpoint could not be reached, and the world can be reset."""
        if record.kind != "matched_prefix" or record.status != "unresolved":
            return False
        if record.missing in ("model", "metric", "program", "not_run"):
            return False
        # Where tools turned out to have a state that nothing resets, runs from the start would share it.
        return record.missing != "control_check" or self.settings.environment is not None

    def _is_hopeless(self, places: Sequence[Place], records: Sequence[TrialRecord]) -> bool:
        """Say whether the rest of a candidate's trials is not worth its price.

        A rule on the user's features might pick out the few states in which it helps, so then all trials are run. A
        rule may also pick the first entries of tasks or the later ones, so there must be no hope for either.
        """
        if self.settings.features or not records:
            return False
        return all(
            self._has_no_gain([place.acts_from > 0 for place in places], records, is_later=is_later)
            for is_later in {place.acts_from > 0 for place in places}
        )

    def _has_no_gain(self, are_later: Sequence[bool], records: Sequence[TrialRecord], *, is_later: bool) -> bool:
        gains = [
            record.gain if record.evidence.is_usable else None
            for later, record in zip(are_later, records, strict=False)
            if later is is_later
        ]
        if not gains:
            return False
        planned = sum(later is is_later for later in are_later)
        return should_stop("mean_gain", gains, planned, largest_gain=self.settings.largest_gain)

    def _fit(self, candidate: Candidate, trials: tuple[TrialRecord, ...], planned: int) -> TriedCandidate:
        fitted = fit_rule(
            [trial.evidence for trial in trials],
            # What the records of its kind of entry hold: a program's features, or those of a controller.
            features=list(dict.fromkeys(name for trial in trials for name in trial.features)),
            edit_length=edit_length(candidate.edit),
            given=candidate.edit.when,
        )
        tried = TriedCandidate(candidate, trials, planned, fitted)
        self.memory.remember(
            MemoryRecord(
                key=f"{self.name}/decision/{candidate.edit.edit_id}/trials",
                kind="decision",
                edit_id=candidate.edit.edit_id,
                parent_version=self.version,
                content={"stage": STAGE, "accepted": tried.passes, "reason": tried.reason},
            )
        )
        return tried


def another_state(events: Sequence[Event]) -> Event | None:
    """Return the first event whose state differs from that of the first one; None when all are alike.

    Args:
        events: Where an edit would act in one run, in their order.
    """
    return next((event for event in events if event.features != events[0].features), None)


def choose_places(
    reached: Sequence[int], *, cited: Sequence[int], solved: Sequence[int], spare: Sequence[int], count: int
) -> list[int]:
    """Return at most `count` of the places that a candidate reaches: cited ones first, and some solved ones.

    Args:
        reached: Places whose checkpoint exists.
        cited: Those of them that the candidate cites.
        solved: Those of them where nothing is wrong.
        spare: Places that it does not reach, to fill up with.
        count: How many are wanted.
    """
    failing = [place for place in reached if place not in solved and place not in cited]
    others = [place for place in solved if place not in cited]
    reserved = min(len(others), count // SOLVED_SHARE)
    chosen = [*cited, *failing][: count - reserved]
    chosen += others[: count - len(chosen)]
    return chosen + list(spare)[: count - len(chosen)]


def trial_step(trial: Trial, key: str, edit_id: str, kind: Any, memory: TrialMemory, version: str) -> Step[TrialRecord]:
    """Return the step that runs a trial, or finds it in the memory.

    Args:
        trial: Checked.
        key: Under which it is remembered.
        edit_id: Whose trial it is.
        kind: "trial" or "confirmation".
        memory: Where it is remembered.
        version: The program that it is run on.
    """
    known = memory.find(key)

    def keep(record: TrialRecord, spend: Spend) -> None:
        content: Mapping[str, Any] = {**record.to_dict(), "spend": spend.to_dict()}
        memory.remember(MemoryRecord(key, kind, edit_id, version, content))

    return Step(
        run=trial.run,
        keep=keep,
        known=None if known is None else TrialRecord.from_dict(known.content),
        metric_calls=2,
    )
