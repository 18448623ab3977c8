"""A small world for ACE: codes of fruits, which only a playbook can tell, and scripted models that live in it."""

import json
import re

import dspy
import pytest

from dspy_combee.testing import ScriptedEngine, asks_for_lessons, scripted_lm, shown_reflections

FRUITS = ("apple", "banana", "cherry", "damson", "elder", "fig", "grape", "hazel")


class FruitWorld:
    """Tasks, a metric, a task model that needs the rule in its prompt, and a reflection model that passes rules on."""

    def __init__(self):
        self.codes = {fruit: f"K-{number}7" for number, fruit in enumerate(FRUITS, start=1)}
        self.task = ScriptedEngine(lambda prompt, _: self.answer_task(prompt))
        self.reflection = ScriptedEngine(lambda prompt, _: self.answer_reflection(prompt))
        self.task_lm = scripted_lm(self.task)
        self.reflection_lm = scripted_lm(self.reflection)

    def examples(self, *fruits):
        wanted = fruits or FRUITS
        return [dspy.Example(question=f"code of {f}?", answer=self.codes[f]).with_inputs("question") for f in wanted]

    def metric(self, gold, pred, trace=None):
        fruit = re.search(r"code of (\w+)", gold.question).group(1)
        is_right = pred.answer == gold.answer
        return dspy.Prediction(score=float(is_right), feedback=f"The code of {fruit} is {gold.answer}.")

    def answer_task(self, prompt):
        fruit = re.findall(r"code of (\w+)\?", prompt)[-1]
        is_known = f"The code of {fruit} is {self.codes[fruit]}" in prompt
        return reply(answer=self.codes[fruit] if is_known else "unknown")

    def answer_reflection(self, prompt):
        if "Say what one run" in prompt:
            return self.reflect(prompt)
        if asks_for_lessons(prompt):
            return self.curate(prompt)
        return reply(merges="[]", refuted="none")

    def reflect(self, prompt):
        rule = re.search(r"feedback: (The code of (\w+) is K-\d+\.)", prompt)
        known = re.findall(r"\[(e\d+)[^\]]*\] " + re.escape(rule.group(1)), prompt)
        tag = "helpful" if "score: 1" in prompt else "harmful"
        votes = [{"entry_id": entry_id, "tag": tag} for entry_id in known]
        return reply(
            what_went_wrong="the code was not known",
            cause="no rule",
            correct_approach="look it up",
            key_insight=rule.group(1),
            votes=json.dumps(votes),
        )

    def curate(self, prompt):
        known = prompt.rpartition("[[ ## reflections ## ]]")[0].rpartition("[[ ## playbook ## ]]")[2]
        lessons = [
            {"record_id": record_id, "rule": text, "section": "Codes"}
            for record_id, text in shown_reflections(prompt)
            if text not in known
        ]
        return json.dumps({"lessons": lessons, "changes": []})


def reply(**fields):
    parts = [f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items()]
    return "\n\n".join([*parts, "[[ ## completed ## ]]"])


@pytest.fixture
def world():
    return FruitWorld()


@pytest.fixture
def program():
    return dspy.Predict("question -> answer")


@pytest.fixture
def say():
    return reply
