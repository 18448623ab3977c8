"""Where the records of a run come from, batch by batch: training examples to run, or trajectories recorded elsewhere.

A position in a source says everything about what comes next, so that a resumed run takes the same batches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Protocol

from dspy_combee.learners.base import Trajectory
from dspy_combee.seeding import branch_rng

RECORD_ID = re.compile(r"r(\d+)")
"""How the sources name their records: one after the other."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one round learns from; empty when the source has nothing more."""

    items: tuple[Any, ...]
    """Examples, or trajectories that need no run."""
    record_ids: tuple[str, ...]
    """One an item, unique within the run and, with `first_record`, among the runs that taught the program."""
    examples: tuple[int, ...]
    """The position of each item in the trainset, or in the stream."""
    epoch: int
    ends_epoch: bool


class TrainingSource(Protocol):
    """Gives batches by position."""

    @property
    def total(self) -> int | None:
        """How many records there are in all; None when nobody knows."""
        ...

    def take(self, position: int, count: int) -> Batch:
        """Return up to `count` records from a position on, never across the end of an epoch.

        Positions only grow from call to call.
        """
        ...


class ExampleSource:
    """Training examples in epochs, each in an order of its own that depends on the seed alone."""

    def __init__(
        self,
        trainset: Sequence[Any],
        *,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        first_record: int = 1,
    ) -> None:
        """Store the examples; the sequence is not modified.

        Args:
            trainset: The examples.
            epochs: How often they are gone through.
            seed: For the order of each epoch.
            shuffle: Whether an epoch has an order of its own.
            first_record: The number of the first record.

        Raises:
            ValueError: There are no examples, or `epochs` is below 1.
        """
        if not trainset:
            raise ValueError("trainset must hold at least one example, got none")
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
            raise ValueError(f"epochs must be an int of at least 1, got {epochs!r}")
        self._trainset = trainset
        self._epochs = epochs
        self._seed = seed
        self._shuffle = shuffle
        self._first_record = first_record

    @property
    def total(self) -> int:
        """How many records there are in all epochs."""
        return len(self._trainset) * self._epochs

    def take(self, position: int, count: int) -> Batch:
        """Return up to `count` examples from a position on, never across the end of an epoch."""
        size = len(self._trainset)
        epoch, start = divmod(position, size)
        if epoch >= self._epochs:
            return Batch((), (), (), self._epochs - 1, ends_epoch=True)
        indices = tuple(self._order(epoch)[start : start + count])
        return Batch(
            items=tuple(self._trainset[index] for index in indices),
            record_ids=_record_ids(self._first_record + position, len(indices)),
            examples=indices,
            epoch=epoch,
            ends_epoch=start + len(indices) == size,
        )

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._trainset)))
        if self._shuffle:
            branch_rng(self._seed, "epoch", epoch).shuffle(order)
        return order


class TraceSource:
    """Recorded trajectories, read once from any iterable; only one batch is held at a time."""

    def __init__(self, traces: Iterable[Trajectory], *, first_record: int = 1) -> None:
        """Store the iterable, and the number of the first record; one trace is read, so that nothing is spent on none.

        Raises:
            ValueError: There is no trace.
        """
        rows = iter(traces)
        first = tuple(islice(rows, 1))
        if not first:
            raise ValueError("traces must hold at least one that can be read, got none; each row skipped was logged")
        self._traces: Iterator[Trajectory] = chain(first, rows)
        self._total = len(traces) if isinstance(traces, Sequence) else None
        self._position = 0
        self._first_record = first_record

    @property
    def total(self) -> int | None:
        """How many traces there are, where the iterable can tell."""
        return self._total

    def take(self, position: int, count: int) -> Batch:
        """Return up to `count` traces from a position on, skipping what lies before it.

        Raises:
            TypeError: The stream holds something else than trajectories.
            ValueError: The position has been passed already: a stream is read once.
        """
        if position < self._position:
            raise ValueError(f"traces are read once: position must be at least {self._position}, got {position}")
        for _ in islice(self._traces, position - self._position):
            pass
        taken = list(islice(self._traces, count))
        wrong = next((trace for trace in taken if not isinstance(trace, Trajectory)), None)
        if wrong is not None:
            raise TypeError(f"traces must be Trajectory objects, got {type(wrong).__name__}; read rows by TraceReader")
        self._position = position + len(taken)
        record_ids = _record_ids(self._first_record + position, len(taken))
        return Batch(
            items=tuple(replace(trace, record_id=name) for trace, name in zip(taken, record_ids, strict=True)),
            record_ids=record_ids,
            examples=tuple(range(position, position + len(taken))),
            epoch=0,
            ends_epoch=len(taken) < count,
        )


def _record_ids(first: int, count: int) -> tuple[str, ...]:
    return tuple(f"r{number}" for number in range(first, first + count))
