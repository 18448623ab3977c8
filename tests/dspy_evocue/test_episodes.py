"""A recording is of a program as it was, on the inputs as they are: whatever is learned in it changes its key."""

import dspy
import pytest

from dspy_combee.testing import scripted_lm
from dspy_evocue import CallSite, InstructionEdit, attach
from dspy_evocue.control import Condition, ControlGraph, ControlProgram, DraftState, Edge, Node
from dspy_evocue.episodes import plan_runs, program_key, record_run
from dspy_evocue.testing import chat_reply


class Outer(dspy.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner


def controller():
    return ControlProgram(
        ControlGraph(
            nodes=(Node("write", "draft"), Node("run", "commit"), Node("stop", "stop")),
            edges=(
                Edge("write", "run", Condition(draft=DraftState.PENDING_VALID)),
                Edge("write", "write"),
                Edge("run", "stop"),
            ),
            start="write",
        ),
        parts={"draft": dspy.Predict("task -> action"), "commit": lambda draft: f"ran {draft}"},
    )


def with_a_demo():
    program = dspy.Predict("question -> answer")
    program.demos = [dspy.Example(question="q", answer="a")]
    return program


EDIT = InstructionEdit(at=CallSite("*", "self"), text="Lesson.")


@pytest.mark.parametrize(
    ("make", "make_changed"),
    [
        (
            lambda: dspy.Predict("question -> answer"),
            lambda: dspy.Predict(dspy.Signature("question -> answer", "Do well.")),
        ),
        (lambda: dspy.Predict("question -> answer"), with_a_demo),
        (lambda: dspy.Predict("question -> answer"), lambda: attach(dspy.Predict("question -> answer"), EDIT)),
        (
            lambda: Outer(dspy.Predict("question -> answer")),
            lambda: Outer(attach(dspy.Predict("question -> answer"), EDIT)),
        ),
        (controller, lambda: controller().with_instruction("*", "write", "Lesson.")),
    ],
    ids=["instructions", "demos", "edits", "edits of a program inside", "graph"],
)
def test_what_is_learned_makes_another_program(make, make_changed):
    assert program_key(make()) == program_key(make())
    assert program_key(make()) != program_key(make_changed())


def test_a_program_is_given_pictures_and_histories_as_they_are():
    class Looker(dspy.Module):
        def __init__(self):
            super().__init__()
            self.look = dspy.Predict("picture: dspy.Image, history: dspy.History -> answer: str")

        def forward(self, **inputs):
            given.append({**inputs, "tags": list(inputs["tags"])})
            inputs.pop("tags").append("changed by the program")
            return self.look(**inputs)

    given = []
    history = dspy.History(messages=[{"picture": "none", "answer": "EARLIER"}])
    example = dspy.Example(picture=dspy.Image(url="https://pictures/1.png"), history=history, tags=["a"])
    lm = scripted_lm(lambda prompt, number: chat_reply(answer="done"))
    with dspy.context(lm=lm):
        recording = record_run(plan_runs(Looker(), lambda gold, pred: 1.0), example.with_inputs(*example.keys()))
    assert recording.episode.error == ""
    assert given == [{"picture": example.picture, "history": history, "tags": ["a"]}]
    assert "EARLIER" in lm.engine.prompts[0]
    assert example.tags == ["a"]
