"""The demo's data, program and metric, the way a DSPy user would write them.

A good program is one whose instruction holds the desk's rules. The feedback of a wrong answer states the one rule that
applies, inside the sort of advice that is always true and never helps: what a learner has to keep, and what to drop.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterable
from typing import Any

import dspy

from dspy_combee.demo.rules import ROUTING_RULES, RoutingRule

_SPLIT_SEED = 5
_TRAIN_PER_RULE, _VAL_PER_RULE = 5, 2
_CODE = re.compile(r"[A-Z]-\d\d")
_RULE_OF_CODE = {rule.code: rule for rule in ROUTING_RULES}

_BEFORE = (
    "Take a moment to read the whole message before you answer.",
    "Support staff count on consistent routing, so accuracy matters here.",
    "Try to understand what the customer really needs.",
    "A careful reading pays off: small details can change where a message belongs.",
    "Think about which team would be glad to get this message.",
)
_AFTER = (
    "Keep your answer short and stay consistent from one message to the next.",
    "When in doubt, look at the message again and consider the context.",
    "Remember that a wrongly routed message costs the customer time.",
    "Being precise and polite is always a good idea.",
    "Please double-check the format of your answer, too.",
)


class RouteMessage(dspy.Signature):
    """Give the routing code of a customer's message. A code is a letter, a hyphen and two digits."""

    message: str = dspy.InputField()
    code: str = dspy.OutputField()


def routing_program() -> dspy.Predict:
    """Return the program to improve: one predictor that does not know the rules."""
    return dspy.Predict(RouteMessage)


def routing_instruction(rules: Iterable[RoutingRule]) -> str:
    """Return the program's own instruction followed by these rules, one a line."""
    return "\n".join((RouteMessage.instructions, *(f"- {rule.sentence}" for rule in rules)))


def load_messages() -> tuple[list[dspy.Example], list[dspy.Example], list[dspy.Example]]:
    """Return the train, validation and test examples (80, 32, 48): the same ones each time.

    Each list deals the rules in rounds, so its first sixteen examples hold every rule once, and so do the next sixteen.
    """
    rng = random.Random(_SPLIT_SEED)
    messages = {rule.code: rng.sample(rule.messages, len(rule.messages)) for rule in ROUTING_RULES}
    rounds: list[list[dspy.Example]] = []
    for number in range(len(ROUTING_RULES[0].messages)):
        codes = rng.sample(list(messages), len(messages))
        rounds.append(
            [dspy.Example(message=messages[code][number], code=code).with_inputs("message") for code in codes]
        )
    first_val, first_test = _TRAIN_PER_RULE, _TRAIN_PER_RULE + _VAL_PER_RULE
    parts = rounds[:first_val], rounds[first_val:first_test], rounds[first_test:]
    train, val, test = ([example for dealt in part for example in dealt] for part in parts)
    return train, val, test


def routing_metric(
    gold: dspy.Example, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
) -> dspy.Prediction:
    """Score 1.0 for the right code and 0.0 otherwise, with feedback as GEPA takes it.

    An answer may wrap the code in other words, as long as it names one code only.
    """
    named = set(_CODE.findall(str(getattr(pred, "code", None) or "")))
    if named == {gold.code}:
        return dspy.Prediction(score=1.0, feedback=f"Right, the code is {gold.code}.")
    return dspy.Prediction(score=0.0, feedback=_feedback_on_wrong_answer(gold, sorted(named)))


def _feedback_on_wrong_answer(gold: dspy.Example, named: list[str]) -> str:
    rule = _RULE_OF_CODE[gold.code]
    answer = f"{' and '.join(named)} is not right." if named else "That is no routing code."
    pick = zlib.crc32(gold.message.encode())  # the same advice for the same message, in every process
    before, after = _BEFORE[pick % len(_BEFORE)], _AFTER[pick // len(_BEFORE) % len(_AFTER)]
    return f"{answer} {before} {rule.sentence} {after}"
