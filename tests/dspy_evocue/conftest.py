"""A small problem for the learner: questions of which most are answered right only where a hint can be read."""

import json
import re

import dspy
import pytest

from dspy_combee.testing import scripted_lm
from dspy_evocue.evocue import EvoCUE
from dspy_evocue.testing import chat_reply

HINT = "Mind the odd ones."


class Asker(dspy.Module):
    """Ask once."""

    def __init__(self):
        super().__init__()
        self.ask = dspy.Predict("question -> answer")

    def forward(self, question):
        return self.ask(question=question)


class Bed:
    """The problem, its scripted models, and an optimizer with few tasks."""

    hint = HINT

    def tasks(self, count=24):
        return [dspy.Example(question=f"q{n}", answer=str(n)).with_inputs("question") for n in range(count)]

    def program(self):
        return Asker()

    def metric(self, example, prediction, trace=None):
        return float(example.answer == prediction.answer)

    def answer(self, prompt, number=0, hint=HINT):
        """Answer every fourth question right without help, and all of them with the hint."""
        question = int(re.findall(r"\[\[ ## question ## \]\]\nq(\d+)", prompt)[-1])
        return chat_reply(answer=str(question) if question % 4 == 0 or hint in prompt else "wrong")

    def task_lm(self, reply=None, **settings):
        return scripted_lm(reply or self.answer, **settings)

    def candidate(self, text=HINT, at=("START -> ask",), **settings):
        return {"text": text, "at": list(at), "expected_effect": "all are right", **settings}

    def adviser(self, *by_round, reply=None, **settings):
        """Return a reflection model that proposes these candidates, one list a round."""
        by_round = by_round or ([self.candidate()],)

        def script(prompt, number):
            if reply is not None and (other := reply(prompt, number)) is not None:
                return other
            if "[[ ## requirements ## ]]" in prompt:
                return chat_reply(requirements='[{"requirement": "the answer is right", "status": "missing"}]')
            if "[[ ## cards ## ]]" in prompt:
                return chat_reply(cards="[]")
            rounds = [int(one) for one in re.findall(r"\(round (\d+)\)", prompt)]
            # The lessons of a round do not depend on how often this model was asked before.
            position = max(rounds, default=0) % len(by_round)
            return chat_reply(candidates=json.dumps(by_round[position]))

        return scripted_lm(script, **settings)

    def two_rounds(self, reply=None):
        """Return a reflection model whose first proposal does nothing and whose second one helps."""
        return self.adviser([self.candidate("Be careful.")], [self.candidate()], reply=reply)

    def optimizer(self, *, adviser=None, metric=None, **settings):
        defaults = {"trial_tasks": 4, "confirmation_tasks": 6, "proposal_tasks": 6, "num_threads": 4, "progress": False}
        return EvoCUE(metric or self.metric, reflection_lm=adviser or self.adviser(), **{**defaults, **settings})

    def compile(self, optimizer, *, lm=None, program=None, tasks=None, **data):
        """Return the compiled program and the engine of the task model."""
        lm = lm or self.task_lm()
        with dspy.context(lm=lm):
            compiled = optimizer.compile(program or self.program(), trainset=tasks or self.tasks(), **data)
        return compiled, lm.engine


def run_to_kill(killing, log_dir):
    bed = Bed()
    adviser = bed.two_rounds(killing(lambda *_: None))
    bed.compile(bed.optimizer(adviser=adviser, num_threads=1, log_dir=log_dir), lm=bed.task_lm(killing(bed.answer)))


@pytest.fixture(scope="session")
def bed():
    return Bed()
