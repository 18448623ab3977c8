"""The callback that follows a run: which module calls which, and the tools, and predictors that nobody prepared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import dspy
from dspy.dsp.utils.settings import settings
from dspy.utils.callback import BaseCallback
from dspy.utils.callback_context import ACTIVE_CALL_ID
from dspy.utils.exceptions import LMInvalidRequestError

from dspy_combee.runtime.retry import is_lm_failure
from dspy_evocue.call_sites import tool_node
from dspy_evocue.entries import Entry, NodeKind, Replayed
from dspy_evocue.running import SETTINGS_KEY, Execution, current_executions

PREPARED = "_evocue_is_prepared"
"""The class attribute of predictors that report their own entries."""


ObservedCall = tuple[tuple[Execution, Entry, "Replayed | None"], ...]
"""One call of a node, for every current execution that takes note of it."""


class Observer(BaseCallback):
    """Follow the calls of the current executions. It holds no state of a run, so one instance serves all."""

    def __init__(self) -> None:
        """Start with no call in flight."""
        self._in_flight: dict[str, ObservedCall] = {}

    def call_in_flight(self, call_id: str | None) -> ObservedCall:
        """Return the tool call (or the call of a predictor made inside `forward`) with this id; empty for others."""
        return self._in_flight.get(call_id or "", ())

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Note the call; a predictor that was made inside `forward` is noted as a node that cannot be attached."""
        for execution in current_executions():
            execution.open_frame(call_id, ACTIVE_CALL_ID.get())
        if isinstance(instance, dspy.Predict) and not hasattr(type(instance), PREPARED):
            self._enter(call_id, "unattached", unattached_node(instance), inputs.get("kwargs", {}))

    def on_module_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:
        """Note its end."""
        self._end(call_id, outputs, exception)

    def on_tool_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Note the call of a tool."""
        for execution in current_executions():
            execution.open_frame(call_id, ACTIVE_CALL_ID.get())
        self._enter(call_id, "tool", tool_node(instance.name), inputs.get("kwargs", {}))

    def on_tool_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:
        """Note its end."""
        self._end(call_id, outputs, exception)

    def on_lm_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:
        """Note an outage: the run is no evidence then, also where the program caught the error and went on."""
        if exception is not None and is_outage(exception):
            for execution in current_executions():
                execution.outage = f"{type(exception).__name__}: {exception}"

    def _enter(self, call_id: str, kind: NodeKind, node: str, inputs: Mapping[str, Any]) -> None:
        self._in_flight[call_id] = tuple(
            (execution, *execution.enter(kind, node, inputs, call_id)) for execution in current_executions()
        )

    def _end(self, call_id: str, outputs: Any, exception: BaseException | None) -> None:
        try:
            for execution, entry, replayed in self._in_flight.pop(call_id, ()):
                execution.leave(entry, outputs, exception, was_replayed=replayed is not None)
        finally:
            for execution in current_executions():
                execution.close_frame(call_id)


def is_outage(error: BaseException) -> bool:
    """Say whether an error of a language model is its provider's and not due to what the program asked of it."""
    return is_lm_failure(error) and not isinstance(error, LMInvalidRequestError)


def unattached_node(predictor: Any) -> str:
    """Return how a predictor without a name in the program is shown."""
    signature = predictor.signature
    return f"unattached:{', '.join(signature.input_fields)} -> {', '.join(signature.output_fields)}"


OBSERVER = Observer()


@contextlib.contextmanager
def following(execution: Execution) -> Iterator[Execution]:
    """Make an execution current for everything that is called inside, in this and in DSPy's own threads."""
    changed: dict[str, Any] = {SETTINGS_KEY: (*current_executions(), execution)}
    callbacks = list(settings.get("callbacks") or [])
    if execution.must_see_every_call and OBSERVER not in callbacks:
        changed["callbacks"] = [*callbacks, OBSERVER]
    with settings.context(**changed):
        yield execution


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """Take the observer away from what is called inside, unless the run is recorded or replayed.

    For the calls that a predictor makes itself (its adapter, its language model): DSPy does more for each call that any
    callback listens to than everything here does, and only a record needs to know of these.
    """
    callbacks = settings.get("callbacks") or []
    if OBSERVER not in callbacks or any(execution.journal is not None for execution in current_executions()):
        yield
        return
    with settings.context(callbacks=[callback for callback in callbacks if callback is not OBSERVER]):
        yield


def mark_node(name: str, *, is_action: bool = False) -> None:
    """Say that plain code of a program is a node of its own: the next predictor is entered from it.

    Does nothing outside an observed or edited program.

    Args:
        name: The node's name, as edits will spell it.
        is_action: Whether the code acts on the world, as a tool does: edits for the next action end there.
    """
    with _noted("action" if is_action else "mark", name, {}):
        pass


def acting(name: str, inputs: Mapping[str, Any]) -> contextlib.AbstractContextManager[list[Any]]:
    """Note an action on the world that the block performs; what the block appends is what was observed.

    Unlike a tool's call it is performed again when its run is replayed.

    Args:
        name: The node's name, as edits will spell it.
        inputs: What is done.
    """
    return _noted("action", name, inputs)


@contextlib.contextmanager
def _noted(kind: NodeKind, name: str, inputs: Mapping[str, Any]) -> Iterator[list[Any]]:
    entries = [
        (execution, *execution.enter(kind, name, inputs, ACTIVE_CALL_ID.get())) for execution in current_executions()
    ]
    observed: list[Any] = []
    error: BaseException | None = None
    try:
        yield observed
    except BaseException as raised:
        error = raised
        raise
    finally:
        for execution, entry, replayed in entries:
            output = observed[0] if observed else None
            execution.leave(entry, output, error, was_replayed=replayed is not None)
