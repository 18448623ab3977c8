"""EvoCUE: learn at which call site of a DSPy program a lesson acts.

The optimizer that users see. It checks arguments and wires the parts; a round is in `rounds/round.py`.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import dspy
from dspy.teleprompt.teleprompt import Teleprompter

from dspy_combee.examples import check_examples, check_program
from dspy_combee.metrics import MetricCall
from dspy_combee.runtime.budget import Budget
from dspy_combee.runtime.retry import RetryPolicy
from dspy_combee.settings import OnInterrupt
from dspy_evocue.acceptance import AcceptanceCriterion, Anytime, MeanGain, Robust, find_criterion, for_run
from dspy_evocue.environments import Environment
from dspy_evocue.estimate import Estimate, estimate_run
from dspy_evocue.features import FeatureFunction, FeatureSet
from dspy_evocue.proposer import LMProposer, Proposer
from dspy_evocue.report.result import EvoCUEResult
from dspy_evocue.rounds.run import LearnerRun
from dspy_evocue.rounds.settings import LearnerSettings
from dspy_evocue.rounds.tasks import TaskPools, split_tasks
from dspy_evocue.rules import MINIMUM_TASKS

logger = logging.getLogger(__name__)


class EvoCUE(Teleprompter):
    """Teach an agent by small edits at its call sites, each tested from a checkpoint and confirmed on other tasks.

    An edit is a text that one predictor reads only when it is entered through one edge, under a rule. What the program
    says by itself is never touched; a run in which nothing is confirmed returns the program unchanged.

    Example:
        ```python
        optimizer = EvoCUE(metric, reflection_lm=lm, environment=deepcopy_environment(desk))
        program = optimizer.compile(agent, trainset=train)
        print(optimizer.last_result.explain())
        program.evocue.edits
        ```
    """

    def __init__(
        self,
        metric: Callable[..., Any],
        *,
        reflection_lm: Any = None,
        max_rounds: int = 3,
        candidates_per_round: int = 2,
        trial_tasks: int = 8,
        confirmation_tasks: int = 8,
        proposal_tasks: int | None = None,
        acceptance: str | AcceptanceCriterion = "anytime",
        environment: Environment | None = None,
        features: Sequence[FeatureFunction] = (),
        knowledge: str | Sequence[str] | None = None,
        max_cards: int = 4,
        skills: bool = False,
        proposer: Proposer | None = None,
        failure_score: float | None = 0.0,
        perfect_score: float = 1.0,
        budget: Budget | None = None,
        num_threads: int | None = None,
        patience: int | None = None,
        on_interrupt: OnInterrupt = "raise",
        track_stats: bool = False,
        seed: int = 0,
        log_dir: str | os.PathLike[str] | None = None,
        progress: bool = True,
    ) -> None:
        """Check and store the settings; nothing is run.

        Args:
            metric: As for `dspy.Evaluate` or `dspy.GEPA`; called once a run. Its feedback never reaches the learner.
            reflection_lm: The model that judges episodes and proposes edits; None for the one of the DSPy context.
            max_rounds: Rounds of proposing, trying and confirming.
            candidates_per_round: Edits that a round tries.
            trial_tasks: Tasks on which each of them is tried.
            confirmation_tasks: Other tasks that decide; with "anytime", up to twice as many pairs are run.
            proposal_tasks: Runs that a round records and learns from; None for half more than `trial_tasks`.
            acceptance: "anytime", "mean_gain", "robust", or an object with `name` and `judge`.
            environment: How to restore the tools' world; None for recorded observations and the control check.
            features: Functions of the state before a call, on which rules may test besides the built-in features.
            knowledge: Your own ideas, one text or several; the proposer reads them as untested evidence.
            max_cards: The most knowledge cards that are written from a round's episodes; 0 for none.
            skills: Whether a candidate may be a skill: operations on what a predictor returns, each a model call; on a
                `ControlProgram`, operations on an edge of its graph, which become a part of the graph.
            proposer: Where candidates come from; None for an `LMProposer`.
            failure_score: The score of a run in which the program raised; None to leave it missing.
            perfect_score: The best score there is.
            budget: Limits on metric calls, model calls, tokens and dollars, all models together.
            num_threads: How many runs go on at once; None for `dspy.settings.num_threads`. An environment that cannot
                fork runs one at a time.
            patience: Rounds without an inherited edit before the run ends; None for no such limit.
            on_interrupt: After Ctrl-C, "raise" or "return" the program so far; it is on `last_result` either way.
            track_stats: Whether the returned program carries the result as `detailed_results`.
            seed: Decides which tasks serve for what.
            log_dir: Where the run keeps everything that it pays for, so that it can be resumed; None for nowhere. It
                holds pickled recordings: resume only from directories that you trust.
            progress: Whether progress bars are shown.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range or not one of the names.
        """
        super().__init__()
        MetricCall(metric)
        for name, value in (
            ("max_rounds", max_rounds),
            ("candidates_per_round", candidates_per_round),
            ("confirmation_tasks", confirmation_tasks),
            ("num_threads", num_threads),
            ("patience", patience),
        ):
            _check_count(name, value, optional=name in ("num_threads", "patience"))
        for name, value in (("trial_tasks", trial_tasks), ("proposal_tasks", proposal_tasks)):
            # No rule rests on fewer, so nothing could ever be inherited.
            _check_count(name, value, optional=name == "proposal_tasks", least=MINIMUM_TASKS)
        _check_scores(failure_score, perfect_score)
        _check_parts(environment, proposer, budget, on_interrupt)
        if isinstance(max_cards, bool) or not isinstance(max_cards, int) or max_cards < 0:
            raise ValueError(f"max_cards must be an int of at least 0, got {max_cards!r}")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed must be an int, got {seed!r}")
        find_criterion(acceptance)
        self.metric = metric
        self.reflection_lm = reflection_lm
        self.max_rounds = max_rounds
        self.candidates_per_round = candidates_per_round
        self.trial_tasks = trial_tasks
        self.confirmation_tasks = confirmation_tasks
        self.proposal_tasks = proposal_tasks or trial_tasks + (trial_tasks + 1) // 2
        self.acceptance = acceptance
        self.environment = environment
        self.features = FeatureSet(tuple(features)).own
        self.knowledge = _ideas(knowledge)
        self.max_cards = max_cards
        self.skills = skills
        self.proposer = proposer or LMProposer()
        self.failure_score = failure_score
        self.perfect_score = perfect_score
        self.budget = budget or Budget()
        self.num_threads = num_threads
        self.patience = patience
        self.on_interrupt: OnInterrupt = on_interrupt
        self.track_stats = track_stats
        self.seed = seed
        self.log_dir = None if log_dir is None else os.fspath(log_dir)
        self.progress = progress
        self.last_result: EvoCUEResult | None = None
        _check_confirmation(self._settings())

    def compile(  # pyright: ignore[reportIncompatibleMethodOverride]  unknown arguments are refused
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        teacher: dspy.Module | None = None,
        valset: list[dspy.Example] | None = None,
    ) -> dspy.Module:
        """Return a taught copy of the student; the record of the run is `last_result`.

        Args:
            student: The program; it is not changed. It may carry edits already.
            trainset: Tasks to learn from, with their inputs marked; some are held out for confirmation.
            teacher: Not supported.
            valset: Tasks that only confirm; None to hold some of the trainset out.

        Raises:
            ValueError: The data cannot be used, or a teacher was given.
            MetricError: The metric returns something that is not a score, or raises from the start.
            LMUnavailableError: A model does not answer.
            ResumeMismatchError: `log_dir` belongs to another run.
            KeyboardInterrupt: The run was interrupted; what it has found is on `last_result`.
        """
        if teacher is not None:
            raise ValueError("teacher must be None: EvoCUE learns from the student's own runs")
        pools = self._pools(student, trainset, valset)
        settings = self._settings()
        _warn_of_small_budget(settings.budget, estimate_run(settings, student, pools))
        run = LearnerRun(settings, student, pools)
        try:
            program = run.run()
        finally:
            self.last_result = run.result
        if self.track_stats:
            vars(program)["detailed_results"] = run.result
        return program

    def estimate(
        self, student: dspy.Module, *, trainset: list[dspy.Example], valset: list[dspy.Example] | None = None
    ) -> Estimate:
        """Return upper bounds on what `compile` would spend, without calling a model.

        Args:
            student: The program that would be compiled.
            trainset: As for `compile`.
            valset: As for `compile`.

        Raises:
            ValueError: The data cannot be used.
        """
        return estimate_run(self._settings(), student, self._pools(student, trainset, valset))

    def _pools(
        self, student: dspy.Module, trainset: list[dspy.Example], valset: list[dspy.Example] | None
    ) -> TaskPools:
        check_program(student)
        return split_tasks(
            check_examples(trainset, "trainset"),
            None if valset is None else check_examples(valset, "valset"),
            trial_tasks=self.trial_tasks,
            confirmation_tasks=self.confirmation_tasks,
            max_rounds=self.max_rounds,
            seed=self.seed,
        )

    def _settings(self) -> LearnerSettings:
        return LearnerSettings(
            metric=self.metric,
            reflection_lm=self.reflection_lm,
            proposer=self.proposer,
            max_rounds=self.max_rounds,
            candidates_per_round=self.candidates_per_round,
            proposal_tasks=self.proposal_tasks,
            trial_tasks=self.trial_tasks,
            confirmation_tasks=self.confirmation_tasks,
            acceptance=self.acceptance,
            environment=self.environment,
            features=self.features,
            knowledge=self.knowledge,
            max_cards=self.max_cards,
            skills=self.skills,
            failure_score=self.failure_score,
            perfect_score=self.perfect_score,
            budget=self.budget,
            num_threads=self.num_threads,
            seed=self.seed,
            log_dir=self.log_dir,
            progress=self.progress,
            patience=self.patience,
            on_interrupt=self.on_interrupt,
            retry=RetryPolicy(),
            clock=time.monotonic,
        )


def _check_count(name: str, value: Any, *, optional: bool, least: int = 1) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int{' or None' if optional else ''}, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _check_confirmation(settings: LearnerSettings) -> None:
    """Check that the criterion could accept anything; an object of the user's own is not asked before it has to be."""
    criterion = for_run(settings.criterion, settings.max_rounds)
    pairs = settings.confirmation_pairs
    is_known = type(criterion) in (MeanGain, Robust, Anytime)
    if is_known and not criterion.judge([settings.largest_gain] * pairs).accepted:
        raise ValueError(
            f"confirmation_tasks must be enough for acceptance={criterion.name!r} in {settings.max_rounds} rounds, got "
            f"{settings.confirmation_tasks}: not even {pairs} gains in {pairs} pairs would be accepted; raise it, or "
            "lower max_rounds"
        )


def _check_scores(failure_score: Any, perfect_score: Any) -> None:
    for name, value in (("failure_score", failure_score), ("perfect_score", perfect_score)):
        if value is None and name == "failure_score":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, got {value!r}")
    if perfect_score <= (failure_score or 0.0):
        raise ValueError(f"perfect_score must be above failure_score and 0, got {perfect_score} and {failure_score}")


def _check_parts(environment: Any, proposer: Any, budget: Any, on_interrupt: Any) -> None:
    if environment is not None and not isinstance(environment, Environment):
        raise TypeError(f"environment must have reset, snapshot and restore, got {environment!r}")
    if proposer is not None and not callable(getattr(proposer, "propose", None)):
        raise TypeError(f"proposer must have propose(request), got {proposer!r}")
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(f"budget must be a Budget or None, got {type(budget).__name__}")
    if on_interrupt not in ("raise", "return"):
        raise ValueError(f"on_interrupt must be 'raise' or 'return', got {on_interrupt!r}")


def _ideas(knowledge: str | Sequence[str] | None) -> tuple[str, ...]:
    ideas = () if knowledge is None else (knowledge,) if isinstance(knowledge, str) else tuple(knowledge)
    for idea in ideas:
        if not isinstance(idea, str):
            raise TypeError(f"knowledge must be a text or several, got {idea!r}")
    return ideas


def _warn_of_small_budget(budget: Budget, estimate: Estimate) -> None:
    limit = budget.max_metric_calls
    if limit is not None and limit < estimate.metric_calls_per_round:
        logger.warning(
            "max_metric_calls=%d may not be enough for one round: it takes up to %d scored runs (%s).",
            limit,
            estimate.metric_calls_per_round,
            estimate.reasons[0],
        )
