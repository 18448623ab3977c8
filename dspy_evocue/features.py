"""Features: typed, categorical facts about a run just before a call, on which a rule may test.

Only what the agent itself could see goes in: where control came from, which tools were called and what they returned.
Task ids and scores never do. Users add their own named functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dspy_evocue.errors import FeatureError, MissingFeatureError

FeatureFunction = Callable[["RunState"], str]
"""A user's feature: the state before a call -> one of few values. Its `__name__` is the feature's name."""

LATE_VISIT = 5
"""From this entry on a visit counts as late."""
FINISHING_TOOLS = ("finish", "submit")
"""The tools with which DSPy's agents say that the task is complete."""

_DONE = re.compile(
    r"\b(done|complete[d]?|success(ful(ly)?)?|succeeded|saved|sent|created|submitted|booked|approved)\b", re.IGNORECASE
)
_FAILED = re.compile(r"^\W*(\w+ )?(error|exception|failed|failure|invalid|denied)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RunState:
    """What is known just before a predictor call, on the branch where it happens."""

    node: str
    """The predictor that is about to run."""
    source: str
    """The node that control comes from."""
    visit: int
    """How often this node has been entered, this time included."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """The inputs of the call."""
    tools_called: tuple[str, ...] = ()
    """The names of the tools called so far, in order."""
    last_arguments: Any = None
    """The arguments of the last tool call."""
    last_observation: Any = None
    """What the last tool returned, or the exception that it raised."""
    last_failed: bool = False
    """Whether the last tool raised, or returned what reads like an error."""
    is_repeated: bool = False
    """Whether the last tool call was the same as the one before it, arguments included."""
    completion_seen: bool = False
    """Whether any observation so far said that something was done."""
    predictor_calls: int = 0
    """Predictor calls so far, this one not counted."""
    max_calls: int | None = None
    """The most times that the program will enter this node, where it says so (`max_iters`)."""


def _source(state: RunState) -> str:
    return state.source


def _visit(state: RunState) -> str:
    if state.visit <= 1:
        return "first"
    return "recurring" if state.visit < LATE_VISIT else "late"


def _last_tool(state: RunState) -> str:
    return state.tools_called[-1] if state.tools_called else "none"


def _last_tool_failed(state: RunState) -> str:
    if not state.tools_called:
        return "none"
    return "yes" if state.last_failed else "no"


def _repeated_action(state: RunState) -> str:
    return "yes" if state.is_repeated else "no"


def _budget_used(state: RunState) -> str:
    """Return a third of the iterations where their number is known, else a coarse count of calls."""
    limit = state.max_calls if state.max_calls else 12
    used = (state.visit - 1 if state.max_calls else state.predictor_calls) / limit
    return "low" if used < 1 / 3 else "middle" if used < 2 / 3 else "high"


def _completion_evidence(state: RunState) -> str:
    if any(name in FINISHING_TOOLS for name in state.tools_called):
        return "called"
    return "seen" if state.completion_seen else "none"


BUILT_IN: Mapping[str, FeatureFunction] = {
    "source": _source,
    "visit": _visit,
    "last_tool": _last_tool,
    "last_tool_failed": _last_tool_failed,
    "repeated_action": _repeated_action,
    "budget_used": _budget_used,
    "completion_evidence": _completion_evidence,
}
"""The features that every program has, by name."""


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """The built-in features and a program's own."""

    own: tuple[FeatureFunction, ...] = ()

    def __post_init__(self) -> None:
        names = [feature_name(function) for function in self.own]
        for name in names:
            if name in BUILT_IN or names.count(name) > 1:
                raise ValueError(f"a feature's name must be its own, got {name!r} twice")

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the built-in ones first."""
        return (*BUILT_IN, *(feature_name(function) for function in self.own))

    def evaluate(self, state: RunState) -> dict[str, str]:
        """Return the value of every feature in this state.

        Raises:
            FeatureError: When a user's function raises or returns something else than a string.
        """
        values = {name: function(state) for name, function in BUILT_IN.items()}
        for function in self.own:
            values[feature_name(function)] = _own_value(function, state)
        return values

    def require(self, names: Sequence[str], *, wanted_by: str) -> None:
        """Check that every named feature is computed.

        Raises:
            MissingFeatureError: When one is not: the edit would be silently off.
        """
        missing = sorted(set(names) - set(self.names))
        if missing:
            raise MissingFeatureError(
                f"{wanted_by} tests the feature {', '.join(missing)}, which nothing computes; "
                f"pass its function in features=(...); known are {', '.join(self.names)}"
            )


def feature_name(function: FeatureFunction) -> str:
    """Return the name under which rules refer to a user's feature function.

    Raises:
        TypeError: When it is no named function (a lambda has no name that a saved rule could refer to).
    """
    name = getattr(function, "__name__", "")
    if not callable(function) or not name.isidentifier():
        raise TypeError(f"a feature must be a named function of one RunState, got {function!r}")
    return name


def reads_like_failure(observation: Any) -> bool:
    """Say whether a tool's result is an exception or reads like an error message."""
    if isinstance(observation, BaseException):
        return True
    if isinstance(observation, Mapping):
        return "error" in {str(key).lower() for key in observation}
    return isinstance(observation, str) and (
        _FAILED.search(observation) is not None or observation.lstrip().startswith('{"error"')
    )


def reads_like_completion(observation: Any) -> bool:
    """Say whether a tool's result tells that something was done."""
    return not reads_like_failure(observation) and _DONE.search(str(observation)) is not None


def _own_value(function: FeatureFunction, state: RunState) -> str:
    name = feature_name(function)
    try:
        value = function(state)
    except Exception as error:
        raise FeatureError(f"the feature {name!r} raised {type(error).__name__}: {error}") from error
    if not isinstance(value, str):
        raise FeatureError(f"the feature {name!r} must return a string, got {value!r}")
    return value
