"""What a learner may know beyond the four steps of `PromptLearner`: a learner without it works all the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from dspy_combee.learners.base import Reflection, Update
from dspy_combee.program_state import state_of, with_state


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


def dump_program(learner: Any, program: Any) -> Mapping[str, Any]:
    """Return what a checkpoint keeps of a program: what the learner says, or DSPy's own state."""
    return learner.dump_program(program) if isinstance(learner, KeepsPrograms) else {"state": state_of(program)}


def load_program(learner: Any, program: Any, state: Mapping[str, Any]) -> Any:
    """Return a copy of the program in the state of a checkpoint, with the models that the program had."""
    if isinstance(learner, KeepsPrograms):
        return learner.load_program(program, state)
    return with_state(program, state["state"])


def describe_program(learner: Any, program: Any) -> str:
    """Return a few words on the program; empty where the learner has none."""
    return learner.describe_program(program) if isinstance(learner, KeepsPrograms) else ""
