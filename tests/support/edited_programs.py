"""Small programs that carry a lesson on one of their edges, and models that show where it was read."""

import dspy

from dspy_combee.testing import scripted_lm
from dspy_evocue import CallSite, InstructionEdit
from dspy_evocue.testing import chat_reply

LESSON = "Zebra rule: press the brake."


def lesson(source, target, **kwargs):
    return InstructionEdit(at=CallSite(source, target), text=LESSON, **kwargs)


def seen(lm):
    """Return for each call whether the lesson was in its prompt."""
    return [LESSON in prompt for prompt in lm.engine.prompts]


def answering_lm(**kwargs):
    """Return a model that fills any output field that the prompt asks for."""

    def reply(prompt, call_number):
        fields = ("reasoning", "plan", "answer", "draft", "summary", "question_out")
        return chat_reply(**{name: f"{name} {call_number}" for name in fields if f"[[ ## {name} ## ]]" in prompt})

    return scripted_lm(reply, **kwargs)


class Chain(dspy.Module):
    def __init__(self):
        super().__init__()
        self.plan = dspy.Predict("question -> plan")
        self.solve = dspy.ChainOfThought("question, plan -> answer")

    def forward(self, question):
        plan = self.plan(question=question).plan
        return self.solve(question=question, plan=plan)

    async def aforward(self, question):
        plan = (await self.plan.acall(question=question)).plan
        return await self.solve.acall(question=question, plan=plan)


class Loop(dspy.Module):
    def __init__(self, rounds=3):
        super().__init__()
        self.rounds = rounds
        self.write = dspy.Predict("question -> draft")

    def forward(self, question):
        for _ in range(self.rounds):
            prediction = self.write(question=question)
        return prediction
