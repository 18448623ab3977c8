"""The callback that follows a run: which module calls which, and the tools and predictors that nobody prepared."""

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
from dspy_evocue.running import SETTINGS_KEY, Entry, Execution, current_executions

PREPARED = "_evocue_is_prepared"
"""The class attribute of predictors and tools that report their own entries."""


class Observer(BaseCallback):
    """Follow the calls of the current executions. It holds no state of a run, so one instance serves all."""

    def __init__(self) -> None:
        """Start with no call in flight."""
        self._unprepared: dict[str, tuple[tuple[Execution, Entry], ...]] = {}

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
        """Note the call of a tool; one that reports its own entries is only followed."""
        for execution in current_executions():
            execution.open_frame(call_id, ACTIVE_CALL_ID.get())
        if not hasattr(type(instance), PREPARED):
            self._enter(call_id, "tool", tool_node(instance.name), inputs.get("kwargs", {}))

    def on_tool_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:
        """Note its end."""
        self._end(call_id, outputs, exception)

    def on_lm_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:
        """Note an outage: the run is no evidence then, also where the program caught the error and went on."""
        if exception is not None and is_outage(exception):
            for execution in current_executions():
                execution.outage = f"{type(exception).__name__}: {exception}"

    def _enter(self, call_id: str, kind: Any, node: str, inputs: Mapping[str, Any]) -> None:
        entries = tuple((each, each.enter(kind, node, inputs, call_id)[0]) for each in current_executions())
        if kind == "tool":
            for execution, entry in entries:
                execution.is_running_in(call_id, entry)
        self._unprepared[call_id] = entries

    def _end(self, call_id: str, outputs: Any, exception: BaseException | None) -> None:
        for execution, entry in self._unprepared.pop(call_id, ()):
            execution.leave(entry, outputs, exception)
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
    callbacks = list(settings.get("callbacks") or [])
    if OBSERVER not in callbacks:
        callbacks.append(OBSERVER)
    with settings.context(**{SETTINGS_KEY: (*current_executions(), execution), "callbacks": callbacks}):
        yield execution


def mark_node(name: str) -> None:
    """Say that plain code of a program is a node of its own: the next predictor is entered from it.

    Does nothing outside an observed or edited program.

    Args:
        name: The node's name, as edits will spell it.
    """
    for execution in current_executions():
        entry, replayed = execution.enter("mark", name, {}, ACTIVE_CALL_ID.get())
        execution.leave(entry, None, None, was_replayed=replayed is not None)
