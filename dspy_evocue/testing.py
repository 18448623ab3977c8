"""Scripted agents: a `dspy.ReAct` program whose every decision is written down, with DSPy's real machinery around it.

For this project's tests and for those of its users. No network, no model, no test framework.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dspy

from dspy_combee.testing import scripted_lm

_OBSERVATION = re.compile(r"\[\[ ## observation_(\d+) ## \]\]\n(.*?)(?=\n\n\[\[ ## |\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """What a scripted agent sees when it has to decide."""

    prompt: str
    """The whole prompt: a policy that looks for a lesson's text here acts only where the text is visible."""
    observations: tuple[str, ...]
    """What the tools returned so far, in order."""

    @property
    def step(self) -> int:
        """How many tool calls were made so far."""
        return len(self.observations)


Action = tuple[str, Mapping[str, Any]]
"""A tool's name and its arguments; `("finish", {})` ends the loop."""


def scripted_agent_lm(
    policy: Callable[[AgentTurn], Action],
    *,
    answer: str | Callable[[str], str] = "done",
    output: str = "answer",
    **kwargs: Any,
) -> dspy.LM:
    """Return a language model that plays the agent of a `dspy.ReAct` program by a policy.

    Args:
        policy: Called for each turn of the loop, from the thread of the call.
        answer: What the last call answers, or how to make it from the prompt.
        output: The name of the program's output field.
        kwargs: For `dspy_combee.testing.scripted_lm`: `cache`, `temperature`, `latency`, ...
    """

    def reply(prompt: str, call_number: int) -> str:
        if "[[ ## next_tool_name ## ]]" in prompt:
            tool, arguments = policy(read_turn(prompt))
            return chat_reply(next_thought="next", next_tool_name=tool, next_tool_args=json.dumps(dict(arguments)))
        text = answer if isinstance(answer, str) else answer(prompt)
        return chat_reply(**({"reasoning": "so"} if "reasoning" in prompt else {}), **{output: text})

    return scripted_lm(reply, **kwargs)


def chat_reply(**fields: str) -> str:
    """Return a reply in the form that DSPy's chat adapter parses."""
    parts = [f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items()]
    return "\n\n".join([*parts, "[[ ## completed ## ]]"])


def read_turn(prompt: str) -> AgentTurn:
    """Read the observations off a prompt of a `dspy.ReAct` loop."""
    found = {int(number): text.strip() for number, text in _OBSERVATION.findall(prompt)}
    return AgentTurn(prompt, tuple(found[number] for number in sorted(found)))
