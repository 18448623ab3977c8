"""Record the parent program on the round's tasks; recordings serve for proposals, for trials, and for later rounds.

A recording is on disk before it is used. The tools' world is not saved with it: a world's copy means nothing in
another process, so trials of a resumed run rebuild it by acting again, each observation verified.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dspy_combee.errors import MetricError
from dspy_combee.runtime.budget import Spend
from dspy_evocue.checkpoints import Tape
from dspy_evocue.episodes import Recording, RunPlan, program_key, record_run
from dspy_evocue.rounds.paid_steps import PaidSteps, Step
from dspy_evocue.rounds.step_log import KeptStep, StepLog
from dspy_evocue.rounds.tasks import Task

logger = logging.getLogger(__name__)

STAGE = "base runs"


class BaseRuns:
    """The recordings of a run, by program version and task."""

    def __init__(self, log: StepLog, directory: str | None) -> None:
        """Start without any in memory.

        Args:
            log: Says which recordings were paid for.
            directory: Where they are kept; None to keep them in memory only.
        """
        self._log = log
        self._directory = None if directory is None else Path(directory) / "recordings"
        self._made: dict[str, Recording] = {}

    def record(self, plan: RunPlan, tasks: Sequence[Task], paid: PaidSteps, *, name: str) -> list[Recording]:
        """Return one recording a task, in their order; those that exist already cost nothing.

        Raises:
            MetricError: When the metric gives no score for any task.
        """
        version = program_key(plan.program)
        steps = [self._step(plan, task, f"base/{version}/{task.task_id}") for task in tasks]
        recordings = paid.run(f"{name}: {STAGE}", steps, missing=lambda recording: recording.episode.missing)
        missing = [recording.episode.missing for recording in recordings]
        if all(one is not None and one.kind == "metric" for one in missing):
            raise MetricError(
                f"the metric must be able to score a run, but it failed on all {len(tasks)}: {missing[0]}"
            )
        return recordings

    def _step(self, plan: RunPlan, task: Task, key: str) -> Step[Recording]:
        return Step(
            run=functools.partial(record_run, plan, task.example),
            keep=functools.partial(self._keep, key),
            known=self._known(key, task),
            metric_calls=1,
        )

    def _known(self, key: str, task: Task) -> Recording | None:
        if key not in self._made and self._log.find(key) is not None:
            loaded = self._load(key)
            if loaded is not None:
                self._made[key] = replace(loaded, example=task.example)
        return self._made.get(key)

    def _keep(self, key: str, recording: Recording, spend: Spend) -> None:
        self._made[key] = recording
        if self._directory is not None:
            self._save(key, recording)
        missing = recording.episode.missing
        content = {"score": recording.episode.score, "missing": None if missing is None else asdict(missing)}
        self._log.keep(KeptStep(key, STAGE, content, spend))

    def _path(self, key: str) -> Path:
        assert self._directory is not None, "only runs with a directory have files"
        return self._directory / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.pkl"

    def _save(self, key: str, recording: Recording) -> None:
        import cloudpickle

        events = tuple(replace(event, snapshot=None) for event in recording.tape.events)
        try:
            content = cloudpickle.dumps(replace(recording, tape=Tape(events), example=None))
        except Exception as error:  # noqa: BLE001  whatever a user's objects raise
            logger.warning("A recording cannot be saved (%s); a resumed run will have to make it again.", error)
            return
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(content)
        temporary.replace(path)

    def _load(self, key: str) -> Recording | None:
        import cloudpickle

        try:
            loaded: Any = cloudpickle.loads(self._path(key).read_bytes())
        except Exception as error:  # noqa: BLE001  a file of another version of the user's code can raise anything
            logger.warning("A recording cannot be read (%s: %s): it is made again.", type(error).__name__, error)
            return None
        return loaded if isinstance(loaded, Recording) else None
