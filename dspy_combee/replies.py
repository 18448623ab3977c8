"""Judge and clean the replies of a reflection model: what may become part of a prompt, and what never may.

A reply that is blank, cut off or still inside its reasoning is refused; fences and chat markers around an otherwise
good reply are taken off. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dspy_combee.errors import ReflectionError

_THINKING = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_OPEN_THINKING = re.compile(r"</?think(?:ing)?>", re.IGNORECASE)
_FENCE = re.compile(r"^(`{3,}|~{3,})[^\n`]*\n(.*)\n\1\s*$", re.DOTALL)
_FENCE_LINE = re.compile(r"^\s*(?:`{3,}|~{3,})\w*\s*$")
_UNREADABLE = (json.JSONDecodeError, RecursionError)
"""What a text that is no JSON raises, or one that is nested too deeply."""
_STRUCTURED = re.compile(r'\[\s*["{]|\{\s*"')
"""How the value of a chat field begins that is JSON, and no text that happens to begin with a bracket."""
_CHAT_FIELD = re.compile(r"^\[\[ ## (\w+) ## \]\][ \t]*\n?", re.MULTILINE)


def recover_instruction(reply: str, field: str = "new_instruction") -> str:
    """Return the instruction that a raw reply holds: as JSON, between chat markers, in a fence, or as plain text.

    Raises:
        ReflectionError: the reply is blank, cut off, or has no end to its reasoning.
    """
    text = without_reasoning(reply)
    text = _from_chat_markers(text, field)
    text = _without_fence(text)
    if text.lstrip().startswith("{"):
        text = _from_json(text, field)
    return usable_text(text)


def recover_lists(reply: str, fields: Sequence[str]) -> dict[str, list[Any]]:
    """Return the lists that a raw JSON reply holds under these fields; the items may have any shape.

    A list on its own is that of the first field. Of the others a reply may lack some: these are empty.

    Raises:
        ReflectionError: the reply is cut off, has no end to its reasoning, or holds no list of the first field.
    """
    text = _without_fence(without_reasoning(reply)).strip()
    start = min((index for index in (text.find("{"), text.find("[")) if index >= 0), default=0)
    if is_cut_json(text[start:]):
        raise ReflectionError("the reply is JSON that stops before its end")
    try:
        parsed, _ = json.JSONDecoder(strict=False).raw_decode(text, start)
    except _UNREADABLE as error:
        raise ReflectionError(f"the reply must be JSON with a list {fields[0]!r}: {error}") from error
    found = parsed if isinstance(parsed, dict) else {fields[0]: parsed}
    if not isinstance(found.get(fields[0]), list):
        got = type(found.get(fields[0])).__name__
        raise ReflectionError(f"the reply must be JSON with a list {fields[0]!r}, got {got}")
    return {name: found[name] if isinstance(found.get(name), list) else [] for name in fields}


def usable_text(text: Any, *, max_chars: int | None = None) -> str:
    """Return the text without outer white space and reasoning, or refuse it.

    Raises:
        ReflectionError: it is not text, blank, longer than `max_chars`, or has no end to its reasoning.
    """
    if not isinstance(text, str):
        raise ReflectionError(f"the reply must be text, got {type(text).__name__}")
    cleaned = without_reasoning(text).strip()
    if not cleaned:
        raise ReflectionError("the reply is blank")
    if max_chars is not None and len(cleaned) > max_chars:
        raise ReflectionError(f"the reply must have at most {max_chars:,} characters, got {len(cleaned):,}")
    return cleaned


def usable_instruction(text: Any, *, max_chars: int | None = None) -> str:
    """Return the text as `usable_text` does, or refuse it; a null that an adapter has made a word of is none.

    Raises:
        ReflectionError: it is no instruction.
    """
    cleaned = usable_text(text, max_chars=max_chars)
    if cleaned.casefold() in ("none", "null"):
        raise ReflectionError(f"the reply must be an instruction, got {cleaned!r}")
    return cleaned


def without_reasoning(text: str) -> str:
    """Return the text without closed reasoning blocks.

    Raises:
        ReflectionError: a reasoning block was opened and never closed, or the reply starts inside one.
    """
    cleaned = _THINKING.sub("", text)
    if _OPEN_THINKING.search(cleaned):
        raise ReflectionError("the reply ends inside its reasoning: raise max_tokens of the reflection model")
    return cleaned


def refuse_cut_prediction(predictor: Any) -> None:
    """Refuse the last reply that a predictor got when the model did not finish it.

    Args:
        predictor: One that nothing else has called since; one without a history proves nothing and passes.

    Raises:
        ReflectionError: As `refuse_cut_reply` does.
    """
    history = getattr(predictor, "history", None)
    refuse_cut_reply(history[-1] if history else None)


def refuse_cut_reply(history_entry: dict[str, Any] | None) -> None:
    """Refuse a reply that the model did not finish, going by DSPy's history entry of the call.

    Args:
        history_entry: What DSPy recorded of the call; None (history switched off) proves nothing and passes.

    Raises:
        ReflectionError: the finish reason is "length", or the reply or a field of it is JSON that stops before its end.
    """
    if history_entry is None:
        return
    if "length" in _finish_reasons(history_entry.get("response")):
        raise ReflectionError("the reply was cut off at the token limit: raise max_tokens of the reflection model")
    for output in history_entry.get("outputs") or ():
        text = output.get("text") if isinstance(output, dict) else output
        if isinstance(text, str) and (is_cut_json(text) or _has_cut_field(text)):
            raise ReflectionError("the reply is JSON that stops before its end")


def is_cut_json(text: str) -> bool:
    """Whether a reply starts as a JSON object and ends before the object does."""
    body = _without_fence(_THINKING.sub("", text).strip()).strip()
    return body.startswith("{") and _stops_before_its_end(body)


def _has_cut_field(text: str) -> bool:
    """Whether a field of a reply with chat markers is JSON, as adapters ask for typed values, and not all of it."""
    values = (_without_fence(value).strip() for value in _CHAT_FIELD.split(text)[2::2])
    return any(_STRUCTURED.match(value) is not None and _stops_before_its_end(value) for value in values)


def _stops_before_its_end(body: str) -> bool:
    with suppress(*_UNREADABLE):
        json.JSONDecoder(strict=False).raw_decode(body)
        return False
    depth, in_string, escaped = 0, False, False
    for character in body:
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
    return depth > 0 or in_string


def _finish_reasons(response: Any) -> set[str]:
    reasons = {getattr(response, "finish_reason", None)}
    reasons.update(getattr(choice, "finish_reason", None) for choice in getattr(response, "choices", None) or ())
    return {reason for reason in reasons if isinstance(reason, str)}


def _from_chat_markers(text: str, field: str) -> str:
    pieces = _CHAT_FIELD.split(text)
    fields = dict(zip(pieces[1::2], pieces[2::2], strict=False))
    return fields.get(field, text)


def _without_fence(text: str) -> str:
    """Take off a fence that wraps the whole text, with its language tag, and a stray closing or opening line."""
    stripped = text.strip()
    whole = _FENCE.match(stripped)
    if whole and f"\n{whole.group(1)}" not in f"\n{whole.group(2)}":
        return whole.group(2)
    lines = stripped.splitlines()
    marks = [index for index, line in enumerate(lines) if _FENCE_LINE.match(line)]
    if len(marks) == 1 and marks[0] in (0, len(lines) - 1):
        del lines[marks[0]]
        return "\n".join(lines)
    if len(marks) >= 2 and marks[0] == 0 and marks[-1] == len(lines) - 1:
        return "\n".join(lines[1:-1])
    return stripped


def _from_json(text: str, field: str) -> str:
    if is_cut_json(text):
        raise ReflectionError("the reply is JSON that stops before its end")
    try:
        parsed = json.loads(text, strict=False)
    except _UNREADABLE:
        return text
    if isinstance(parsed, dict) and field in parsed:
        return usable_text(parsed[field])
    return text
