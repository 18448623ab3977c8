"""The records of a run in rounds: how it is to go, what each round did, how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

from dspy_combee.aggregation.base import Aggregated, CallRecord

StopReason = Literal["perfect", "budget", "no_improvement", "interrupted", "error", "completed"]


class BatchSizePolicy(Protocol):
    """What decides the size of the next batch: pure, `(state, observation) -> state`."""

    def start(self) -> Any:
        """Return the state before the first round."""
        ...

    def observe(self, state: Any, *, batch_size: int, seconds: float) -> Any:
        """Return the state after a full round of `batch_size` examples that took `seconds` of wall time."""
        ...

    def pick(self, state: Any) -> int:
        """Return the size of the next batch, at least 1."""
        ...


@runtime_checkable
class SkipsSizes(Protocol):
    """A policy that waits for the time of a size, and can be told that there will be none."""

    def skip(self, state: Any, *, batch_size: int) -> Any:
        """Return the state after a round whose time says nothing."""
        ...


def observe_round(policy: BatchSizePolicy, state: Any, record: RoundRecord) -> Any:
    """Return the policy's state after a round; one that was cut short or partly done before says nothing."""
    if not record.is_full or record.recalled or record.seconds <= 0:
        return state
    if record.cached_calls:
        return policy.skip(state, batch_size=record.batch_size) if isinstance(policy, SkipsSizes) else state
    return policy.observe(state, batch_size=record.batch_size, seconds=record.seconds)


@dataclass(frozen=True, slots=True)
class FixedBatchSize:
    """Always the same size (a `BatchSizePolicy`)."""

    batch_size: int

    def __post_init__(self) -> None:
        """Check the number."""
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise ValueError(f"batch_size must be an int of at least 1, got {self.batch_size!r}")

    def start(self) -> None:
        """Return the state, which is none."""

    def observe(self, state: None, *, batch_size: int, seconds: float) -> None:
        """Learn nothing."""

    def pick(self, state: None) -> int:
        """Return the size."""
        return self.batch_size


@dataclass(frozen=True, slots=True)
class RoundSchedule:
    """When a run validates and when it ends."""

    validate_every: int | None = None
    """Training examples between two validations; None validates at the end of each epoch. The end always does."""
    patience: int | None = None
    """Validations in a row without improvement that end the run; None for no such end."""
    rollback: bool = False
    """Whether a validation below the best sends the run back to the best program."""
    perfect_score: float = 1.0
    """A validation score that ends the run at once."""
    failure_score: float = 0.0
    """What a program that raises scores in a validation."""
    max_failed_rounds: int = 3
    """Rounds in a row without any update, though there was something to learn, that end the run."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("validate_every", "patience", "max_failed_rounds"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be an int of at least 1 or None, got {value!r}")


@dataclass(frozen=True, slots=True)
class ComponentUpdate:
    """What one round changed in one component."""

    component: str
    entries: tuple[tuple[str, tuple[str, ...]], ...]
    """The lines of the update, each with the records that taught it; empty when every call failed."""
    uncited: tuple[str, ...]
    """Records that no line cites."""
    calls: tuple[CallRecord, ...]
    """The aggregation calls, level by level."""
    note: str = ""

    @classmethod
    def of(cls, aggregated: Aggregated) -> ComponentUpdate:
        """Keep of an aggregation what a reader and a resumed run need."""
        lines = aggregated.update.entries if aggregated.update is not None else ()
        return cls(
            component=aggregated.component,
            entries=tuple((entry.text, tuple(entry.record_ids)) for entry in lines),
            uncited=aggregated.uncited,
            calls=aggregated.calls,
            note=aggregated.note,
        )

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> ComponentUpdate:
        """Read what `RoundRecord.to_dict` wrote."""
        return cls(
            component=state["component"],
            entries=tuple((text, tuple(ids)) for text, ids in state["entries"]),
            uncited=tuple(state["uncited"]),
            calls=tuple(CallRecord(**{**call, "record_ids": tuple(call["record_ids"])}) for call in state["calls"]),
            note=state["note"],
        )


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What one round did."""

    index: int
    """From 0."""
    epoch: int
    """From 0."""
    batch_size: int
    """How many examples it took."""
    is_full: bool
    """Whether it took as many as the batch-size policy wanted."""
    record_ids: tuple[str, ...]
    examples: tuple[int, ...]
    """The position of each record's example in the trainset (or in the stream of traces)."""
    scores: tuple[float | None, ...]
    """One a record; None where nothing could be scored."""
    errors: tuple[tuple[str, str], ...]
    """Record id and error text of each record whose program, metric, model or reflection failed."""
    reflections: int
    updates: tuple[ComponentUpdate, ...]
    seconds: float
    """From the first rollout to the updated program, without validation."""
    recalled: int = 0
    """Records that an interrupted run had finished already; the seconds say little when there are any."""
    cached_calls: int = 0
    """Model calls that DSPy's cache answered; the seconds say little when there are any."""
    metric_calls: int = 0
    """Examples scored since the run began, up to the end of this round."""
    feedback: tuple[str, ...] = field(default=(), repr=False)
    """The metric's words or the error text, one a record, long ones cut; empty in old rounds of a very long run."""
    traced: int = 0
    """In how many of its runs some predictor of the program was seen; those that were recalled are not among them."""
    reached: tuple[str, ...] = ()
    """The predictors that were called in any of these runs, by name."""

    @property
    def train_score(self) -> float | None:
        """The mean of the scores before the update; None when there is none."""
        known = [score for score in self.scores if score is not None]
        return sum(known) / len(known) if known else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> RoundRecord:
        """Read what `to_dict` returned."""
        known = dict(state)
        known["updates"] = tuple(ComponentUpdate.from_dict(update) for update in state["updates"])
        known["errors"] = tuple((record_id, text) for record_id, text in state["errors"])
        for name in ("record_ids", "examples", "scores", "feedback", "reached"):
            known[name] = tuple(state.get(name, ()))
        return cls(**known)


@dataclass(frozen=True, slots=True)
class Validation:
    """One validation: the mean score of a program on the validation set."""

    after_rounds: int
    """How many rounds had been done."""
    score: float
    """The mean over the examples that could be scored."""
    scores: tuple[float | None, ...] = field(default=(), repr=False)
    """One an example; None where the model failed. Missing is not zero."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Validation:
        """Read what `to_dict` returned."""
        return cls(state["after_rounds"], state["score"], tuple(state["scores"]))


@dataclass(frozen=True, slots=True)
class RoundsResult:
    """How a run ended."""

    program: Any
    """The best program by validation; without a validation set the last one."""
    stop_reason: StopReason
    rounds: tuple[RoundRecord, ...]
    validations: tuple[Validation, ...]
    """The first is that of the program as it was given."""
    last_program: Any = None
    """The program after the last round; another one than `program` when it validated worse."""
    error: str = ""
    """What ended the run, when the reason is "error"."""

    @property
    def seed_score(self) -> float | None:
        """The validation score of the program as it was given."""
        return self.validations[0].score if self.validations else None

    @property
    def best_score(self) -> float | None:
        """The validation score of `program`."""
        return max((validation.score for validation in self.validations), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the result without the programs, ready for JSON."""
        return {
            "stop_reason": self.stop_reason,
            "error": self.error,
            "seed_score": self.seed_score,
            "best_score": self.best_score,
            "rounds": [record.to_dict() for record in self.rounds],
            "validations": [validation.to_dict() for validation in self.validations],
        }


def forget_feedback(rounds: list[RoundRecord], *, most: int = 20_000) -> None:
    """Leave the feedback texts out of the oldest rounds in place, so that at most so many records keep theirs.

    A run over a long stream of traces must not hold what it has read.
    """
    kept = 0
    for position in range(len(rounds) - 1, -1, -1):
        kept += rounds[position].batch_size
        if kept > most:
            if not rounds[position].feedback:
                return
            rounds[position] = replace(rounds[position], feedback=())
