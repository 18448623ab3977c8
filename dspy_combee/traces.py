"""Recorded trajectories in: from JSON lines, a data set, any iterable, or DSPy's own traces; one at a time.

A mapping says where in a row the parts are. A row that cannot be read is reported and skipped; the stream is never held
as a whole.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dspy

from dspy_combee.learners.base import Trajectory

logger = logging.getLogger(__name__)

Part = str | Sequence[str] | Callable[[Any], Any] | None
"""Where a part of a row is: a field, with dots into nested ones; several fields; a function of the row; or nowhere."""

MAX_REPORTS = 100


@dataclass(frozen=True, slots=True)
class TraceMapping:
    """Where the parts of a trajectory are in a row."""

    inputs: Part = "inputs"
    """What the program was given: one mapping, or the names of several fields."""
    steps: Part = "steps"
    """What it did: a list of steps, each a mapping, a text, or (name, inputs, outputs)."""
    output: Part = "output"
    """What it returned: a mapping, or one value."""
    score: Part = "score"
    feedback: Part = "feedback"
    labels: Part = None
    """What would have been right, where it is known."""


@dataclass(frozen=True, slots=True)
class SkippedTrace:
    """A row that could not be read."""

    row: int
    """Its position, from 0; the line of a file less one."""
    reason: str


class TraceReader:
    """Reads trajectories from rows, each time it is iterated; only the row at hand is in memory.

    Example:
        ```python
        traces = TraceReader("runs.jsonl", TraceMapping(inputs="task", steps="messages", output="answer"))
        program = ACE(metric, reflection_lm=lm).compile(program, traces=traces)
        traces.skipped
        ```
    """

    def __init__(self, source: Any, mapping: TraceMapping | None = None) -> None:
        """Store where the rows are; nothing is read.

        Args:
            source: A path to JSON lines, or any iterable of rows: mappings (a `datasets` data set, streaming or not, is
                one), trajectories, or (example, prediction, trace, score) as DSPy's own tools record them.
            mapping: Where the parts are in rows that are mappings.

        Raises:
            TypeError: The source is neither a path nor an iterable of rows, or it is a mapping: one row alone, or a
                data set with all of its splits.
            FileNotFoundError: There is no such file.
        """
        if isinstance(source, (str, os.PathLike)):
            if not os.path.exists(source) or os.path.isdir(source):
                raise FileNotFoundError(f"traces must be a file of JSON lines or an iterable of rows, no file {source}")
        elif isinstance(source, Mapping):
            keys = ", ".join(map(str, source))
            raise TypeError(
                f"traces must be an iterable of rows or one split of a data set, got a mapping of {keys:.200}"
            )
        elif not isinstance(source, Iterable):
            raise TypeError(f"traces must be a path or an iterable of rows, got {type(source).__name__}")
        self._source = source
        self._mapping = mapping or TraceMapping()
        self._skipped: list[SkippedTrace] = []
        self._skipped_count = 0

    @property
    def skipped(self) -> tuple[SkippedTrace, ...]:
        """The first rows of the last pass that could not be read, at most 100."""
        return tuple(self._skipped)

    @property
    def skipped_count(self) -> int:
        """How many rows of the last pass could not be read."""
        return self._skipped_count

    def __iter__(self) -> Iterator[Trajectory]:
        """Yield a trajectory a readable row, in order; its record id names the row ("t17" is row 16)."""
        self._skipped, self._skipped_count = [], 0
        for row, value in self._rows():
            try:
                trajectory = self._read(row, value)
            except Exception as error:  # noqa: BLE001 - a row that cannot be read is reported, whatever its mapping raises
                self._skip(row, f"{type(error).__name__}: {error}")
            else:
                yield trajectory

    def _rows(self) -> Iterator[tuple[int, Any]]:
        if not isinstance(self._source, (str, os.PathLike)):
            yield from enumerate(self._source)
            return
        with open(self._source, encoding="utf-8-sig", errors="replace") as file:
            yield from ((row, _Line(line)) for row, line in enumerate(file) if line.strip())

    def _read(self, row: int, value: Any) -> Trajectory:
        if isinstance(value, _Line):
            value = json.loads(value.text)
        record_id = f"t{row + 1}"
        if isinstance(value, Mapping):
            return self._from_mapping(record_id, value)
        trajectory = (
            replace(value, record_id=record_id) if isinstance(value, Trajectory) else _from_dspy(record_id, value)
        )
        if isinstance(trajectory.example, dspy.Example):
            trajectory.example.inputs()  # raises where nothing says which fields are inputs and which are labels
        return trajectory

    def _from_mapping(self, record_id: str, row: Mapping[str, Any]) -> Trajectory:
        where = self._mapping
        inputs = _as_fields(_part(row, where.inputs), "input")
        if not inputs:
            raise ValueError(f"a trace must have inputs at {where.inputs!r}, it has {sorted(map(str, row))}")
        labels = _as_fields(_part(row, where.labels), "output")
        output = _as_fields(_part(row, where.output), "output")
        steps = _part(row, where.steps)
        if isinstance(steps, (str, Mapping)):
            steps = [steps]
        feedback = _part(row, where.feedback)
        return Trajectory(
            record_id=record_id,
            example=dspy.Example({**labels, **inputs}).with_inputs(*inputs),
            prediction=dspy.Prediction(output) if output else None,
            score=_as_score(_part(row, where.score)),
            feedback="" if feedback is None else str(feedback),
            trace=tuple(_as_step(number, step) for number, step in enumerate(steps or (), start=1)),
        )

    def _skip(self, row: int, reason: str) -> None:
        self._skipped_count += 1
        if len(self._skipped) < MAX_REPORTS:
            self._skipped.append(SkippedTrace(row, reason))
            logger.warning("Trace %d is skipped: %.300s", row, reason)


def read_traces(traces: Any) -> TraceReader:
    """Return a reader of whatever a user gives as traces; a reader as it is."""
    return traces if isinstance(traces, TraceReader) else TraceReader(traces)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a file, read as JSON only where a failure is this line's alone."""

    text: str


def _part(row: Mapping[str, Any], part: Part) -> Any:
    if part is None:
        return None
    if callable(part):
        return part(row)
    if isinstance(part, str):
        return _at(row, part)
    return {name.rpartition(".")[2]: value for name in part if (value := _at(row, name)) is not None}


def _at(row: Any, path: str) -> Any:
    """Return what is at a dotted path; None where there is nothing."""
    if isinstance(row, Mapping) and path in row:
        return row[path]
    head, dot, rest = path.partition(".")
    return _at(row.get(head), rest) if dot and isinstance(row, Mapping) else None


def _as_fields(value: Any, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items() if item is not None}
    return {name: value}


def _as_score(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        raise ValueError(f"the score must be a number or missing, got the text {value!r}")
    score = float(value)
    if not math.isfinite(score):
        raise ValueError(f"the score must be finite or missing, got {score}")
    return score


def _as_step(number: int, step: Any) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
    """Return a step as (name, inputs, outputs), the form of DSPy's own traces."""
    if isinstance(step, Mapping):
        name = str(step.get("name") or step.get("role") or step.get("type") or number)
        named = ("name", "role", "type", "inputs", "outputs")
        inputs = _as_fields(step.get("inputs"), "input")
        rest = {str(key): value for key, value in step.items() if key not in named and value is not None}
        return name, inputs, {**_as_fields(step.get("outputs"), "output"), **rest}
    if isinstance(step, (list, tuple)) and len(step) == 3:
        name, inputs, outputs = step
        is_named = isinstance(name, str) or not hasattr(name, "signature")
        given, made = _named(inputs, "input"), _named(outputs, "output")
        return (str(name) if is_named else name), given, made
    return str(number), {}, {"text": str(step)}


def _named(value: Any, name: str) -> dict[str, Any]:
    return dict(value.items()) if hasattr(value, "items") else {name: value}


def _from_dspy(record_id: str, row: Any) -> Trajectory:
    """Read (example, prediction[, trace[, score]]), as a tuple or with fields of these names."""
    if isinstance(row, (list, tuple)):
        example, prediction, trace, score = [*row, None, None, None, None][:4]
    else:
        example, prediction = row.example, row.prediction
        trace, score = getattr(row, "trace", None), getattr(row, "score", None)
    if not isinstance(example, dspy.Example):
        raise TypeError(f"a trace must be a mapping, a Trajectory or start with an Example, got {type(row).__name__}")
    feedback = getattr(score, "feedback", None)
    return Trajectory(
        record_id=record_id,
        example=example,
        prediction=prediction,
        score=_as_score(getattr(score, "score", score)),
        feedback="" if feedback is None else str(feedback),
        trace=tuple(_as_step(number, step) for number, step in enumerate(trace or (), start=1)),
    )
