"""Scripted stand-ins for the models of the office desk. They know only what stands in their prompt.

The clerk does a ticket's work step by step and obeys the convention where the call that decides it shows a lesson
about it: a text that was read some steps ago is forgotten. The adviser says what the history shows.
"""

from __future__ import annotations

import json
import re
from typing import Any

import dspy

from dspy_combee.testing import scripted_lm
from dspy_evocue.testing import Action, AgentTurn, chat_reply, scripted_agent_lm

LESSON = "Before you close a ticket, add a note with the expense id of every expense that was filed for it."
"""What the scripted adviser proposes, at one entry and at another."""

_TICKET = re.compile(r"ticket (T-\d+)")
_ROOM = re.compile(r"Book a room on (\w+) for (the [\w ]+)\.")
_EXPENSE = re.compile(r"File (\d+) euros for ([\w ]+)\.")
_FILED = re.compile(r"filed as (E-\d+)")
_REMARK = "Returned by accounting"


def clerk_lm(**kwargs: Any) -> dspy.LM:
    """Return the scripted agent's model; `kwargs` are for `scripted_agent_lm`."""
    return scripted_agent_lm(clerk_policy, **kwargs)


def clerk_policy(turn: AgentTurn) -> Action:
    """Decide on the next action from the prompt alone."""
    number = _TICKET.findall(turn.prompt)[-1] if not turn.observations else _TICKET.findall(turn.prompt)[0]
    seen = "\n".join(turn.observations)
    request = turn.prompt.partition("[[ ## request ## ]]\nPlease")[2].partition("[[ ##")[0]
    if "closed." in seen:
        return "finish", {}
    if not turn.observations and _FILED.search(request) is None:
        return "read_ticket", {"number": number}
    room, expense = _ROOM.search(seen), _EXPENSE.search(seen)
    if room is not None and "room booked" not in seen:
        return "book_room", {"day": room.group(1), "meeting": room.group(2)}
    filed = _FILED.findall(request + seen)
    if expense is not None and not filed:
        return "file_expense", {"euros": int(expense.group(1)), "purpose": expense.group(2)}
    if filed and "noted on" not in seen and "expense id" in turn.prompt:
        return "add_note", {"number": number, "text": f"expense {', '.join(dict.fromkeys(filed))}"}
    return "close_ticket", {"number": number}


def adviser_lm(*, candidates: Any = None, **kwargs: Any) -> dspy.LM:
    """Return the scripted reflection model.

    Args:
        candidates: What it proposes once it has seen accounting's remark; the lesson on the first entry and on the
            recurring one by default.
        kwargs: For `scripted_lm`.
    """
    proposed = default_candidates() if candidates is None else candidates

    def reply(prompt: str, call_number: int) -> str:
        if "[[ ## requirements ## ]]" in prompt:
            return chat_reply(requirements=json.dumps(_requirements(prompt)))
        if "[[ ## cards ## ]]" in prompt:
            return chat_reply(cards=json.dumps(_cards(prompt)))
        if "[[ ## fragments ## ]]" in prompt and "[[ ## max_fragments ## ]]" in prompt:
            return chat_reply(fragments="[]")
        if "[[ ## feedback ## ]]" in prompt or _REMARK in prompt:
            return chat_reply(candidates=json.dumps(_cited(proposed, prompt)))
        return chat_reply(candidates="[]")

    return scripted_lm(reply, **kwargs)


def default_candidates() -> list[dict[str, Any]]:
    """Return the lesson on the first entry, and on the entries from the tools."""
    effect = "The agent writes the expense's number on the ticket while it is still open."
    return [
        {"text": LESSON, "at": [at], "scope": "call", "expected_effect": effect}
        for at in ("START -> react", "tool:* -> react")
    ]


def _requirements(prompt: str) -> list[dict[str, Any]]:
    closing = re.findall(r"\[(\d+)\] tool:close_ticket", prompt)
    step = int(closing[-1]) if closing else None
    found = [{"requirement": "The ticket is closed.", "status": "observed" if step else "missing", "step": step}]
    if _REMARK in prompt:
        missing = "The expense's number is noted on the ticket before it is closed."
        found.append({"requirement": missing, "status": "missing", "step": None})
    return found


def _cards(prompt: str) -> list[dict[str, Any]]:
    episodes = re.findall(r"### (\S+) \(final score.*?(?=\n### |\Z)", prompt, re.DOTALL)
    if _REMARK not in prompt or not episodes:
        return []
    return [{"requirement": "A filed expense is referenced on its ticket.", "source_tasks": episodes[:2]}]


def _cited(proposed: list[dict[str, Any]], prompt: str) -> list[dict[str, Any]]:
    """Cite the first failed episodes of the index."""
    failed = re.findall(r"- (\S+): score 0,", prompt)[:4]
    return [{"cited_tasks": failed, **candidate} for candidate in proposed]
