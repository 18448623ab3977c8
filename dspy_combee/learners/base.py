"""What every prompt learner shares: its records, and the protocol that Combee scales.

A prompt learner turns experience into better prompts in four steps (Combee, section 3): *generate* a trajectory,
*reflect* on it, *curate* the reflections into one update, *update* the program. Combee replaces the single call of
the third step by a parallel scan. No file below this one knows which learner it serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One run of the program on one example, with what the metric said about it."""

    record_id: str
    """Stable within a run, unique, and short enough to be cited by a model ("r17")."""
    example: Any
    """The `dspy.Example` that was run (or what a recorded trace holds in its place)."""
    prediction: Any = None
    """What the program returned; None when it raised."""
    score: float | None = None
    """What the metric said; None when nothing could be scored. Missing is not zero."""
    feedback: str = ""
    """The metric's own words, or the error text when the program raised."""
    trace: tuple[Any, ...] = ()
    """DSPy's own trace: (predictor, inputs, outputs) a predictor call, in call order."""
    error: str | None = None
    """Why the run has no prediction; None when it has one."""


@dataclass(frozen=True, slots=True)
class Reflection:
    """One thing that an aggregation call reads: a reflection on a trajectory or, at upper levels, a group's update."""

    text: str
    """What the aggregation call is shown."""
    record_ids: tuple[str, ...]
    """The records it came from: one for a first-hand reflection, those of its whole group for an update."""
    component: str = ""
    """The predictor that it is about, as `named_predictors()` spells it; empty for the whole program."""
    score: float | None = None
    """The score of the trajectory, where there is one."""
    update: Any = None
    """At upper levels, the group's update that this stands for; None at the first level."""
    details: Any = None
    """What else the learner wants its own `curate` to see (the raw record, for example)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of an update together with the records that taught it."""

    text: str
    record_ids: tuple[str, ...] = ()


class Update(Protocol):
    """What one aggregation call makes of its reflections. Immutable."""

    @property
    def entries(self) -> Sequence[Entry]:
        """The update line by line, with provenance; never empty for an update that is worth applying."""
        ...

    def render(self) -> str:
        """The update as the next level's call reads it."""
        ...


class Curate(Protocol):
    """The one aggregation call of a learner, seen as an associative operator.

    Called from several threads at once, each time with its own group. At upper levels each reflection carries the
    group update that it stands for in `Reflection.update`.
    """

    def __call__(self, reflections: Sequence[Reflection]) -> Update:
        """Distil one update from the reflections; raise when the model's reply cannot be used."""
        ...


@runtime_checkable
class PromptLearner(Protocol):
    """A learner that Combee can scale: four steps, each free of side effects on the program it is given.

    `generate`, `reflect` and `curate` are called from several threads at once, under the caller's DSPy context.
    """

    def generate(self, program: Any, example: Any, record_id: str) -> Trajectory:
        """Run the program on one example and score it. A program that raises gives a trajectory with an `error`."""
        ...

    def reflect(self, program: Any, trajectory: Trajectory) -> Sequence[Reflection]:
        """Say what one trajectory teaches: one reflection a component that it concerns, or none."""
        ...

    def curate(self, program: Any, reflections: Sequence[Reflection]) -> Update:
        """Distil the reflections (or, at upper levels, updates shown as reflections) into one update: one call."""
        ...

    def update(self, program: Any, update: Update) -> Any:
        """Return a copy of the program with the update applied; the given program is not changed."""
        ...


@dataclass(frozen=True, slots=True)
class TextUpdate:
    """The simplest update: a tuple of entries, rendered one a line. Enough for most learners."""

    entries: tuple[Entry, ...] = field(default=())

    def render(self) -> str:
        """Return the entries as a bullet list, each followed by the ids of its records in brackets."""
        return "\n".join(
            f"- {entry.text}" + (f" [{', '.join(entry.record_ids)}]" if entry.record_ids else "")
            for entry in self.entries
        )
