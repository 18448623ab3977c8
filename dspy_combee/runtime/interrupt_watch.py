"""Let no model call start once a run was interrupted, whatever its workers are in the middle of.

Without it an agent in a worker would go on to its own end, call by call, while the user waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from dspy_combee.runtime.abort import AbortSwitch
from dspy_combee.runtime.interrupt import notice_interrupt


@contextmanager
def refusing_calls_when_closed(abort: AbortSwitch) -> Iterator[None]:
    """Refuse the calls of the block once the switch is closed; Ctrl-C closes it, in a call or in the main thread."""
    with (
        notice_interrupt(abort.interrupt),
        # It stands before the meters: what is refused must not be counted.
        dspy.context(callbacks=[_InterruptWatch(abort), *dspy.settings.callbacks]),
    ):
        yield


class _InterruptWatch(BaseCallback):
    """Refuses calls by raising a `BaseException`: DSPy swallows what else a callback raises."""

    def __init__(self, abort: AbortSwitch) -> None:
        super().__init__()
        self._abort = abort

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Refuse the call when the run is over."""
        self._abort.refuse_when_closed()

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Close the run when a call was interrupted."""
        if isinstance(exception, KeyboardInterrupt | SystemExit):
            self._abort.interrupt()
