"""The parts of a controller: the DSPy modules, tools and functions that perform its operations, and what each reads.

A part is checked against the table once, when the program is made: who may perform the operation, and which parts of
the observable state it may be shown.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import dspy

from dspy_evocue.control.graph import ControlGraph
from dspy_evocue.control.operations import OPERATIONS

Part = dspy.Module | Callable[..., Any]

STATE_FIELDS = frozenset(name for row in OPERATIONS.values() for name in row.reads) - {"task"}
"""The parts of the observable state that the controller itself keeps; inputs and values must have other names."""
_BUILT_IN = ("discard",)


@dataclass(frozen=True, slots=True)
class PlainParts:
    """The parts that are no DSPy modules. Copies of a program share them: they hold nothing of a run."""

    functions: Mapping[str, Callable[..., Any]]
    features: Mapping[str, Callable[..., str]] = field(default_factory=dict)
    on_end: Callable[..., Any] | None = None
    """Called with what it reads once a run is over, however it ended."""

    def __deepcopy__(self, memo: dict[int, Any]) -> PlainParts:
        """Return the same object: deep-copying a bound method would silently copy the object behind it."""
        return self


def signature_of(predictor: dspy.Predict) -> type[dspy.Signature]:
    """Return the predictor's signature, which DSPy's own annotation leaves open."""
    return cast(type[dspy.Signature], predictor.signature)


def predictor_of(part: Part) -> dspy.Predict | None:
    """Return the predictor whose instructions can be added to for one call; None when the part has none such."""
    if isinstance(part, dspy.Predict):
        return part
    return part.predict if isinstance(part, dspy.ChainOfThought) else None


def reads_of(part: Part) -> tuple[str, ...] | None:
    """Return the names of what the part is shown; None when it takes whatever there is."""
    predictor = predictor_of(part)
    if predictor is not None:
        return tuple(signature_of(predictor).input_fields)
    if isinstance(part, dspy.Module):
        signature = getattr(part, "signature", None)
        if signature is not None:
            return tuple(signature.input_fields)
        return _parameters(part.forward)
    return _parameters(part)


def available_operations(names: Mapping[str, Any] | set[str]) -> tuple[str, ...]:
    """Return the primitive operations that a program with parts of these names can perform."""
    return tuple(name for name in OPERATIONS if name in names or name in _BUILT_IN)


def require_parts(graph: ControlGraph, parts: Mapping[str, Part]) -> None:
    """Refuse a graph whose nodes have no part, or one that may not perform them.

    Raises:
        ValueError: When a part is missing, or reads what its operation must not be shown.
        TypeError: When a part is of the wrong kind for its operation.
    """
    needed = {node.part for node in graph.nodes if node.operation != "stop" and node.part not in _BUILT_IN}
    if missing := sorted(needed - set(parts)):
        raise ValueError(f"parts must have {', '.join(sorted(needed))}; missing: {', '.join(missing)}")
    kinds = {node.name: node.operation for node in graph.nodes if node.operation not in OPERATIONS}
    for name, part in parts.items():
        _require_performer(name, part, kinds)
        if name in OPERATIONS:
            _require_reads(name, part)


def _parameters(function: Callable[..., Any]) -> tuple[str, ...] | None:
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return None
    return tuple(one.name for one in parameters)


def _require_performer(name: str, part: Part, kinds: Mapping[str, str]) -> None:
    is_module = isinstance(part, dspy.Module)
    if not is_module and not callable(part):
        raise TypeError(f"part {name!r} must be a dspy.Module or a callable, got {type(part).__name__}")
    if name in OPERATIONS:
        performers = OPERATIONS[name].performers
        if is_module and "model" not in performers:
            raise TypeError(f"part {name!r} is performed by {' or '.join(performers)}, got a dspy.Module")
        if not is_module and performers == ("model",):
            raise TypeError(f"part {name!r} must be a dspy.Module, got {type(part).__name__}")
    elif name not in kinds:
        raise ValueError(f"part {name!r} belongs to no node and no operation; nodes are {', '.join(kinds)}")
    elif is_module != (kinds[name] == "model"):
        wanted = "a dspy.Module" if kinds[name] == "model" else "a callable that is no dspy.Module"
        raise TypeError(f"part {name!r} of a {kinds[name]} node must be {wanted}, got {type(part).__name__}")


def _require_reads(name: str, part: Part) -> None:
    forbidden = sorted((set(reads_of(part) or ()) & STATE_FIELDS) - set(OPERATIONS[name].reads))
    if forbidden:
        raise ValueError(
            f"part {name!r} may read {', '.join(OPERATIONS[name].reads)} and the program's own values, "
            f"got {', '.join(forbidden)}"
        )
