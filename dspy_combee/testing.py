"""A scripted language model for tests: real `dspy.LM` machinery, invented replies, no network.

It serves this project's tests and those of its users. Only the engine is scripted: DSPy's own cache, retries, usage
tracking, history, callbacks and adapters run as they do with a real model. It imports no test framework.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, cast

import dspy
from dspy.lm15 import Message, Request, Response, TextPart, Usage

FinishReason = Literal["stop", "length"]
Reply = str | BaseException | Response
Script = Callable[[str, int], Reply] | Sequence[Reply]


class ScriptedEngine:
    """An engine for `dspy.LM(engine=...)` that answers from a script and records what it was asked.

    Safe to call from several threads at once. Every copy of it (`copy.deepcopy(program)`, `lm.copy(...)`) is the engine
    itself, so its counts stay complete.

    Example:
        ```python
        engine = ScriptedEngine(lambda prompt, call_number: '{"answer": "42"}')
        lm = scripted_lm(engine)
        ```
    """

    def __init__(
        self,
        reply: Script,
        *,
        latency: Callable[[str, int], float] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        finish_reason: FinishReason = "stop",
        report_usage: bool = True,
    ) -> None:
        """Store the script; nothing is called yet.

        Args:
            reply: Called with the text of the prompt (system text first) and the number of the call (from 1); or one
                reply a call. A reply is the text, an exception to raise, or a whole response (`scripted_response`).
            latency: Seconds that a call takes, from the same two arguments; None for no wait.
            sleep: How to wait for them; called from the thread of the call, or from a worker thread for async calls.
            finish_reason: What the responses made from text say; "length" for replies that were cut off.
            report_usage: Whether the responses made from text say how many tokens they took.
        """
        if not callable(reply) and (isinstance(reply, (str, bytes)) or not isinstance(reply, Sequence)):
            raise TypeError(f"reply must be a callable or a sequence of replies, got {type(reply).__name__}")
        self._reply = reply
        self._latency = latency
        self._sleep = sleep
        self._finish_reason: FinishReason = finish_reason
        self._report_usage = report_usage
        self._lock = threading.Lock()
        self._prompts: list[str] = []
        self._running = 0
        self._most_at_once = 0
        self.asynchronous = _AsyncScriptedEngine(self)
        """The same script for `async_engine=`; it shares the record."""

    @property
    def calls(self) -> int:
        """How many calls were started."""
        with self._lock:
            return len(self._prompts)

    @property
    def prompts(self) -> list[str]:
        """The text of every prompt, in the order in which the calls were started."""
        with self._lock:
            return list(self._prompts)

    @property
    def most_at_once(self) -> int:
        """The largest number of calls that were running at the same time."""
        with self._lock:
            return self._most_at_once

    def complete(self, request: Request) -> Response:
        """Answer one request, after its latency."""
        text, call_number = self._start(request)
        try:
            if self._latency is not None:
                self._sleep(self._latency(text, call_number))
            return self._respond(request, text, call_number)
        finally:
            self._end()

    async def complete_async(self, request: Request) -> Response:
        """Answer one request without blocking the event loop during its latency."""
        text, call_number = self._start(request)
        try:
            if self._latency is not None:
                await asyncio.to_thread(self._sleep, self._latency(text, call_number))
            return self._respond(request, text, call_number)
        finally:
            self._end()

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def __copy__(self) -> ScriptedEngine:
        """Share the script and its record."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ScriptedEngine:
        """Share the script and its record."""
        return self

    def _start(self, request: Request) -> tuple[str, int]:
        text = prompt_text(request)
        with self._lock:
            self._prompts.append(text)
            self._running += 1
            self._most_at_once = max(self._most_at_once, self._running)
            return text, len(self._prompts)

    def _end(self) -> None:
        with self._lock:
            self._running -= 1

    def _respond(self, request: Request, text: str, call_number: int) -> Response:
        reply = self._next_reply(text, call_number)
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, Response):
            return reply
        if not isinstance(reply, str):
            raise TypeError(f"a reply must be text, an exception or a Response, got {type(reply).__name__}")
        return scripted_response(
            reply,
            model=request.model,
            prompt=text,
            finish_reason=self._finish_reason,
            report_usage=self._report_usage,
        )

    def _next_reply(self, text: str, call_number: int) -> Reply:
        if callable(self._reply):
            return self._reply(text, call_number)
        if call_number > len(self._reply):
            raise LookupError(
                f"the script must hold a reply for every call, got call {call_number} of {len(self._reply)}"
            )
        return self._reply[call_number - 1]


class _AsyncScriptedEngine:
    """The async face of a scripted engine: DSPy wants `complete` to be a coroutine function there."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine

    async def complete(self, request: Request) -> Response:
        return await self._engine.complete_async(request)

    async def aclose(self) -> None:
        pass

    def __deepcopy__(self, memo: dict[int, Any]) -> _AsyncScriptedEngine:
        return self


def scripted_lm(reply: Script | ScriptedEngine, *, model: str = "fake/scripted", **kwargs: Any) -> dspy.LM:
    """Return a `dspy.LM` that answers from a script, synchronously and asynchronously.

    Args:
        reply: The script, or an engine to share with other models.
        model: The model's name; its price is unknown unless a price map knows the name.
        kwargs: For `dspy.LM`. The cache and retries are off unless they are asked for; `latency`, `sleep`,
            `finish_reason` and `report_usage` go to the engine.

    Returns:
        The model; its engine, with the record of prompts, is `lm.engine`.
    """
    engine_options = {
        name: kwargs.pop(name) for name in ("latency", "sleep", "finish_reason", "report_usage") if name in kwargs
    }
    if isinstance(reply, ScriptedEngine) and engine_options:
        raise ValueError(
            f"options of the engine must be given to the ScriptedEngine itself, got {sorted(engine_options)}"
        )
    engine = reply if isinstance(reply, ScriptedEngine) else ScriptedEngine(reply, **engine_options)
    options: dict[str, Any] = {"cache": False, "num_retries": 0, **kwargs}
    return dspy.LM(model, engine=engine, async_engine=engine.asynchronous, **options)


def scripted_response(
    text: str,
    *,
    model: str = "fake/scripted",
    prompt: str = "",
    finish_reason: FinishReason = "stop",
    report_usage: bool = True,
) -> Response:
    """Return a response with this text, whose token counts follow from the lengths of prompt and text."""
    usage = Usage(input_tokens=count_tokens(prompt), output_tokens=count_tokens(text)) if report_usage else Usage()
    message = Message.assistant([TextPart(text)])
    return Response(id=None, model=model, message=message, finish_reason=finish_reason, usage=usage)


def count_tokens(text: str) -> int:
    """Return the number of tokens that the scripted engine reports for a text: one for four characters begun."""
    return (len(text) + 3) // 4


def prompt_text(request: Request) -> str:
    """Return what a request says: the system text, then each message, each from a new line."""
    system = request.system
    parts = [system] if isinstance(system, str) else [cast(Any, part).text for part in system or ()]
    return "\n".join(["".join(parts), *(message.text or "" for message in request.messages)])


def asks_for_lessons(prompt: str) -> bool:
    """Whether a prompt is a first-level aggregation call over GEPA or ACE, which wants `lessons_reply`."""
    return "`lessons`" in prompt


def lessons_reply(lessons: Iterable[tuple[str, str]]) -> str:
    """Return the reply of a first-level aggregation call: (record id, rule) each."""
    return json.dumps({"lessons": [{"record_id": record_id, "rule": rule} for record_id, rule in lessons]})


def shown_reflections(prompt: str) -> list[tuple[str, str]]:
    """Return the record ids and the insight of each reflection that a first-level call of ACE shows, in their order."""
    shown = prompt.rpartition("[[ ## reflections ## ]]")[2]
    headed = re.split(r"^\[([^\]\n]+)\]$", shown, flags=re.MULTILINE)[1:]
    insights = (re.findall(r"^Reflection: (.+)$", body, re.MULTILINE) for body in headed[1::2])
    return [(record_ids, insight[0]) for record_ids, insight in zip(headed[::2], insights, strict=True) if insight]
