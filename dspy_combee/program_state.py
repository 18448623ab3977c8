"""DSPy's own state of a program, out and in, without the models.

A checkpoint must not fail because a model cannot be written, and must not hold its keys.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


def state_of(program: Any) -> dict[str, Any]:
    """Return DSPy's own state of a program without its models: they may hold what cannot be written, or keys."""
    state: dict[str, Any] = {}
    for name, parameter in program.named_parameters():
        bare = copy.copy(parameter)
        bare.lm = None
        state[name] = bare.dump_state()
    return state


def with_state(program: Any, state: Mapping[str, Any]) -> Any:
    """Return a copy of the program in this state, with the models that the program has."""
    restored = program.deepcopy()
    for name, parameter in restored.named_parameters():
        parameter.load_state(state[name])
    for (_, before), (_, after) in zip(program.named_predictors(), restored.named_predictors(), strict=True):
        after.lm = before.lm
    return restored
