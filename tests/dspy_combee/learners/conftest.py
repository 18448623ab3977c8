"""A small world in which only the learned instruction decides: `q7` is answered right once a rule about it is known."""

import logging
import re
from dataclasses import dataclass, field
from typing import Any

import dspy
import pytest

from dspy_combee.aggregation.scan import Scan
from dspy_combee.aggregation.waves import CallRunner
from dspy_combee.combee import Combee
from dspy_combee.runtime.retry import RetryPolicy
from dspy_combee.testing import ScriptedEngine, asks_for_lessons, lessons_reply, scripted_lm


@pytest.fixture(autouse=True)
def _quiet_gepa():
    """Spare each test the thousands of lines that GEPA logs."""
    loggers = [logging.getLogger(name) for name in ("dspy.teleprompt.gepa", "dspy.evaluate")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def answer(text):
    return f"[[ ## answer ## ]]\n{text}\n\n[[ ## completed ## ]]"


def follow_rules(prompt, _number):
    """Answer the last question by the rule for it, if the prompt has one, or by a rewritten instruction."""
    question = int(re.findall(r"q(\d+)", prompt)[-1])
    is_known = f"q{question} answer {question}" in prompt or "new instruction" in prompt
    return answer(question if is_known else "zzz")


def list_rules(prompt, number):
    """Play the reflection model: one rule a record, no operations, or GEPA's own JSON."""
    if "[[ ## operations ## ]]" in prompt:
        return "[[ ## operations ## ]]\nNONE\n\n[[ ## completed ## ]]"
    if asks_for_lessons(prompt):
        found = re.findall(r"\[(r\d+)\]\nInputs: question = (?:[A-Z]+ )?q(\d+)", prompt)
        return lessons_reply((rid, f"when asked q{question} answer {question}") for rid, question in found)
    return f'{{"new_instruction": "new instruction {number}"}}'


def compare(gold, pred, trace=None, pred_name=None, pred_trace=None):
    """Score an exact match and say what would have been right."""
    return dspy.Prediction(score=float(pred.answer == gold.answer), feedback=f"should be {gold.answer}")


def examples(*numbers):
    return [dspy.Example(question=f"q{n}", answer=str(n)).with_inputs("question") for n in numbers]


def never(number):
    """Return an example that no program answers right, so that no run ends for a perfect score."""
    return [dspy.Example(question=f"q{number}", answer="never").with_inputs("question")]


@dataclass
class World:
    """One run's models, data and optimizer, each of which a test may replace."""

    task: Any = follow_rules
    reflect: Any = list_rules
    metric: Any = compare
    train: Any = field(default_factory=lambda: examples(*range(12)))
    val: Any = field(default_factory=lambda: [*examples(0, 3, 6), *never(99)])
    waits: list = field(default_factory=list)

    def __post_init__(self):
        self.task_engine = self.task if isinstance(self.task, ScriptedEngine) else ScriptedEngine(self.task)
        self.reflect_engine = self.reflect if isinstance(self.reflect, ScriptedEngine) else ScriptedEngine(self.reflect)
        self.lm = scripted_lm(self.task_engine, model="fake/task")
        self.reflection_lm = scripted_lm(self.reflect_engine, model="fake/reflection")

    def gepa(self, **settings):
        chosen = {"max_metric_calls": 60, "reflection_lm": self.reflection_lm, "num_threads": 1, **settings}
        return dspy.GEPA(metric=self.metric, **chosen)

    def combee(self, base=None, *, gepa=None, **settings):
        settings.setdefault("progress", False)
        settings.setdefault("batch_size", 6)
        settings.setdefault("aggregation", Scan(runner=CallRunner(retry=RetryPolicy(sleep=self.waits.append))))
        return Combee(base or self.gepa(**(gepa or {})), **settings)

    def compile(self, optimizer, student=None):
        student = student if student is not None else dspy.Predict("question->answer")
        with dspy.context(lm=self.lm):
            return optimizer.compile(student, trainset=self.train, valset=self.val)


@pytest.fixture
def make_world():
    return World


@pytest.fixture
def some_examples():
    return examples


@pytest.fixture
def make_scripts():
    """Return a function that gives the two scripts of a run interrupted in the n-th call of one of its models."""

    def scripts(kind, at):
        def script(reply, name):
            return lambda prompt, number: KeyboardInterrupt() if (name, number) == (kind, at) else reply(prompt, number)

        return {"task": script(follow_rules, "task"), "reflect": script(list_rules, "reflect")}

    return scripts


class TwoSteps(dspy.Module):
    """Two predictors with different fields."""

    def __init__(self):
        super().__init__()
        self.first = dspy.Predict("question->draft")
        self.second = dspy.Predict("question, draft->answer")

    def forward(self, question):
        return self.second(question=question, draft=self.first(question=question).draft)


class Twins(dspy.Module):
    """Two predictors with equal signatures."""

    def __init__(self):
        super().__init__()
        self.first = dspy.Predict("question->answer")
        self.second = dspy.Predict("question->answer")

    def forward(self, question):
        self.first(question="FIRST " + question)
        return self.second(question="SECOND " + question)


@pytest.fixture
def two_steps():
    return TwoSteps()


@pytest.fixture
def twins():
    return Twins()
