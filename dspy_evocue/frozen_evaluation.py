"""Run two frozen programs on the same tasks and compare them; what the numbers come to is decided in `comparison.py`.

Both programs run a task one after the other under one rollout id, the metric is called once a run, an outage is a
missing score. Finished tasks are on disk before the next ones are looked at, where a directory is given.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspy_combee.errors import BudgetExhausted
from dspy_combee.metrics import MetricCall
from dspy_combee.runtime.bars import share_progress_bars
from dspy_combee.runtime.budget import Budget, Meter, Spend
from dspy_combee.runtime.execution.base import Outcome
from dspy_combee.runtime.execution.threads import ThreadExecutor, default_num_workers
from dspy_combee.runtime.run_log import Fingerprint, RunLog, check_fingerprint
from dspy_combee.runtime.stable_json import stable_json
from dspy_combee.seeding import branch_rng
from dspy_evocue.comparison import ArmOutcome, ComparedTask, Comparison, ResultIdentity, compare_outcomes
from dspy_evocue.environments import Environment, ForkingEnvironment
from dspy_evocue.episodes import RunPlan, check_example, plan_runs, record_run
from dspy_evocue.features import FeatureFunction
from dspy_evocue.trials import task_name

_PACKAGES = ("dspy", "dspy-combee")


class ComparisonInterrupted(KeyboardInterrupt):
    """Ctrl-C during a comparison. What was finished is in `tasks`; what was running is waited for first."""

    def __init__(self, tasks: tuple[ComparedTask, ...]) -> None:
        """Keep the finished tasks, in their order."""
        self.tasks = tasks
        super().__init__(f"interrupted after {len(tasks)} tasks; they are in the exception's tasks")


def compare(
    before: Any,
    after: Any,
    tasks: Sequence[Any],
    metric: Callable[..., Any],
    *,
    environment: Environment | None = None,
    features: Sequence[FeatureFunction] = (),
    failure_score: float | None = 0.0,
    scenario: str | Callable[[Any], str | None] | None = None,
    success: float = 1.0,
    learned: Mapping[str, Sequence[Any]] | None = None,
    rollout_id: int | None = None,
    seed: int = 0,
    num_threads: int | None = None,
    budget: Budget | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Comparison:
    """Compare two programs on tasks that neither has learned from.

    Args:
        before: Any DSPy module; it is left as it is.
        after: Another, or the same with edits.
        tasks: `dspy.Example`s with their inputs marked.
        metric: As for `dspy.Evaluate` or `dspy.GEPA`; called once a run.
        environment: Gives each run a world of its own; one that cannot fork runs the tasks one after the other.
        features: Functions for features that the programs' edits test and that are not built in.
        failure_score: The score of a run in which the program raised; None to leave it missing.
        scenario: The field of a task that names its scenario, or a function of the task.
        success: The score from which on a task counts as solved.
        learned: Role ("proposed", "tried", "confirmed") to the tasks, or their ids, that served for learning.
        rollout_id: Shared by both programs; another id gives another sample of both.
        seed: For the bootstrap interval.
        num_threads: How many tasks run at once; by default DSPy's own setting.
        budget: Once it is spent, the tasks that are left have no scores, and say so.
        log_dir: Where finished tasks are kept, so that an interrupted comparison goes on where it was.
        progress: Whether to show a progress bar.

    Raises:
        ComparisonInterrupted: On Ctrl-C, with the finished tasks.
        MetricError: When the metric returns something that is not a score; no further task is started then.
        ResumeMismatchError: When `log_dir` holds the comparison of other programs, tasks or settings.
    """
    score = MetricCall(metric)
    plans = tuple(
        plan_runs(program, score, environment=environment, features=tuple(features), failure_score=failure_score)
        for program in (before, after)
    )
    pairs = _name_tasks(tasks, plans, scenario, rollout_id)
    config = {
        "metric": score.name,
        "failure_score": failure_score,
        "rollout_id": rollout_id,
        "environment": None if environment is None else type(environment).__qualname__,
    }
    digests = {name: _sha256(plan.program.dump_state()) for name, plan in zip(("before", "after"), plans, strict=True)}
    log = _open_log(log_dir, {**digests, "tasks": list(tasks), **config})
    alone = environment is not None and not isinstance(environment, ForkingEnvironment)
    runner = _Runner(pairs, Meter(budget), log)
    with runner.meter.installed():
        compared = runner.run(1 if alone else num_threads or default_num_workers(), progress)
    roles = {role: tuple(map(_task_id, members)) for role, members in (learned or {}).items()}
    identity = ResultIdentity(
        versions=_versions(),
        seeds=(seed,),
        config_hash=_sha256({**config, "success": success}),
        data_roles={**roles, "evaluated": tuple(pair.task_id for pair in pairs)},
        artifact_sha256=digests,
    )
    return compare_outcomes(compared, rng=branch_rng(seed, "comparison"), identity=identity, success=success)


@dataclass(frozen=True, slots=True)
class _Pair:
    """One task that both programs are to run."""

    task_id: str
    example: Any
    scenario: str | None
    plans: tuple[RunPlan, ...]
    rollout_id: int | None

    def run(self, meter: Meter) -> ComparedTask:
        """Run both programs, the one before first."""
        before, after = (self._arm(plan, meter) for plan in self.plans)
        return ComparedTask(self.task_id, before, after, self.scenario)

    def _arm(self, plan: RunPlan, meter: Meter) -> ArmOutcome:
        meter.check()
        episode = record_run(plan, self.example, rollout_id=self.rollout_id).episode
        if episode.missing is None and not episode.error:
            meter.count_metric_calls()
        return ArmOutcome(episode.score, failure=str(episode.missing or episode.error), spend=episode.spend)

    def not_run(self, reason: str) -> ComparedTask:
        """Return what stands for a task that was not run."""
        nothing = ArmOutcome(None, failure=f"not run: {reason}")
        return ComparedTask(self.task_id, nothing, nothing, self.scenario)


def _name_tasks(
    tasks: Sequence[Any],
    plans: tuple[RunPlan, ...],
    scenario: str | Callable[[Any], str | None] | None,
    rollout_id: int | None,
) -> list[_Pair]:
    """Check the tasks and give each an id of its own; a task that comes twice gets a number."""
    if not tasks:
        raise ValueError("tasks must hold at least one example, got none")
    pairs: list[_Pair] = []
    seen: Counter[str] = Counter()
    for example in tasks:
        check_example(example)
        name = task_name(example)
        seen[name] += 1
        task_id = name if seen[name] == 1 else f"{name}#{seen[name]}"
        pairs.append(_Pair(task_id, example, _scenario_of(example, scenario), plans, rollout_id))
    return pairs


def _scenario_of(example: Any, scenario: str | Callable[[Any], str | None] | None) -> str | None:
    if scenario is None:
        return None
    if callable(scenario):
        named = scenario(example)
    elif scenario in example:
        named = example[scenario]
    else:
        raise ValueError(f"scenario must be a field of every task, got {scenario!r}; this task has {example.keys()}")
    return None if named is None else str(named)


@dataclass(slots=True)
class _Runner:
    """Runs the pairs that are not on disk already."""

    pairs: list[_Pair]
    meter: Meter
    log: RunLog | None
    finished: dict[str, ComparedTask] = field(default_factory=dict)
    stop_reason: str = ""
    _failure: Exception | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, num_threads: int, progress: bool) -> list[ComparedTask]:
        from tqdm.auto import tqdm

        self.finished = _read_log(self.log)
        left = [pair for pair in self.pairs if pair.task_id not in self.finished]
        share_progress_bars()
        with tqdm(total=len(self.pairs), initial=len(self.pairs) - len(left), disable=not progress) as bar:

            def done(outcome: Outcome[ComparedTask]) -> None:
                task = outcome.value
                if task is None or task.task_id in self.finished:
                    return
                self.finished[task.task_id] = task
                bar.update()
                # A missing score is tried again by the next run, so only complete pairs are kept.
                if self.log is not None and task.gain is not None:
                    self.log.append(_to_record(task))

            try:
                ThreadExecutor(num_threads).run(self._run_one, left, on_done=done)
            except KeyboardInterrupt as interrupt:
                in_order = (self.finished.get(pair.task_id) for pair in self.pairs)
                raise ComparisonInterrupted(tuple(task for task in in_order if task is not None)) from interrupt
        if self._failure is not None:
            raise self._failure
        return [self.finished[pair.task_id] for pair in self.pairs]

    def _run_one(self, pair: _Pair) -> ComparedTask:
        if self.stop_reason:
            return pair.not_run(self.stop_reason)
        try:
            return pair.run(self.meter)
        except BudgetExhausted as spent:
            self._stop(str(spent), None)
            return pair.not_run(str(spent))
        except Exception as error:  # noqa: BLE001  raised again by `run`, once nothing is in flight any more
            self._stop(str(error), error)
            return pair.not_run(str(error))

    def _stop(self, reason: str, failure: Exception | None) -> None:
        with self._lock:
            self.stop_reason = self.stop_reason or reason
            self._failure = self._failure or failure


def _open_log(log_dir: str | os.PathLike[str] | None, parts: Mapping[str, Any]) -> RunLog | None:
    if log_dir is None:
        return None
    directory = Path(log_dir) / "comparison"
    check_fingerprint(directory, Fingerprint.of(parts))
    return RunLog(directory, name="tasks.jsonl")


def _to_record(task: ComparedTask) -> dict[str, Any]:
    arms = {name: getattr(task, name) for name in ("before", "after")}
    return {
        "task_id": task.task_id,
        "scenario": task.scenario,
        **{
            name: {"score": arm.score, "failure": arm.failure, "spend": arm.spend.to_dict()}
            for name, arm in arms.items()
        },
    }


def _read_log(log: RunLog | None) -> dict[str, ComparedTask]:
    finished: dict[str, ComparedTask] = {}
    for record in () if log is None else log.read():
        before, after = (
            ArmOutcome(record[name]["score"], record[name]["failure"], Spend.from_dict(record[name]["spend"]))
            for name in ("before", "after")
        )
        finished.setdefault(record["task_id"], ComparedTask(record["task_id"], before, after, record["scenario"]))
    return finished


def _task_id(task: Any) -> str:
    return task if isinstance(task, str) else task_name(task)


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
