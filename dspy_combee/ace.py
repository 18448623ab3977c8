"""ACE, a DSPy teleprompter: a program learns a playbook from its own runs (Agentic Context Engineering).

Here arguments are checked and parts are wired. The four steps are inherited from `learners.ace`, the loop is in
`rounds`, and how many reflections meet in one call is the aggregation's business: alone, ACE learns from one example
at a time; `Combee(ACE(...))` learns from many.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.teleprompt import Teleprompter

from dspy_combee.aggregation.base import Aggregation
from dspy_combee.aggregation.single_pass import SinglePass
from dspy_combee.examples import check_examples, check_program, check_split
from dspy_combee.learners.ace import ACELearner, ACESettings, Scope
from dspy_combee.learners.base import Trajectory
from dspy_combee.metrics import MetricCall
from dspy_combee.playbook import Playbook, approximate_tokens
from dspy_combee.playbook.deduplicate import Embed
from dspy_combee.playbook.limit import CountTokens
from dspy_combee.rounds import (
    ExampleSource,
    FixedBatchSize,
    RoundRecord,
    RoundSchedule,
    RoundsResult,
    TraceSource,
    TrainingSource,
    Validation,
    run_rounds,
    spent_before,
    validate,
)
from dspy_combee.runtime.budget import Budget, Meter
from dspy_combee.runtime.execution.threads import ThreadExecutor, default_num_workers
from dspy_combee.runtime.retry import RetryPolicy
from dspy_combee.runtime.run_log import check_fingerprint, fingerprint_run

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdaptResult:
    """What `ACE.adapt` made of a stream of examples."""

    program: Any
    """The program after the last window."""
    trajectories: tuple[Trajectory, ...]
    """One an example, in order: the prediction made before anything was learned from its window, and its score."""
    result: RoundsResult

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
        TypeError: The metric cannot be called as a metric.
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
        embedder: Embed | None = None,
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
        self.last_result: RoundsResult | None = None

    def compile(  # pyright: ignore[reportIncompatibleMethodOverride] - unknown arguments raise
        self,
        student: Any,
        *,
        trainset: Sequence[Any] | None = None,
        teacher: Any = None,
        valset: Sequence[Any] | None = None,
        traces: Iterable[Trajectory] | None = None,
    ) -> Any:
        """Return a copy of the student that has learned; with a validation set, the best one on the way.

        Args:
            student: Any `dspy.Module`; not changed.
            trainset: The examples to learn from.
            teacher: Not used; ACE has no teacher.
            valset: Decides which playbook is the best; None or empty keeps the last one.
            traces: Recorded trajectories to learn from instead of running the trainset.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: An argument cannot be used, or a model is missing.
            KeyboardInterrupt: After an interrupt; `last_result.program` is the best program so far.
            LMUnavailableError: The model failed on everything.
            MetricError: The metric returned something that is no score.
            ResumeMismatchError: `log_dir` belongs to another run.
        """
        if teacher is not None:
            raise ValueError("teacher must be None: ACE learns from the student's own runs")
        source = self._source(trainset, traces)
        valset = check_examples(valset, "valset") if valset else []
        if valset and self.metric is None:
            raise ValueError("valset must be None without a metric: nothing could score it")
        program = self.prepare(student)
        if not valset:
            logger.warning("No valset: nothing decides which playbook is the best, so the last one is returned.")
        elif trainset is not None:
            check_split(trainset, valset)
        if self.log_dir is not None:
            check_fingerprint(self.log_dir, self._fingerprint(student, trainset, valset))
        meter = Meter(self.budget, already_spent=spent_before(self.log_dir))
        result = self._run(program, source, valset=valset, meter=meter)
        if self.track_stats:
            result.program.detailed_results = result
        return result.program

    def adapt(self, program: Any, examples: Sequence[Any], *, window: int = 1) -> AdaptResult:
        """Predict and learn as the examples come: each window is predicted before anything is learned from it.

        Args:
            program: Where to start; not changed.
            examples: In the order in which they come; scored by the metric when there is one.
            window: How many examples are predicted with one playbook.
        """
        examples = check_examples(examples, "examples")
        seen: list[Trajectory] = []
        source = ExampleSource(examples, shuffle=False)
        result = self._run(
            self.prepare(program),
            source,
            valset=(),
            meter=Meter(self.budget),
            batch_size=window,
            log_dir=None,
            on_round=lambda _, trajectories: seen.extend(trajectories),
        )
        return AdaptResult(result.program, tuple(seen), result)

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

    def _source(self, trainset: Sequence[Any] | None, traces: Iterable[Trajectory] | None) -> TrainingSource:
        if traces is not None:
            return TraceSource(traces)
        if trainset is None:
            raise ValueError("trainset must be given, or traces")
        checked = check_examples(trainset, "trainset")
        return ExampleSource(checked, epochs=self.max_epochs, seed=self.seed, shuffle=self.shuffle)

    def _run(
        self,
        program: Any,
        source: TrainingSource,
        *,
        valset: Sequence[Any],
        meter: Meter,
        batch_size: int | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        on_round: Callable[[RoundRecord, Sequence[Trajectory]], None] | None = None,
    ) -> RoundsResult:
        with ExitStack() as stack:
            stack.enter_context(meter.installed())
            bar = stack.enter_context(_progress_bar(source.total, shown=self.progress))

            def on_each_round(record: RoundRecord, trajectories: Sequence[Trajectory]) -> None:
                bar.update(record.batch_size)
                if on_round is not None:
                    on_round(record, trajectories)

            return run_rounds(
                self,
                program,
                source,
                aggregation=self.aggregation,
                executor=ThreadExecutor(self._workers()),
                valset=valset,
                batch_sizes=FixedBatchSize(self.batch_size if batch_size is None else batch_size),
                schedule=self.schedule,
                meter=meter,
                retry=self.retry,
                reflection_lm=self.reflection_lm,
                seed=self.seed,
                log_dir=self.log_dir if batch_size is None else log_dir,
                on_round=on_each_round,
                on_result=self._keep_result,
            )

    def _keep_result(self, result: RoundsResult) -> None:
        self.last_result = result

    def _workers(self) -> int:
        return self.num_threads if self.num_threads is not None else default_num_workers()

    def _fingerprint(self, student: Any, trainset: Sequence[Any] | None, valset: Sequence[Any]) -> Any:
        books = self.playbook
        config = {
            "metric": self.metric,
            "max_epochs": self.max_epochs,
            "batch_size": self.batch_size,
            "reflection_rounds": self._settings.reflection_rounds,
            "max_playbook_tokens": self._settings.max_playbook_tokens,
            "playbook": books.to_dict()
            if isinstance(books, Playbook)
            else {n: b.to_dict() for n, b in (books or {}).items()},
            "scope": self._settings.scope,
            "use_labels": self._settings.use_labels,
            "frozen": self._settings.frozen,
            "aggregation": self.aggregation.name,
            "shuffle": self.shuffle,
            "seed": self.seed,
        }
        return fingerprint_run(student, trainset=trainset or (), valset=valset, config=config)


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be an int of at least 1, got {value!r}")


def _progress_bar(total: int | None, *, shown: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc="ACE", unit="example", disable=not shown)
