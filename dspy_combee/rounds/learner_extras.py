"""What a learner may know beyond the four steps of `PromptLearner`: a learner without it works all the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from dspy_combee.learners.base import PromptLearner, Reflection, Update
from dspy_combee.program_state import state_of, with_state
from dspy_combee.provenance import SourcedLine
from dspy_combee.rounds.records import RoundSchedule
from dspy_combee.runtime.budget import Budget
from dspy_combee.runtime.retry import RetryPolicy


@runtime_checkable
class JoinsUpdates(Protocol):
    """A learner whose updates can be joined in code."""

    def join(self, updates: Sequence[Update]) -> Update:
        """Return one update that holds everything the updates hold, without a call."""
        ...


@runtime_checkable
class CondensesReflections(Protocol):
    """A learner whose reflections carry more than text, which a summary of them must not lose."""

    def condense(self, reflections: Sequence[Reflection], summary: str) -> Reflection:
        """Return one reflection that stands for several, with the summary as its text."""
        ...


@runtime_checkable
class KeepsPrograms(Protocol):
    """A learner whose programs hold more than DSPy's own state, or that has something to say about their size."""

    def dump_program(self, program: Any) -> Mapping[str, Any]:
        """Return what a checkpoint keeps of a program, as JSON data."""
        ...

    def load_program(self, program: Any, state: Mapping[str, Any]) -> Any:
        """Return a copy of the program in the state of a checkpoint."""
        ...

    def describe_program(self, program: Any) -> str:
        """Return a few words on the program for the log line of a round; empty for none."""
        ...


@runtime_checkable
class NeverReusesIds(Protocol):
    """A learner whose programs hold ids, none of which may be given twice, not even after a rollback."""

    def going_back(self, kept: Any, discarded: Any) -> Any:
        """Return a copy of the kept program that will give no id which the discarded program has given."""
        ...


@dataclass(frozen=True, slots=True)
class RoundsPlan:
    """How a learner wants its runs to go. The defaults are those of a learner that does not say."""

    epochs: int = 1
    shuffle: bool = True
    schedule: RoundSchedule = field(default_factory=RoundSchedule)
    reflection_lm: Any = None
    """The model of reflections and aggregation calls; None means that of the caller's context."""
    retry: RetryPolicy | None = None
    num_threads: int | None = None
    budget: Budget = field(default_factory=Budget)
    log_dir: str | None = None
    reflection_calls: int | None = None
    """Model calls of one `reflect` at the most; None when nobody knows."""
    tracks_stats: bool = False
    """Whether the compiled program gets `detailed_results`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What a resumed run must share with the one before, by names that an error can use."""


@runtime_checkable
class PlansRounds(Protocol):
    """A learner with settings of its own for a run: epochs, models, limits."""

    def rounds_plan(self) -> RoundsPlan:
        """Return the settings."""
        ...


@runtime_checkable
class PreparesPrograms(Protocol):
    """A learner whose programs must be looked at, or given something, before the first round."""

    def prepare(self, student: Any) -> Any:
        """Return a copy of the student that is ready to be taught; refuse one that cannot be."""
        ...


@runtime_checkable
class FreezesPredictors(Protocol):
    """A learner that can leave predictors alone. Of one that cannot, their reflections are dropped."""

    def freezing(self, names: Sequence[str]) -> PromptLearner:
        """Return the same learner, which teaches these predictors nothing."""
        ...


@runtime_checkable
class NamesLearnedLines(Protocol):
    """A learner that can tell which lines of a program it has taught, with the records behind each."""

    def learned_lines(self, program: Any) -> Sequence[SourcedLine]:
        """Return the lines in the order in which they stand."""
        ...


def plan_of(learner: Any) -> RoundsPlan:
    """Return how the learner wants its runs to go."""
    return learner.rounds_plan() if isinstance(learner, PlansRounds) else RoundsPlan()


def dump_program(learner: Any, program: Any) -> Mapping[str, Any]:
    """Return what a checkpoint keeps of a program: what the learner says, or DSPy's own state."""
    return learner.dump_program(program) if isinstance(learner, KeepsPrograms) else {"state": state_of(program)}


def load_program(learner: Any, program: Any, state: Mapping[str, Any]) -> Any:
    """Return a copy of the program in the state of a checkpoint, with the models that the program had."""
    if isinstance(learner, KeepsPrograms):
        return learner.load_program(program, state)
    return with_state(program, state["state"])


def going_back(learner: Any, kept: Any, discarded: Any) -> Any:
    """Return the program with which a run goes on that goes back to a better one."""
    return learner.going_back(kept, discarded) if isinstance(learner, NeverReusesIds) else kept


def describe_program(learner: Any, program: Any) -> str:
    """Return a few words on the program; empty where the learner has none."""
    return learner.describe_program(program) if isinstance(learner, KeepsPrograms) else ""
