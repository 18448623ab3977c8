"""How the calls of language models are observed in DSPy: one callback, and a usage tracker that lives for one call.

DSPy's callbacks say when a call starts and ends, its usage tracker what was paid for (and, by silence, what came from
the cache), its history what it cost. A tracker installed for a whole run would be copied and lost in DSPy's own pools
and would switch the user's `track_usage` off, so one is put in place for the length of each call only; it passes
everything on to the tracker that was there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from dspy_combee.runtime.budget import CallRecord, Meter

_STAGE_KEY = "_combee_stage"


def stage_context(name: str) -> AbstractContextManager[None]:
    """Name the stage of everything inside the block. DSPy's settings carry it into its own threads."""
    return dspy.context(**{_STAGE_KEY: name})


def current_stage() -> str:
    """Return the innermost stage; empty outside of any."""
    return dspy.settings.get(_STAGE_KEY, "")


def affords_extra_call(times: float) -> bool:
    """Whether every meter around the caller has room for a call that nobody planned (`Meter.affords_extra_call`)."""
    watches = [callback for callback in dspy.settings.callbacks if isinstance(callback, LMWatch)]
    return all(meter.affords_extra_call(times) for watch in watches for meter in watch.meters)


def with_watch(callbacks: Sequence[BaseCallback], meter: Meter) -> list[BaseCallback]:
    """Return the callbacks with one watch for this meter and for those that are watching already."""
    others = [callback for callback in callbacks if not isinstance(callback, LMWatch)]
    watching = [known for callback in callbacks if isinstance(callback, LMWatch) for known in callback.meters]
    if not any(known is meter for known in watching):
        watching.append(meter)
    return [*others, LMWatch(tuple(watching))]


class LMWatch(BaseCallback):
    """Tells meters about each call of a model before it starts and after it ends.

    One watch serves all meters, so that a call that one of them refuses is taken back from the others.
    """

    def __init__(self, meters: tuple[Meter, ...]) -> None:
        """Remember whom to tell, the outermost meter first."""
        self.meters = meters
        self._calls: dict[str, _Call] = {}
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> LMWatch:
        """Stay the same in copied settings: what is spent in a copy is spent too."""
        return self

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Ask every meter for leave, then listen to what the call reports.

        Raises:
            BudgetExhausted: When a meter refuses; the call does not start then.
        """
        reserved: list[Meter] = []
        try:
            for meter in self.meters:
                meter.reserve()
                reserved.append(meter)
        except BaseException:
            for meter in reserved:
                meter.settle(None)
            raise
        receiver = _Receiver(dspy.settings.usage_tracker)
        callers = [*(dspy.settings.caller_modules or []), receiver]
        # Left again in on_lm_end, which DSPy calls in the same thread or task.
        scope = dspy.context(usage_tracker=receiver, caller_modules=callers)
        scope.__enter__()
        with self._lock:
            self._calls[call_id] = _Call(instance, current_stage(), receiver, scope, time.monotonic())

    def on_lm_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:
        """Tell every meter what the call took."""
        with self._lock:
            call = self._calls.pop(call_id, None)
        if call is None:
            return
        record: CallRecord | None = None
        try:
            call.scope.__exit__(None, None, None)
            record = call.record(has_failed=exception is not None)
        finally:
            for meter in self.meters:
                meter.settle(record)


class _Receiver:
    """Stands in for the usage tracker during one call, and for a calling module that keeps the call's history."""

    def __init__(self, outer: Any) -> None:
        # An engine that calls another model makes calls within calls; each reports to the user's tracker once.
        self.outer = outer.outer if isinstance(outer, _Receiver) else outer
        self.usage: list[dict[str, Any]] = []
        self.history: list[dict[str, Any]] = []

    def add_usage(self, lm: str, usage_entry: dict[str, Any]) -> None:
        """Take down what was paid for; DSPy does not call this for an answer from the cache."""
        self.usage.append(usage_entry)
        if self.outer is not None:
            self.outer.add_usage(lm, usage_entry)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call in flight."""

    lm: Any
    stage: str
    receiver: _Receiver
    scope: AbstractContextManager[None]
    began: float

    def record(self, *, has_failed: bool) -> CallRecord:
        model = str(getattr(self.lm, "model", "")) or type(self.lm).__name__
        if not self.receiver.usage and not has_failed:
            return CallRecord(model, self.stage, was_cached=True)
        inputs = _sum_of(self.receiver.usage, "prompt_tokens", "input_tokens")
        outputs = _sum_of(self.receiver.usage, "completion_tokens", "output_tokens")
        if inputs is None and outputs is None:
            inputs = _sum_of(self.receiver.usage, "total_tokens")
        return CallRecord(
            model,
            self.stage,
            has_failed=has_failed,
            seconds=time.monotonic() - self.began,
            input_tokens=inputs,
            output_tokens=outputs,
            cost_usd=self._cost_usd(inputs, outputs),
        )

    def _cost_usd(self, inputs: int | None, outputs: int | None) -> float | None:
        if self.receiver.history:
            cost = self.receiver.history[-1].get("cost")
        elif inputs is not None and outputs is not None:
            cost = _estimate_usd(self.lm, inputs, outputs)
        else:
            return None
        # A price map that says 0 (a model on the user's own machine) does not know what it costs.
        return float(cost) if cost else None


def _sum_of(entries: Sequence[dict[str, Any]], *names: str) -> int | None:
    """Add up the first of these counters that an entry has; None when no entry has any."""
    counts = [next((entry[name] for name in names if entry.get(name) is not None), None) for entry in entries]
    known = [int(count) for count in counts if count is not None]
    return sum(known) if known else None


def _estimate_usd(lm: Any, input_tokens: int, output_tokens: int) -> float | None:
    """Price a call that left no history, by the price map that DSPy uses itself."""
    if not isinstance(getattr(lm, "engine", None), str):
        return None  # a custom engine has no provider that could have a price
    from dspy.clients.capabilities import resolve
    from dspy.clients.costs import estimate_cost
    from dspy.lm15 import Message, Response, Usage

    route = resolve(lm)
    usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
    response = Response(id=None, model=route.model, message=Message.assistant("-"), finish_reason="stop", usage=usage)
    return estimate_cost(response, provider=route.provider, requested_model=route.model)[0]
