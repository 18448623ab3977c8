"""What GEPA's own reflective records leave out: record ids and scores, and the examples that crashed.

GEPA hands its proposer records without any link to the example or score, and drops examples whose program raised,
which are the hardest ones. Two seams bring them back without touching GEPA: the metric's feedback text (a `str` that
also knows its record), and GEPA's callbacks together with DSPy's.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from dspy_combee.errors import MetricError
from dspy_combee.metrics import MetricCall, Score
from dspy_combee.provenance import RecordSource
from dspy_combee.records import render_value


class SourcedFeedback(str):
    """A feedback text that knows the record it stands in. A plain `str` to everybody else."""

    source: RecordSource

    def __new__(cls, text: str, source: RecordSource) -> SourcedFeedback:
        """Make the text and attach its source."""
        made = super().__new__(cls, text)
        made.source = source
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy as a plain text: the source belongs to this run only."""
        return str, (str(self),)


@dataclass(slots=True)
class EvidenceLog:
    """The sources of all records of a run. Shared by the metric and the callbacks; safe to use from threads."""

    train_index: Mapping[int, int]
    """From the `id` of a train example to its position."""
    first_number: int = 1
    sources: dict[str, RecordSource] = field(default_factory=dict)
    _numbers: Any = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Start numbering."""
        self._numbers = itertools.count(self.first_number)

    def add(self, example: Any, score: float | None, feedback: str) -> RecordSource:
        """Give a record its id and remember where it came from."""
        with self._lock:
            source = RecordSource(f"r{next(self._numbers)}", self.train_index.get(id(example)), score, feedback)
            self.sources[source.record_id] = source
        return source


class SourcedMetric:
    """The user's metric as GEPA calls it: validated, and with feedback that knows its record.

    A metric that raises fails its example only, unless it does so from the start: then the run is aborted.
    """

    def __init__(
        self,
        call: MetricCall,
        log: EvidenceLog,
        *,
        failure_score: float,
        abort: AbortSwitch,
        on_scored: Callable[[], None],
    ) -> None:
        """Store the collaborators.

        Args:
            call: The user's metric.
            log: Gives each record its id.
            failure_score: Stands in for the score of a metric that raised.
            abort: Ends the run when the metric cannot work at all.
            on_scored: Called after each rollout that was scored.
        """
        self._on_scored = on_scored
        self._call = call
        self._log = log
        self._failure_score = failure_score
        self._abort = abort
        self._failures = 0
        self._feedback_texts = 0
        self._empty_feedback = 0
        self._lock = threading.Lock()

    def __call__(self, gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        """Score one rollout; with a predictor's name, give the feedback for it as well."""
        index = self._log.train_index.get(id(gold))
        try:
            score = self._call(gold, pred, trace, pred_name, pred_trace, example_index=index)
        except MetricError as error:
            self._abort.now(error)
        except Exception as error:
            self._note_failure(error)
            if pred_name is None:
                raise
            return self._sourced(gold, None, f"The metric raised {type(error).__name__}: {error}")
        if pred_name is not None:
            return self._with_feedback(gold, score)
        self._on_scored()
        return self._plain(score)

    def missing_feedback(self) -> tuple[int, int]:
        """Return how many feedback texts were empty, and how many records there were."""
        with self._lock:
            return self._empty_feedback, self._feedback_texts

    def _plain(self, score: Score) -> Any:
        with self._lock:
            self._failures = -1  # it has worked once: later failures are those of single examples
        return dspy.Prediction(**score.raw) if isinstance(score.raw, Mapping) else score.raw

    def _with_feedback(self, gold: Any, score: Score) -> Any:
        # The wording for metrics without feedback is dspy.GEPA's, so that its prompts stay what they were.
        has_score = hasattr(score.raw, "feedback") or isinstance(score.raw, Mapping)
        shown = score.raw["score"] if has_score else score.raw
        text = score.feedback if score.has_feedback else f"This trajectory got a score of {shown}."
        with self._lock:
            self._feedback_texts += 1
            self._empty_feedback += not score.feedback.strip()
        return self._sourced(gold, score, text)

    def _sourced(self, gold: Any, score: Score | None, text: str) -> dspy.Prediction:
        source = self._log.add(gold, score.value if score else None, text)
        value = score.value if score else self._failure_score
        return dspy.Prediction(score=value, feedback=SourcedFeedback(text, source))

    def _note_failure(self, error: Exception) -> None:
        with self._lock:
            if self._failures < 0:
                return
            self._failures += 1
            always = self._failures >= 3
        if always:
            failure = MetricError(
                f"metric {self._call.name} must return a score; it raised on each of the first {self._failures} "
                f"rollouts, last {type(error).__name__}: {error}"
            )
            failure.__cause__ = error
            self._abort.now(failure)


class Aborted(BaseException):
    """Ends a run from inside a rollout: `dspy.Evaluate` would score an `Exception` 0.0 and go on."""


class AbortSwitch:
    """Remembers why a run had to end, for the thread that reports it, and refuses further model calls."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.is_closed = False

    def now(self, error: Exception) -> None:
        """End the run because of this error.

        Raises:
            Aborted: always.
        """
        self.error = self.error or error
        self.is_closed = True
        raise Aborted(str(error))


class CrashWatch(BaseCallback):
    """A DSPy callback that remembers which inputs made the program raise, and refuses calls after the end of a run.

    A call is refused by raising a `BaseException`: DSPy swallows what else a callback raises.
    """

    def __init__(self, abort: AbortSwitch) -> None:
        super().__init__()
        self._abort = abort
        self._started: dict[str, Any] = {}
        self._errors: dict[tuple[Any, ...], str] = {}
        self._lock = threading.Lock()

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Refuse the call when the run is over."""
        if self._abort.is_closed:
            raise Aborted("the run has ended")

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Close the run when a call was interrupted, so that waiting workers start no further one."""
        if exception is not None and not isinstance(exception, Exception):
            self._abort.is_closed = True

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
