"""ACE, a DSPy teleprompter: a program learns a playbook from its own runs (Agentic Context Engineering).

Here arguments are checked and parts are wired. The four steps are inherited from `learners.ace`, the loop is in
`rounds`, and how many reflections meet in one call is the aggregation's business: alone, ACE learns from one example
at a time; `Combee(ACE(...))` learns from many.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.teleprompt import Teleprompter

from dspy_combee.aggregation.base import Aggregation
from dspy_combee.aggregation.single_pass import SinglePass
from dspy_combee.batch_size import BatchSizeController
from dspy_combee.clusters import Embedder
from dspy_combee.examples import check_examples, check_program, check_split
from dspy_combee.learners.ace import ACELearner, ACESettings, Scope
from dspy_combee.learners.base import Trajectory
from dspy_combee.learners.rounds_run import Material, RoundsRun
from dspy_combee.metrics import MetricCall
from dspy_combee.playbook import Playbook, approximate_tokens
from dspy_combee.playbook.limit import CountTokens
from dspy_combee.report.result import CombeeResult
from dspy_combee.rounds import RoundSchedule, RoundsPlan, Validation, validate
from dspy_combee.runtime.budget import Budget
from dspy_combee.runtime.execution.threads import ThreadExecutor, default_num_workers
from dspy_combee.runtime.retry import RetryPolicy
from dspy_combee.settings import RunSettings
from dspy_combee.traces import read_traces

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdaptResult:
    """What `ACE.adapt` made of a stream of examples."""

    program: Any
    """The program after the last window."""
    trajectories: tuple[Trajectory, ...]
    """One an example, in order: the prediction made before anything was learned from its window, and its score.

    One that the model or the metric failed on has its `error` alone; those that a budget did not reach are left out.
    """
    result: CombeeResult

    @property
    def score(self) -> float | None:
        """The mean score of the predictions; None when none could be scored."""
        known = [t.score for t in self.trajectories if t.score is not None]
        return sum(known) / len(known) if known else None


class ACE(ACELearner, Teleprompter):
    """Let a program learn a playbook: itemised lessons with ids, sections and votes, carried in its instructions.

    Each round runs the program on a batch, reflects on every run with the playbook at hand (what went wrong, why, what
    would have been right, which entries helped or hurt), and curates the reflections into operations on the playbook.
    The user's own instructions stay as they are, byte for byte; the compiled program is an ordinary DSPy program.

    Args:
        metric: Any DSPy metric, with or without feedback text; None only with `use_labels=False`.
        reflection_lm: The model that reflects and curates; None means that of `dspy.settings`.
        max_epochs: How often the train set is gone through, each time in another order.
        reflection_rounds: How often each reflection is made sharper, 1 means once and done.
        max_playbook_tokens: The limit on each rendered playbook. Whole entries are dropped above it, the least helpful
            first; none is cut.
        playbook: What to start from: one for all predictors, or one a predictor by name; None means what the program
            carries already.
        batch_size: Examples a round. All of a batch are curated against one playbook.
        scope: "predictor" for a playbook for each predictor, "program" for one that all share.
        use_labels: False learns without the score, the feedback and the expected outputs ever being shown.
        frozen: Names of predictors that learn nothing, as `named_predictors()` spells them.
        validate_every: Training examples between validations; None validates after each epoch. The end always does.
        patience: Validations in a row without improvement after which to stop; None for never.
        rollback: Whether a validation below the best goes back to the best playbook.
        perfect_score: A validation score at which to stop at once.
        failure_score: What a program that raises scores in a validation.
        aggregation: How the reflections of a batch become one update; None means one call.
        count_tokens: How the model counts tokens; the default is a cautious estimate.
        embedder: Texts to vectors, to find entries that mean the same; None compares words only.
        max_reflection_chars: The most text of one run that a reflection sees; more is cut in the middle, visibly.
        budget: The most to spend; None for no limit.
        retry: For rate limits, outages and time-outs; None means three attempts with a growing wait.
        num_threads: Runs at once; None means DSPy's own setting.
        shuffle: Whether each epoch has an order of its own.
        seed: For that order.
        log_dir: Where the run is kept; the same call again goes on where it was.
        progress: Whether to show a progress bar.
        track_stats: Whether the program gets `detailed_results`.

    Raises:
        TypeError: The metric cannot be called as a metric, or an argument is of the wrong type.
        ValueError: An argument is out of range.

    Example:
        >>> optimizer = ACE(metric, reflection_lm=dspy.LM("openai/gpt-4.1"))  # doctest: +SKIP
        >>> better = optimizer.compile(program, trainset=train, valset=val)  # doctest: +SKIP
        >>> print(Playbook.from_program(better).render())  # doctest: +SKIP
    """

    def __init__(
        self,
        metric: Callable[..., Any] | None,
        *,
        reflection_lm: Any = None,
        max_epochs: int = 1,
        reflection_rounds: int = 1,
        max_playbook_tokens: int = 8_000,
        playbook: Playbook | Mapping[str, Playbook] | None = None,
        batch_size: int = 1,
        scope: Scope = "predictor",
        use_labels: bool = True,
        frozen: Sequence[str] = (),
        validate_every: int | None = None,
        patience: int | None = None,
        rollback: bool = False,
        perfect_score: float = 1.0,
        failure_score: float = 0.0,
        aggregation: Aggregation | None = None,
        count_tokens: CountTokens = approximate_tokens,
        embedder: Embedder | None = None,
        max_reflection_chars: int = 20_000,
        budget: Budget | None = None,
        retry: RetryPolicy | None = None,
        num_threads: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        log_dir: str | os.PathLike[str] | None = None,
        progress: bool = True,
        track_stats: bool = False,
    ) -> None:
        """Check and store the arguments; nothing is run."""
        _check_counts(
            max_epochs=max_epochs,
            reflection_rounds=reflection_rounds,
            max_playbook_tokens=max_playbook_tokens,
            batch_size=batch_size,
            max_reflection_chars=max_reflection_chars,
            num_threads=1 if num_threads is None else num_threads,
        )
        _check_types(
            playbook=(playbook, Playbook | Mapping, "a Playbook or a mapping of them by predictor name"),
            aggregation=(aggregation, Aggregation, 'an object; Combee(ACE(...), aggregation="scan") takes names'),
            count_tokens=(count_tokens, Callable, "a function from a text to a count"),
            embedder=(embedder, Callable, "a function from texts to vectors"),
            budget=(budget, Budget, "a Budget"),
            retry=(retry, RetryPolicy, "a RetryPolicy"),
        )
        for book in playbook.values() if isinstance(playbook, Mapping) else ():
            _check_types(playbook=(book, Playbook, "a Playbook or a mapping of them by predictor name"))
        if scope not in ("predictor", "program"):
            raise ValueError(f'scope must be "predictor" or "program", got {scope!r}')
        if isinstance(frozen, str):
            raise TypeError(f"frozen must be a list of predictor names, got the text {frozen!r}")
        if metric is None and use_labels:
            raise ValueError("metric must be given unless use_labels=False, got None")
        self.metric = metric
        self.reflection_lm = reflection_lm
        self.max_epochs = max_epochs
        self.playbook = playbook
        self.batch_size = batch_size
        self.aggregation = aggregation if aggregation is not None else SinglePass()
        self.budget = budget
        self.retry = retry
        self.num_threads = num_threads
        self.shuffle = shuffle
        self.seed = seed
        self.log_dir = log_dir
        self.progress = progress
        self.track_stats = track_stats
        self.schedule = RoundSchedule(
            validate_every=validate_every,
            patience=patience,
            rollback=rollback,
            perfect_score=perfect_score,
            failure_score=failure_score,
        )
        settings = ACESettings(
            reflection_lm=reflection_lm,
            reflection_rounds=reflection_rounds,
            max_playbook_tokens=max_playbook_tokens,
            count_tokens=count_tokens,
            embed=embedder,
            scope=scope,
            use_labels=use_labels,
            frozen=tuple(frozen),
            max_reflection_chars=max_reflection_chars,
        )
        call = MetricCall(metric, perfect_score=perfect_score) if metric is not None else None
        ACELearner.__init__(self, call, settings)
        self.last_result: CombeeResult | None = None

    def compile(  # pyright: ignore[reportIncompatibleMethodOverride] - unknown arguments raise
        self,
        student: Any,
        *,
        trainset: Sequence[Any] | None = None,
        teacher: Any = None,
        valset: Sequence[Any] | None = None,
        traces: Any = None,
    ) -> Any:
        """Return a copy of the student that has learned; with a validation set, the best one on the way.

        Args:
            student: Any `dspy.Module`; not changed.
            trainset: The examples to learn from.
            teacher: Not used; ACE has no teacher.
            valset: Decides which playbook is the best; None or empty keeps the last one.
            traces: Recorded trajectories to learn from instead of running the trainset: a path to JSON lines, any
                iterable of rows, or a `TraceReader`, as `Combee.compile` takes them.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: An argument cannot be used, a model is missing, or no trace can be read.
            KeyboardInterrupt: After an interrupt; `last_result.best_program` is the best program so far.
            LMUnavailableError: The model failed on everything.
            MetricError: The metric returned something that is no score.
            ResumeMismatchError: `log_dir` belongs to another run.
        """
        if teacher is not None:
            raise ValueError("teacher must be None: ACE learns from the student's own runs")
        if trainset is None and traces is None:
            raise ValueError("trainset must be given, or traces")
        train = () if trainset is None or traces is not None else tuple(check_examples(trainset, "trainset"))
        val = tuple(check_examples(valset, "valset")) if valset else ()
        if val and self.metric is None:
            raise ValueError("valset must be None without a metric: nothing could score it")
        if not val:
            logger.warning("No valset: nothing decides which playbook is the best, so the last one is returned.")
        elif train:
            check_split(train, val)
        log_dir = None if self.log_dir is None else os.fspath(self.log_dir)
        recorded = None if traces is None else read_traces(traces)
        return self._run(student, Material(train, recorded, val), batch_size=self.batch_size, log_dir=log_dir)

    def adapt(self, program: Any, examples: Sequence[Any], *, window: int = 1) -> AdaptResult:
        """Predict and learn as the examples come: each window is predicted before anything is learned from it.

        Args:
            program: Where to start; not changed.
            examples: In the order in which they come; scored by the metric when there is one.
            window: How many examples are predicted with one playbook.

        Raises:
            ValueError: An argument cannot be used.
        """
        _check_counts(window=window)
        material = Material(tuple(check_examples(examples, "examples")), in_order=True)
        seen: list[Trajectory] = []
        adapted = self._run(program, material, batch_size=window, log_dir=None, on_trajectories=seen.extend)
        assert self.last_result is not None
        return AdaptResult(adapted, tuple(seen), self.last_result)

    def evaluate(self, program: Any, devset: Sequence[Any]) -> Validation:
        """Score a program as it is; nothing is learned. A model that fails is missing evidence and no zero.

        Raises:
            LMUnavailableError: More than half of the examples could not be scored.
        """
        if self.metric is None:
            raise ValueError("evaluate needs a metric, got None")
        devset = check_examples(devset, "devset")
        executor = ThreadExecutor(self._workers())
        return validate(self.generate, program, devset, executor=executor, failure_score=self.schedule.failure_score)

    def prepare(self, student: Any) -> Any:
        """Return a copy of a checked student with the playbook to start from."""
        check_program(student)
        names = [name for name, _ in student.named_predictors()]
        unknown = [name for name in self._settings.frozen if name not in names]
        if unknown:
            raise ValueError(f"frozen must name predictors of the program, {names}, got {unknown}")
        if not self.learning_predictors(student):
            raise ValueError("frozen must leave a predictor that learns, got all of them")
        if self.reflection_lm is None and dspy.settings.lm is None:
            raise ValueError("reflection_lm must be given when dspy.settings has no lm")
        return self.with_playbooks(student, self.playbook)

    def rounds_plan(self) -> RoundsPlan:
        """Return how the runs of this learner go, alone or under `Combee`."""
        return RoundsPlan(
            epochs=self.max_epochs,
            shuffle=self.shuffle,
            schedule=self.schedule,
            reflection_lm=self.reflection_lm,
            retry=self.retry,
            num_threads=self.num_threads,
            budget=self.budget if self.budget is not None else Budget(),
            log_dir=None if self.log_dir is None else os.fspath(self.log_dir),
            reflection_calls=self._settings.reflection_rounds,
            tracks_stats=self.track_stats,
            settings=self._fingerprinted(),
        )

    def _run(
        self,
        student: Any,
        material: Material,
        *,
        batch_size: int,
        log_dir: str | None,
        on_trajectories: Callable[[Sequence[Trajectory]], None] | None = None,
    ) -> Any:
        settings = RunSettings(
            batch_size=batch_size,
            controller=BatchSizeController(),
            aggregation=self.aggregation,
            form="lessons",
            executor=ThreadExecutor(self._workers()),
            budget=self.budget if self.budget is not None else Budget(),
            seed=self.seed,
            log_dir=log_dir,
            progress=self.progress,
            patience=None,
            frozen=(),
            max_instruction_chars=0,
            on_interrupt="raise",
            clock=time.monotonic,
        )
        run = RoundsRun(self, settings, student, material, name="ACE", on_trajectories=on_trajectories)
        try:
            return run.run()
        finally:
            self.last_result = run.result

    def _workers(self) -> int:
        return self.num_threads if self.num_threads is not None else default_num_workers()

    def _fingerprinted(self) -> dict[str, Any]:
        books = self.playbook
        return {
            "metric": self.metric,
            "max_epochs": self.max_epochs,
            "reflection_rounds": self._settings.reflection_rounds,
            "max_playbook_tokens": self._settings.max_playbook_tokens,
            "playbook": books.to_dict()
            if isinstance(books, Playbook)
            else {n: b.to_dict() for n, b in (books or {}).items()},
            "scope": self._settings.scope,
            "use_labels": self._settings.use_labels,
            "own frozen": self._settings.frozen,
            "shuffle": self.shuffle,
        }


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be an int of at least 1, got {value!r}")


def _check_types(**arguments: tuple[Any, Any, str]) -> None:
    """Refuse an argument that is there and of another type; each is given as value, type and what it must be."""
    for name, (value, wanted, words) in arguments.items():
        if value is not None and not isinstance(value, wanted):
            raise TypeError(f"{name} must be {words}, got {type(value).__name__}")
