"""Stand-ins for the demo's two models, for a tour that takes seconds and says that it is scripted.

The task model follows the rules that its instruction holds and knows nothing else. The reflection model states the
rules that the feedback of its records holds, as many as it can carry at once: the limit that Combee works around.
"""

from __future__ import annotations

import re

import dspy

from dspy_combee.demo.rules import ROUTING_RULES, keeps_rule
from dspy_combee.testing import ScriptedEngine, asks_for_lessons, lessons_reply, scripted_lm

CAPACITY = 6
"""Rules that the reflection model keeps from one call; of the rest it makes general advice."""

_RULE_OF_MESSAGE = {message: rule for rule in ROUTING_RULES for message in rule.messages}
_RECORD = re.compile(r"^\[(r\d+)\]\n(.*?)(?=^\[r\d+\]$|\Z)", re.DOTALL | re.MULTILINE)
_RULE = re.compile(r"If [^.]*, the code is [A-Z]-\d\d\.")


def scripted_models(*, task_seconds: float = 0.0, reflection_seconds: float = 0.0) -> tuple[dspy.LM, dspy.LM]:
    """Return the task model and the reflection model, both scripted.

    Args:
        task_seconds: How long a call of the task model takes.
        reflection_seconds: How long a call of the reflection model takes.
    """
    task = ScriptedEngine(lambda prompt, _: _route(prompt), latency=lambda *_: task_seconds)
    reflection = ScriptedEngine(lambda prompt, _: _reflect(prompt), latency=lambda *_: reflection_seconds)
    return scripted_lm(task, model="scripted/task"), scripted_lm(reflection, model="scripted/reflection")


def _route(prompt: str) -> str:
    asked = max(_RULE_OF_MESSAGE, key=prompt.rfind)
    rule = _RULE_OF_MESSAGE[asked]
    code = rule.code if keeps_rule(prompt, rule) else "A-00"
    return _reply("code", code)


def _reflect(prompt: str) -> str:
    if "[[ ## operations ## ]]" in prompt:
        return _reply("operations", "NONE")
    if asks_for_lessons(prompt):
        found = [(rid, rule) for rid, body in _RECORD.findall(prompt) for rule in _RULE.findall(body)]
        return lessons_reply(found[:CAPACITY])
    rules = list(dict.fromkeys(_RULE.findall(prompt)))
    text = "Route each message with care. " + " ".join(rules[:CAPACITY])
    return f'{{"new_instruction": "{text}"}}' if "examples_with_feedback" in prompt else _reply("new_instruction", text)


def _reply(field: str, text: str) -> str:
    return f"[[ ## {field} ## ]]\n{text}\n\n[[ ## completed ## ]]"
