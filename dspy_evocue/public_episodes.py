"""Episodes as the learner may see them: what the agent saw, and the score after the end.

Every prompt of the learner is made from these records and nothing else. They have no place for a label, a reference
answer or the metric's reasons, so none can enter. Texts are bounded by cutting out their middle, visibly. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dspy_combee.records import holds_media, render_value

MAX_STEP_CHARS = 1200
"""How much of one step is shown, unless asked for otherwise."""
MAX_EPISODE_CHARS = 12000
"""How much of one episode is shown, unless asked for otherwise."""


@dataclass(frozen=True, slots=True)
class PublicStep:
    """One thing that the agent did or saw."""

    node: str
    """Where it happened: a predictor ("react") or a tool ("tool:search")."""
    text: str
    """What was written or observed there."""


@dataclass(frozen=True, slots=True)
class PublicEpisode:
    """One run of the agent on one task, as the agent itself could tell it, plus the final score."""

    task_id: str
    """Short and unique, so that a model can cite it: "t3"."""
    inputs: Mapping[str, str]
    """The inputs of the task as text, by field; only the fields that `with_inputs` names."""
    steps: tuple[PublicStep, ...] = ()
    """In order; they are cited by their number, from 1."""
    final_score: float | None = None
    """The score after the end; None when there is none. Missing is not zero."""

    def __post_init__(self) -> None:
        if not self.task_id or self.task_id.split() != [self.task_id]:
            raise ValueError(f"a task id must be one word, got {self.task_id!r}")
        if self.final_score is not None and not math.isfinite(self.final_score):
            raise ValueError(f"final_score must be a finite number or None, got {self.final_score!r}")

    def task_text(self, *, max_chars: int = MAX_EPISODE_CHARS) -> str:
        """Return the inputs, one field a line."""
        return cut_middle("\n".join(f"{name}: {value}" for name, value in self.inputs.items()), max_chars)

    def history(self, *, first: int = 1, last: int | None = None, max_chars: int = MAX_EPISODE_CHARS) -> str:
        """Return the steps `first` to `last` (the end by default), numbered, within `max_chars`.

        Long steps are cut in their middle; if that is not enough, so is the whole.
        """
        chosen = list(enumerate(self.steps, start=1))[max(first, 1) - 1 : last]
        if not chosen:
            return "(no steps)"
        share = max(MAX_STEP_CHARS, max_chars // len(chosen))
        lines = [f"[{number}] {step.node}: {cut_middle(step.text, share)}" for number, step in chosen]
        return cut_middle("\n".join(lines), max_chars)

    def score_text(self) -> str:
        """Return the final score as a model reads it."""
        return "unknown" if self.final_score is None else f"{self.final_score:g}"


def cut_middle(text: str, max_chars: int) -> str:
    """Return the text, or its head and tail around a mark that says how much is left out.

    Raises:
        ValueError: When `max_chars` is too small to hold the mark.
    """
    if max_chars < 40:
        raise ValueError(f"max_chars must be at least 40, got {max_chars!r}")
    if len(text) <= max_chars:
        return text
    # The mark is longest when all is left out, so this room is always enough.
    room = max_chars - len(_mark(len(text)))
    head = room - room // 3
    tail = room - head
    return text[:head] + _mark(len(text) - room) + text[len(text) - tail :]


def _mark(left_out: int) -> str:
    return f"\n[... {left_out} characters left out ...]\n"


def episode_from(
    task_id: str,
    inputs: Mapping[str, object],
    steps: Sequence[tuple[str, object]],
    final_score: float | None,
) -> PublicEpisode:
    """Return the public record of a run.

    Args:
        task_id: One short word.
        inputs: The task's input fields only (`example.inputs()`), never the labels.
        steps: (node, what was written or observed there) in order.
        final_score: The score, without the metric's reasons.
    """
    return PublicEpisode(
        task_id=task_id,
        inputs={name: shown_value(value) for name, value in inputs.items()},
        steps=tuple(PublicStep(node, shown_value(content)) for node, content in steps),
        final_score=final_score,
    )


def shown_value(value: object) -> str:
    """Return a value as text: images, audio and files as a placeholder, histories turn by turn.

    As text of its own an image is its whole data, which DSPy would send to the reflection model as an image again.
    """
    return render_value(value) if holds_media(value) else str(value)


def is_only_a_task(text: str, values: Collection[str]) -> bool:
    """Whether a text says nothing but what a task was given: a small model takes the task for what it teaches.

    Args:
        text: What a model wrote.
        values: Inputs of tasks, as text.
    """
    return _plain(text) in {_plain(value) for value in values} - {""}


def _plain(text: str) -> str:
    return " ".join(text.split()).strip(".").casefold()
