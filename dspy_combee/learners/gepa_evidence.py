"""What GEPA's own reflective records leave out: record ids and scores.

GEPA hands its proposer records without any link to the example or score. The metric's feedback text brings them back
without touching GEPA: it is a `str` that also knows its record.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import dspy

from dspy_combee.errors import MetricError
from dspy_combee.metrics import MetricCall, Score
from dspy_combee.provenance import RecordSource
from dspy_combee.runtime.abort import AbortSwitch
from dspy_combee.runtime.execution.base import Executor, Outcome


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
    val_index: Mapping[int, int] = field(default_factory=dict)
    """The same for validation examples, which are named in errors only."""
    next_number: int = 1
    """The number of the next record."""
    read: dict[str, RecordSource] = field(default_factory=dict)
    """The records that an aggregation has read, in order."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def place_of(self, example: Any) -> str:
        """Return the example's name for error messages, such as `valset[3]`; empty when it is not known."""
        for name, index in (("trainset", self.train_index), ("valset", self.val_index)):
            if id(example) in index:
                return f"{name}[{index[id(example)]}]"
        return ""

    def add(self, example: Any, score: float | None, feedback: str) -> RecordSource:
        """Give a record its id and say where it came from."""
        with self._lock:
            number, self.next_number = self.next_number, self.next_number + 1
        return RecordSource(f"r{number}", self.train_index.get(id(example)), score, feedback)

    def mark_read(self, source: RecordSource) -> None:
        """Take note that an aggregation was shown the record."""
        with self._lock:
            self.read[source.record_id] = source


@dataclass(frozen=True, slots=True)
class FeedbackCall:
    """One call of the metric for a predictor's feedback."""

    gold: Any
    pred: Any
    trace: Any
    component: str
    pred_trace: Sequence[tuple[Any, Any, Any]]
    """The predictor, its inputs and its outputs."""

    @property
    def key(self) -> tuple[int, int, str, int]:
        """What tells the call from others while the objects live."""
        return id(self.gold), id(self.pred), self.component, id(self.pred_trace[0][2])


class SourcedMetric:
    """The user's metric as GEPA calls it: validated, and with feedback that knows its record.

    A metric that raises fails its example only, unless it does so from the start: then the run is aborted. One that is
    not told the predictor has nothing else to say about it than it said of the rollout, so it is asked once: score and
    feedback come from one judgement, also where the judge is a model.
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
        self._ready: dict[tuple[int, int, str, int], tuple[FeedbackCall, Outcome[Score]]] = {}
        self._judged: dict[tuple[int, int], tuple[weakref.ref[Any], Score]] = {}
        """By example and prediction, as long as the prediction lives."""

    def prepare(self, calls: Sequence[FeedbackCall], executor: Executor) -> None:
        """Ask the metric for the feedback of several rollouts at once.

        GEPA asks for it one rollout after the other; it then finds each answer ready, and no call is made twice.
        """
        outcomes = executor.run(self._ask, calls)
        self._ready = {call.key: (call, outcome) for call, outcome in zip(calls, outcomes, strict=True)}

    def __call__(self, gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        """Score one rollout; with a predictor's name, give the feedback for it as well."""
        self._abort.refuse_when_closed()
        try:
            score = self._score(gold, pred, trace, pred_name, pred_trace)
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

    def _score(self, gold: Any, pred: Any, trace: Any, pred_name: Any, pred_trace: Any) -> Score:
        if pred_name is None:
            score = self._call(gold, pred, trace, pred_name, pred_trace, where=self._log.place_of(gold))
            self._remember(gold, pred, score)
            return score
        call = FeedbackCall(gold, pred, trace, pred_name, pred_trace)
        ready = self._ready.pop(call.key, None)
        if ready is None:
            return self._ask(call)
        outcome = ready[1]
        if outcome.error is not None:
            raise outcome.error
        assert outcome.value is not None
        return outcome.value

    def _remember(self, gold: Any, pred: Any, score: Score) -> None:
        if self._call.is_told_predictor:
            return
        key = (id(gold), id(pred))
        with suppress(TypeError):  # not every object can be referred to weakly
            self._judged[key] = (weakref.ref(pred, lambda _: self._judged.pop(key, None)), score)

    def _ask(self, call: FeedbackCall) -> Score:
        judged = self._judged.get((id(call.gold), id(call.pred)))
        if judged is not None and judged[0]() is call.pred:
            return judged[1]
        where = self._log.place_of(call.gold)
        return self._call(call.gold, call.pred, call.trace, call.component, call.pred_trace, where=where)

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
