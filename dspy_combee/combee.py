"""Combee: scale a prompt learner to large batches of traces.

The optimizer that users see. It checks arguments and wires the parts; the runs are in `learners.gepa_run` for a
wrapped `dspy.GEPA` and in `learners.rounds_run` for a `PromptLearner`, and for recorded traces whatever the base.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Any, Literal

import dspy
from dspy.teleprompt.teleprompt import Teleprompter

from dspy_combee.aggregation import make_aggregation
from dspy_combee.aggregation.base import Aggregation
from dspy_combee.batch_size import BatchSizeController
from dspy_combee.estimate import Estimate, estimate_gepa, estimate_rounds
from dspy_combee.examples import check_examples, check_program, check_split
from dspy_combee.learners.base import PromptLearner
from dspy_combee.report.result import CombeeResult
from dspy_combee.rounds.learner_extras import RoundsPlan, plan_of
from dspy_combee.runtime.budget import Budget
from dspy_combee.runtime.execution import make_executor
from dspy_combee.settings import Form, OnInterrupt, RunSettings

logger = logging.getLogger(__name__)

DEFAULT_INSTRUCTION_CHARS = 40_000


class Combee(Teleprompter):
    """Teach a DSPy program from large batches: parallel scan, augmented shuffle, dynamic batch size.

    Wraps a learner that reflects on a few traces at a time, and replaces the one call that turns reflections into an
    update: the reflections are dealt into groups, aggregated in parallel, and the group updates aggregated into one.

    Example:
        ```python
        optimizer = Combee(dspy.GEPA(metric=metric, auto="light", reflection_lm=lm))
        program = optimizer.compile(program, trainset=train, valset=val)
        optimizer.last_result
        ```
    """

    def __init__(
        self,
        base: Any,
        *,
        batch_size: int | Literal["auto"] = "auto",
        aggregation: str | Aggregation = "scan",
        form: Form | None = None,
        duplication: int = 2,
        group_size: int | None = None,
        max_fan_in: int | None = None,
        max_reflection_chars: int | None = None,
        max_instruction_chars: int | None = None,
        salvage: bool = True,
        controller: BatchSizeController | None = None,
        num_threads: int | None = None,
        execution: str = "threads",
        budget: Budget | None = None,
        patience: int | None = None,
        frozen: Sequence[str] = (),
        on_interrupt: OnInterrupt = "raise",
        seed: int = 0,
        log_dir: str | os.PathLike[str] | None = None,
        progress: bool = True,
    ) -> None:
        """Check and store the settings; nothing is run.

        Args:
            base: The learner: a `dspy.GEPA` (it is copied, never changed), or any `PromptLearner`.
            batch_size: Examples an iteration learns from; "auto" profiles and takes the knee of the delay curve.
            aggregation: "scan", "single_pass", "top_k", "summarize", "hierarchical", or an object of your own.
            form: What an aggregation call over GEPA writes: "lessons" (the user's text stays, checked lessons stand
                behind it) or "rewrite" (a whole new instruction, as published). None: lessons for "scan", rewrite
                for the other names. Over a `PromptLearner`, None: its own `curate` decides.
            duplication: How often each reflection is dealt (`p`).
            group_size: Distinct reflections a first-level call sees; None means about `sqrt(n)`, within the fan-in.
            max_fan_in: The most items that any call sees, copies counted; more groups and levels are planned when it
                is exceeded. None for 16, or what `group_size` needs; the published tree, which has no bound, is had
                with a number as large as all copies of a batch.
            max_reflection_chars: The most text that any aggregation call sees; None for 40,000.
            max_instruction_chars: The longest instruction that GEPA ever adopts; None for 40,000. Over a
                `PromptLearner`, None: its own limit (`ACE(max_playbook_tokens=...)`) holds.
            salvage: Whether records that no line of a "scan" cites get one more pass. It costs at most two calls, or a
                quarter of those of the first level.
            controller: Candidates, `tau` and cap of the batch-size controller; None for the defaults.
            num_threads: How many aggregation calls run at once; None for `dspy.settings.num_threads`. GEPA's rollouts
                run in its own `num_threads`; those of a `PromptLearner` in these, None for its own.
            execution: "threads".
            budget: Limits on metric calls, model calls, tokens and dollars, all models together; those of the base hold
                as well.
            patience: Rounds of GEPA, or validations of a `PromptLearner`, without a better candidate before the run
                ends; None for no such limit (or the learner's own).
            frozen: Predictors (names of `named_predictors()`) whose instruction must stay.
            on_interrupt: After Ctrl-C, "raise" or "return" the best program so far; it is on `last_result` either way.
            seed: Decides shuffles, minibatches and parents.
            log_dir: Where the run keeps its state, so that it can be resumed; None for the base's own.
            progress: Whether progress bars are shown.

        Raises:
            TypeError: `base` is neither a `dspy.GEPA` nor a `PromptLearner`, or an argument has the wrong type.
            ValueError: an argument is out of range or not one of the names.
        """
        super().__init__()
        _check_base(base)
        if isinstance(batch_size, bool) or not (batch_size == "auto" or isinstance(batch_size, int)):
            raise TypeError(f"batch_size must be an int or 'auto', got {batch_size!r}")
        if isinstance(batch_size, int) and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1 or 'auto', got {batch_size}")
        if patience is not None and patience < 1:
            raise ValueError(f"patience must be at least 1 or None, got {patience}")
        if on_interrupt not in ("raise", "return"):
            raise ValueError(f"on_interrupt must be 'raise' or 'return', got {on_interrupt!r}")
        if form not in (None, "lessons", "rewrite"):
            raise ValueError(f"form must be 'lessons', 'rewrite' or None, got {form!r}")
        if max_instruction_chars is not None and max_instruction_chars < 200:
            raise ValueError(f"max_instruction_chars must be at least 200, got {max_instruction_chars}")
        if budget is not None and not isinstance(budget, Budget):
            raise TypeError(f"budget must be a Budget or None, got {type(budget).__name__}")
        if not isinstance(base, _gepa_class()):
            _refuse_settings_of_gepa(form=form, max_instruction_chars=max_instruction_chars)
        self.base = base
        self.batch_size = batch_size
        self.aggregation = make_aggregation(
            aggregation,
            duplication=duplication,
            group_size=group_size,
            max_fan_in=max_fan_in,
            max_reflection_chars=max_reflection_chars,
            salvage=salvage,
        )
        self.form: Form = form or ("lessons" if self.aggregation.name == "scan" else "rewrite")
        self.max_instruction_chars = max_instruction_chars
        self.salvage = salvage
        self.controller = controller or BatchSizeController()
        make_executor(execution, num_threads)  # refuses what cannot be used before anything is run
        self.execution = execution
        self.num_threads = num_threads
        self.budget = budget or Budget()
        self.patience = patience
        self.frozen = tuple(frozen)
        self.on_interrupt: OnInterrupt = on_interrupt
        self.seed = seed
        self.log_dir = None if log_dir is None else os.fspath(log_dir)
        self.progress = progress
        self.last_result: CombeeResult | None = None

    def compile(  # pyright: ignore[reportIncompatibleMethodOverride]  # unknown arguments raise
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example] | None = None,
        teacher: dspy.Module | None = None,
        valset: list[dspy.Example] | None = None,
        traces: Any = None,
    ) -> dspy.Module:
        """Return a taught copy of the student; the record of the run is `last_result`.

        Args:
            student: The program; it is not changed.
            trainset: Examples to learn from, with their inputs marked. They are not run when there are traces.
            teacher: Not supported.
            valset: Examples that score the candidates. None: GEPA uses the trainset and warns; a `PromptLearner`, and
                a run on traces, return the last program.
            traces: Recorded trajectories to learn from instead of running the program: a path to JSON lines, any
                iterable of rows (a `datasets` data set, streaming or not, is one) or a `TraceReader`, which has a
                mapping for rows of another shape. A stream is read once and never held as a whole. Over GEPA, too,
                nothing is run: each batch of traces goes through the aggregation once, and the instructions get its
                lessons; the program is run only to validate, when there is a valset.

        Raises:
            ValueError: the data cannot be used, or a teacher was given.
            MetricError: the metric returns something that is not a score, or raises from the start.
            LMUnavailableError: a model does not answer.
            ResumeMismatchError: `log_dir` belongs to another run.
            KeyboardInterrupt: the run was interrupted; what it has found is on `last_result`.
        """
        self.last_result = None
        train, val = self._checked(student, trainset, teacher, valset, traces)
        run = self._run_of(student, train, val, traces)
        try:
            return run.run()
        finally:
            self.last_result = run.result

    def learn(self, program: dspy.Module, traces: Any, *, valset: list[dspy.Example] | None = None) -> dspy.Module:
        """Return a copy of the program taught by recorded trajectories, without running it; see `compile`.

        Example:
            ```python
            program = Combee(ACE(metric, reflection_lm=lm)).learn(program, "runs.jsonl")
            ```
        """
        return self.compile(program, traces=traces, valset=valset)

    def estimate(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        valset: list[dspy.Example] | None = None,
    ) -> Estimate:
        """Return upper bounds on what `compile` would spend, without calling a model.

        Args:
            student: The program that would be compiled.
            trainset: The examples to learn from.
            valset: The examples that score the candidates.

        Raises:
            ValueError: the data cannot be used.
        """
        train, val = self._checked(student, trainset, None, valset, None)
        if isinstance(self.base, _gepa_class()):
            return estimate_gepa(self.base, self._settings(), student, train, val)
        return estimate_rounds(self.base, self._settings(), student, train, val)

    def _run_of(
        self, student: dspy.Module, train: list[dspy.Example], val: list[dspy.Example] | None, traces: Any
    ) -> Any:
        settings = self._settings()
        is_gepa = isinstance(self.base, _gepa_class())
        if is_gepa and traces is None:
            from dspy_combee.learners.gepa_run import GepaRun

            return GepaRun(self.base, settings, student, train, val)
        from dspy_combee.learners.rounds_run import Material, RoundsRun
        from dspy_combee.traces import read_traces

        learner = self.base
        if is_gepa:
            from dspy_combee.learners.gepa_traces import GepaTraceLearner

            learner = GepaTraceLearner(self.base, student, settings)
        recorded = None if traces is None else read_traces(traces)
        return RoundsRun(learner, settings, student, Material(tuple(train), recorded, tuple(val or ())))

    def _checked(
        self,
        student: dspy.Module,
        trainset: list[dspy.Example] | None,
        teacher: dspy.Module | None,
        valset: list[dspy.Example] | None,
        traces: Any,
    ) -> tuple[list[dspy.Example], list[dspy.Example] | None]:
        if teacher is not None:
            raise ValueError("teacher must be None: Combee learns from the student's own rollouts")
        check_program(student)
        names = [name for name, _ in student.named_predictors()]
        unknown = sorted(set(self.frozen) - set(names))
        if unknown:
            raise ValueError(f"frozen must name predictors of the program, got {unknown}; it has {names}")
        if set(names) <= set(self.frozen):
            raise ValueError(f"frozen must leave a predictor to teach, got all of {names}")
        if trainset is None and traces is None:
            raise ValueError("trainset must be given, or traces")
        train = check_examples(trainset, "trainset") if trainset is not None and traces is None else []
        val = None if valset is None else check_examples(valset, "valset")
        if val is None and (traces is not None or not isinstance(self.base, _gepa_class())):
            logger.warning("No valset: nothing decides which program is the best, so the last one is returned.")
        elif trainset is not None:
            check_split(trainset, valset)
        return train, val

    def _settings(self) -> RunSettings:
        is_gepa = isinstance(self.base, _gepa_class())
        plan = RoundsPlan() if is_gepa else plan_of(self.base)
        num_threads = self.num_threads if self.num_threads is not None else plan.num_threads
        return RunSettings(
            batch_size=self.batch_size if isinstance(self.batch_size, int) else None,
            controller=self.controller,
            aggregation=self.aggregation,
            form=self.form,
            executor=make_executor(self.execution, num_threads),
            budget=self.budget.within(plan.budget),
            seed=self.seed,
            log_dir=self.log_dir or plan.log_dir,
            progress=self.progress,
            patience=self.patience,
            frozen=self.frozen,
            max_instruction_chars=self.max_instruction_chars or DEFAULT_INSTRUCTION_CHARS,
            on_interrupt=self.on_interrupt,
            clock=time.monotonic,
        )


def _gepa_class() -> Any:
    """Return `dspy.GEPA`; the type checker takes the decorated class for a function."""
    return dspy.GEPA


def _check_base(base: Any) -> None:
    if not isinstance(base, (_gepa_class(), PromptLearner)):
        raise TypeError(
            "base must be a dspy.GEPA or a PromptLearner (with generate, reflect, curate and update), "
            f"got {type(base).__name__}"
        )


def _refuse_settings_of_gepa(**settings: Any) -> None:
    given = [name for name, value in settings.items() if value is not None]
    if given:
        raise ValueError(f"{' and '.join(given)} must be None over a PromptLearner: its own curate and limits decide")
