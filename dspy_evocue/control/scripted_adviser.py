"""A scripted reflection model for the code world: it proposes what it was given, and revises once when it is asked to.

It stands in for a language model in tests, figures and the notebook, beside `scripted_clerk`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dspy_evocue.control.code_world import HOUSE_RULE
from dspy_evocue.testing import chat_reply

REVISION_SKILL: Mapping[str, Any] = {
    "text": "Put the reference into a payment before the code is checked.",
    "at": ["prepare -> pre_commit"],
    "expected_effect": "Every payment carries its reference.",
    "skill": {
        "operations": [{"operation": "revise", "instruction": HOUSE_RULE}],
        "returns": [
            {"status": status, "draft": draft, "target": "pre_commit"}
            for status in ("success", "failure")
            for draft in ("pending-valid", "pending-invalid")
        ],
    },
}
"""A candidate skill: revise each draft before it is checked. With `hasty_clerk_reply` it helps in one phase only."""


def adviser_reply(
    proposed: Sequence[Mapping[str, Any]], revised: Sequence[Mapping[str, Any]] | None = None
) -> Callable[[str, int], str]:
    """Return what answers the prompts of EvoCUE's learner.

    Args:
        proposed: The candidates of every round.
        revised: The candidates after the checker's words; None to insist on the first ones.
    """

    def reply(prompt: str, call_number: int) -> str:
        if "[[ ## requirements ## ]]" in prompt:
            return chat_reply(requirements="[]")
        if "[[ ## cards ## ]]" in prompt:
            return chat_reply(cards="[]")
        if "[[ ## max_fragments ## ]]" in prompt:
            return chat_reply(fragments="[]")
        chosen = proposed if revised is None or "[[ ## feedback ## ]]" not in prompt else revised
        return chat_reply(candidates=json.dumps(list(chosen)))

    return reply
