"""What DSPy's callbacks tell about a run's rollouts: which examples crashed and how, and whether the model is down.

GEPA drops examples whose program raised, and scores an outage 0.0 like any wrong answer.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspy.utils.callback import BaseCallback

from dspy_combee.aggregation.waves import AGGREGATION_STAGE
from dspy_combee.errors import CombeeError, LMUnavailableError
from dspy_combee.learners.gepa_evidence import EvidenceLog, SourcedFeedback
from dspy_combee.records import render_value
from dspy_combee.runtime.abort import AbortSwitch
from dspy_combee.runtime.lm_watch import current_stage
from dspy_combee.runtime.retry import is_lm_failure

FAILURES_AT_START = 3
"""So many failed model calls before any succeeded mean that there is no model."""
FAILURES_IN_A_ROW = 20
"""So many later on, or three times the number of threads, mean that it is gone."""


class CrashWatch(BaseCallback):
    """A DSPy callback that remembers why programs raised, ends the run in an outage, and refuses calls after the end.

    A call is refused by raising a `BaseException`: DSPy swallows what else a callback raises. It has to stand before
    callbacks that open something when a call starts, which they would never close.
    """

    def __init__(self, abort: AbortSwitch, *, num_threads: int = 1) -> None:
        super().__init__()
        self._abort = abort
        self._tolerated = max(FAILURES_IN_A_ROW, 3 * num_threads)
        self._failures = 0
        self._has_answered = False
        self._started: dict[str, Any] = {}
        self._errors: dict[tuple[Any, ...], str] = {}
        self._lock = threading.Lock()

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Refuse the call when the run is over."""
        self._abort.refuse_when_closed()

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Close the run when a call was interrupted or the model is down, so that no further one starts.

        Nothing is raised here: callbacks behind this one have to hear of the end of the call as well.
        """
        if isinstance(exception, KeyboardInterrupt | SystemExit):
            self._abort.interrupt()
        elif not current_stage().startswith(AGGREGATION_STAGE):  # there, failures are retried and judged elsewhere
            self._judge(exception)

    def _judge(self, exception: BaseException | None) -> None:
        with self._lock:
            if exception is None:
                self._failures, self._has_answered = 0, True
                return
            if not is_lm_failure(exception):
                return
            self._failures += 1
            is_down = self._failures >= (self._tolerated if self._has_answered else FAILURES_AT_START)
        if is_down:
            self._abort.close(
                LMUnavailableError(
                    f"the language model must answer, the last {self._failures} calls of the program all failed; "
                    f"last {type(exception).__name__}: {exception}"
                )
            )

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Remember what the module was given."""
        with self._lock:
            self._started[call_id] = inputs.get("kwargs", inputs)

    def on_module_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Remember an error with the inputs that led to it."""
        with self._lock:
            inputs = self._started.pop(call_id, None)
            if isinstance(exception, Exception) and isinstance(inputs, Mapping):
                self._errors[_input_key(inputs)] = f"{type(exception).__name__}: {exception}"

    def error_of(self, example: Any) -> str | None:
        """Return the error text of the last failed run on the example's inputs; None when there is none."""
        with self._lock:
            return self._errors.get(_input_key(dict(example.inputs())))

    def refuse_broken_program(self, examples: Sequence[Any]) -> None:
        """Refuse to go on when the program raised on every one of these examples, the first that were tried.

        Replies that cannot be parsed are no reason: a better instruction may cure them.

        Raises:
            CombeeError: it did.
        """
        errors = [self.error_of(example) for example in examples]
        first = errors[0] if errors else None
        if first is None or any(error is None or error.startswith("AdapterParseError") for error in errors):
            return
        raise CombeeError(
            f"the program must run on some example before it can be taught, it raised on all {len(errors)} that were "
            f"tried; the first error was {first}"
        )


@dataclass(frozen=True, slots=True)
class Rollouts:
    """One evaluation of a parent: its examples, what came of them, their scores."""

    examples: Sequence[Any]
    trajectories: Sequence[Mapping[str, Any]]


def crashed_records(rollouts: Rollouts, crashes: CrashWatch, log: EvidenceLog) -> list[dict[str, Any]]:
    """Return records, in GEPA's shape, of the examples that left no trajectory because the program raised."""
    survived = {trajectory["example_ind"] for trajectory in rollouts.trajectories}
    records: list[dict[str, Any]] = []
    for index, example in enumerate(rollouts.examples):
        if index in survived:
            continue
        error = crashes.error_of(example) or "the program gave no prediction"
        feedback = f"The program raised an error on these inputs: {error}"
        source = log.add(example, None, feedback)
        records.append(
            {
                "Inputs": {key: render_value(value) for key, value in example.inputs().items()},
                "Generated Outputs": f"(none) {error}",
                "Feedback": SourcedFeedback(feedback, source),
            }
        )
    return records


def _input_key(inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((key, render_value(value)) for key, value in inputs.items()))
