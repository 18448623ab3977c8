"""Recorded trajectories for a wrapped `dspy.GEPA`: each batch of them goes through the aggregation once.

Nothing is run and nothing is tested on a batch: GEPA's search is left out, its records and the calls of
`CombeeProposer` are what remains. The instructions get the lessons (or are rewritten) batch by batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dspy

from dspy_combee.instructions import instructions_of, with_instructions
from dspy_combee.learners.base import Entry, Reflection, Trajectory, Update
from dspy_combee.learners.gepa_curate import join_lessons
from dspy_combee.learners.gepa_proposer import CombeeProposer
from dspy_combee.learners.run_program import run_program
from dspy_combee.lessons import Lesson, LessonUpdate
from dspy_combee.metrics import MetricCall
from dspy_combee.program_state import state_of, with_state
from dspy_combee.provenance import SourcedLine
from dspy_combee.records import render_record, render_value, shorten_record
from dspy_combee.rounds.learner_extras import RoundsPlan
from dspy_combee.rounds.records import RoundSchedule
from dspy_combee.settings import RunSettings
from dspy_combee.tool_blocks import find_tool_blocks, keep_tool_block
from dspy_combee.trajectory_text import component_name, names_of_components, render_judgement, render_run

MAX_RECORD_CHARS = 20_000
"""The most text of one trajectory; a longer one is cut in the middle, visibly."""


class GepaTraceLearner:
    """A wrapped `dspy.GEPA` as a `PromptLearner` for recorded trajectories. Safe to use from several threads."""

    def __init__(self, base: Any, student: dspy.Module, settings: RunSettings) -> None:
        """Store the settings; the optimizer is not changed."""
        self._base = base
        self._form = settings.form
        self._frozen = settings.frozen
        self._metric = MetricCall(base.metric_fn, perfect_score=base.perfect_score)
        self._blocks = find_tool_blocks(student)
        self._proposer = CombeeProposer(
            base.custom_instruction_proposer, form=settings.form, max_instruction_chars=settings.max_instruction_chars
        )

    def rounds_plan(self) -> RoundsPlan:
        """Return what of GEPA's settings concerns a run without rollouts; a trace is never a call of its own."""
        schedule = RoundSchedule(perfect_score=self._base.perfect_score, failure_score=self._base.failure_score)
        return RoundsPlan(
            schedule=schedule,
            reflection_lm=self._base.reflection_lm,
            reflection_calls=0,
            settings={"form": self._form, "metric": self._base.metric_fn},
        )

    def generate(self, program: Any, example: Any, record_id: str) -> Trajectory:
        """Run and score the program, for validations: traces are not run."""
        return run_program(self._metric, program, example, record_id)

    def reflect(self, program: Any, trajectory: Trajectory) -> Sequence[Reflection]:
        """Return the trace as a record of each predictor that it shows, of all where it names none; no call is made.

        A perfect run teaches nothing and would only crowd the others out.
        """
        if self._base.skip_perfect_score and (trajectory.score or 0.0) >= self._base.perfect_score:
            return ()
        names = names_of_components(program)
        taught = [name for name, _ in program.named_predictors() if name not in self._frozen]
        steps = [(component_name(predictor, names), given, made) for predictor, given, made in trajectory.trace]
        ran = [name for name in taught if any(step == name for step, _, _ in steps)]
        return tuple(self._reflection(program, trajectory, name, steps) for name in ran or taught)

    def curate(self, program: Any, reflections: Sequence[Reflection]) -> ComponentUpdate:
        """Make the one call that `CombeeProposer` makes of a group: lessons, or a rewritten instruction."""
        component = reflections[0].component
        feedbacks = [str(r.details.get("Feedback", "")) for r in reflections if isinstance(r.details, Mapping)]
        curate = self._proposer.curate_for(instructions_of(program), component, feedbacks)
        return ComponentUpdate(component, curate([replace(r, update=_content(r.update)) for r in reflections]))

    def join(self, updates: Sequence[Update]) -> ComponentUpdate:
        """Join lessons in code; of rewritten instructions the best supported one stands in."""
        known = [update for update in updates if isinstance(update, ComponentUpdate)]
        lessons = [update.content for update in known if isinstance(update.content, LessonUpdate)]
        if lessons:
            return ComponentUpdate(known[0].component, join_lessons(lessons))
        return max(known, key=lambda update: len({rid for entry in update.entries for rid in entry.record_ids}))

    def update(self, program: Any, update: Update) -> Any:
        """Return a copy of the program with the lessons behind its own text, or with the new instruction."""
        if not isinstance(update, ComponentUpdate):
            raise TypeError(f"update must be a ComponentUpdate, got {type(update).__name__}")
        current = instructions_of(program)[update.component]
        if isinstance(update.content, LessonUpdate):
            text = self._proposer.with_lessons(update.component, current, update.content).text
        else:
            text = keep_tool_block(update.entries[0].text, self._blocks.get(update.component))
        return with_instructions(program, {update.component: text})

    def learned_lines(self, program: Any) -> tuple[SourcedLine, ...]:
        """Return the lessons in the instructions with the records behind each; a rewritten text has no lines."""
        return tuple(
            SourcedLine(name, lesson.text, lesson.record_ids)
            for name, text in instructions_of(program).items()
            for lesson in self._proposer.lessons_of(name, text)
        )

    def dump_program(self, program: Any) -> Mapping[str, Any]:
        """Return DSPy's state and the records behind each lesson."""
        lines = [[line.component, line.text, list(line.record_ids)] for line in self.learned_lines(program)]
        return {"state": state_of(program), "lines": lines}

    def load_program(self, program: Any, state: Mapping[str, Any]) -> Any:
        """Return a copy of the program in the state of a checkpoint."""
        for component, text, record_ids in state["lines"]:
            self._proposer.remember_provenance(component, [Lesson(text, tuple(record_ids))])
        return with_state(program, state["state"])

    def describe_program(self, program: Any) -> str:
        """Return how many lessons stand in the program."""
        return f"{len(self.learned_lines(program))} lessons"

    def _reflection(
        self, program: Any, trajectory: Trajectory, name: str, steps: Sequence[tuple[str, Any, Any]]
    ) -> Reflection:
        own = [(given, made) for step, given, made in steps if step == name]
        if len(own) == 1:
            inputs, outputs = dict(own[0][0]), dict(own[0][1])
        else:  # several calls, or steps of a foreign agent: the run as a whole
            inputs = dict(trajectory.example.inputs())
            outputs = {"run": render_run(trajectory, names_of_components(program), max_chars=MAX_RECORD_CHARS)}
        record = {
            "Inputs": {key: render_value(value) for key, value in inputs.items()},
            "Generated Outputs": {key: render_value(value) for key, value in outputs.items()},
            "Feedback": render_judgement(trajectory),
        }
        record = shorten_record(record, MAX_RECORD_CHARS)
        text = render_record(trajectory.record_id, record)
        return Reflection(text, (trajectory.record_id,), name, score=trajectory.score, details=record)


@dataclass(frozen=True, slots=True)
class ComponentUpdate:
    """What one call made for one predictor (an `Update`)."""

    component: str
    content: Any
    """A `LessonUpdate`, or a `TextUpdate` with a whole instruction."""

    @property
    def entries(self) -> Sequence[Entry]:
        """The lines with the records behind each."""
        return tuple(Entry(entry.text, tuple(entry.record_ids)) for entry in self.content.entries)

    def render(self) -> str:
        """Return the content as the next level reads it."""
        return self.content.render()


def _content(update: Any) -> Any:
    return update.content if isinstance(update, ComponentUpdate) else update
