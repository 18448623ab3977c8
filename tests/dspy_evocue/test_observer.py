"""What is observed of a run: as little as the edits need, and nothing of it shows."""

import dspy
import pytest
from dspy.dsp.utils.settings import settings
from dspy.utils.callback import BaseCallback

from dspy_combee.testing import scripted_lm
from dspy_evocue import CallSite, InstructionEdit, Rule, attach, mark_node
from dspy_evocue.testing import chat_reply

LESSON = "Zebra rule: press the brake."


def lesson(source, target, **kwargs):
    return InstructionEdit(at=CallSite(source, target), text=LESSON, **kwargs)


def answering_lm():
    return scripted_lm(lambda prompt, number: chat_reply(plan="p", answer="a"))


def seen(lm):
    """Return for each call whether the lesson was in its prompt."""
    return [LESSON in prompt for prompt in lm.engine.prompts]


def look(place: str) -> str:
    """Look at a place."""
    return f"nothing in {place}"


class Chain(dspy.Module):
    def __init__(self):
        super().__init__()
        self.plan = dspy.Predict("question -> plan")
        self.solve = dspy.Predict("question, plan -> answer")

    def forward(self, question):
        return self.solve(question=question, plan=self.plan(question=question).plan)


def test_an_edit_for_the_next_action_ends_at_plain_code_that_is_marked_as_an_action():
    class Agent(Chain):
        def __init__(self, is_action):
            super().__init__()
            self.is_action = is_action

        def forward(self, question):
            plan = self.plan(question=question).plan
            mark_node("book", is_action=self.is_action)
            return self.solve(question=question, plan=plan)

    found = []
    for is_action in (False, True):
        lm = answering_lm()
        with dspy.context(lm=lm):
            attach(Agent(is_action), lesson("START", "plan", scope="next_action"))(question="q")
        found.append(seen(lm))
    assert found == [[True, True], [True, False]]


class CountingCallback(BaseCallback):
    def __init__(self):
        self.starts = 0

    def on_adapter_format_start(self, call_id, instance, inputs):
        self.starts += 1


@pytest.mark.parametrize("source", ["*", "START"])
def test_the_users_own_callbacks_hear_the_same_from_an_edited_program(source):
    heard = []
    for program in (Chain(), attach(Chain(), lesson(source, "plan"))):
        callback = CountingCallback()
        with dspy.context(lm=answering_lm(), callbacks=[callback]):
            program(question="q")
        heard.append(callback.starts)
    assert heard == [2, 2]


def callbacks_seen_by_the_adapter(program):
    found = []

    class Looking(dspy.ChatAdapter):
        def format(self, signature, demos, inputs):
            found.append([type(callback).__name__ for callback in settings.callbacks])
            return super().format(signature, demos, inputs)

    with dspy.context(lm=answering_lm(), adapter=Looking()):
        program(question="q")
    return found


@pytest.mark.parametrize("source", ["*", "START", "plan"])
def test_dspy_does_no_work_for_callbacks_inside_the_predictors_of_an_edited_program(source):
    assert callbacks_seen_by_the_adapter(attach(Chain(), lesson(source, "plan"))) == [[], []]


def test_a_predictor_class_of_the_users_own_may_call_tools_from_its_forward():
    class Looking(dspy.Predict):
        def __init__(self, signature):
            super().__init__(signature)
            self.tool = dspy.Tool(look)

        def forward(self, **kwargs):
            self.tool(place="x")
            return super().forward(**kwargs)

    class Agent(dspy.Module):
        def __init__(self):
            super().__init__()
            self.plan = Looking("question -> plan")
            self.inner = dspy.Predict("question -> answer")

        def forward(self, question):
            self.plan(question=question)
            return self.inner(question=question)

    lm = answering_lm()
    with dspy.context(lm=lm):
        attach(Agent(), lesson("plan", "inner", when=Rule.of(last_tool="look")))(question="q")
    assert seen(lm) == [False, True]
