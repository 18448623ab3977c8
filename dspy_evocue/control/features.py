"""What routing may test: categorical features of the observable state (EvoCUE, applicability rules).

Pure: knows neither dspy nor a model, and reads nothing that the agent has not seen.
"""

from __future__ import annotations

from collections.abc import Iterable

from dspy_evocue.control.machine import Limits
from dspy_evocue.control.state import ControlState

FEATURES = {
    "phase": ("first", "middle", "late"),
    "draft": ("empty", "pending-valid", "pending-invalid"),
    "progress": ("none", "ok", "failed"),
    "repetition": ("no", "yes"),
    "goals": ("unknown", "missing", "observed"),
    "source": ("the name of the node that control comes from",),
}
"""The built-in features with their values; "outcome", how the last operation ended, comes with every edge."""


def describe_features(more: Iterable[str] = ()) -> str:
    """Return one line a feature with its values, the built-in ones first.

    Args:
        more: The names of a program's own features, which return one word.
    """
    lines = [f"- {name}: {' or '.join(values)}" for name, values in FEATURES.items()]
    return "\n".join([*lines, "- outcome: how the last operation ended", *(f"- {name}: one word" for name in more)])


def observable_features(state: ControlState, limits: Limits) -> dict[str, str]:
    """Return the value of every built-in feature in this state, as seen when control leaves `state.node`.

    "phase" is first until something has been executed, and late from two thirds of the action budget on; "progress"
    is how the last action went; "repetition" is whether the pending action (or, with none pending, the last one) has
    been executed before.
    """
    return {
        "phase": _phase(state, limits),
        "draft": str(state.draft.state),
        "progress": "none" if not state.history else "ok" if state.history[-1].succeeded else "failed",
        "repetition": "yes" if _is_repeated(state) else "no",
        "goals": _goals(state),
        "source": state.node,
    }


def _phase(state: ControlState, limits: Limits) -> str:
    if state.actions == 0:
        return "first"
    return "late" if 3 * state.actions >= 2 * limits.max_actions else "middle"


def _goals(state: ControlState) -> str:
    if state.goals is None:
        return "unknown"
    return "observed" if all(goal.is_observed for goal in state.goals) else "missing"


def _is_repeated(state: ControlState) -> bool:
    executed = [turn.action.strip() for turn in state.history]
    if state.draft.is_pending:
        return state.draft.text.strip() in executed
    return bool(executed) and executed[-1] in executed[:-1]
