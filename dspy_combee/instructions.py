"""Read and replace the instructions of a program's predictors, by the names that `named_predictors()` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dspy


def signatures_of(program: dspy.Module) -> dict[str, Any]:
    """Return the signature of every predictor, by its name."""
    return {name: predictor.signature for name, predictor in program.named_predictors()}


def instructions_of(program: dspy.Module) -> dict[str, str]:
    """Return the instruction of every predictor, by its name."""
    return {name: signature.instructions for name, signature in signatures_of(program).items()}


def with_instructions(program: dspy.Module, candidate: Mapping[str, str]) -> dspy.Module:
    """Return a copy of the program with the given instructions; predictors that are not named keep theirs."""
    made = program.deepcopy()
    for name, predictor in made.named_predictors():
        if name in candidate:
            signature: Any = predictor.signature
            predictor.signature = signature.with_instructions(candidate[name])
    return made
