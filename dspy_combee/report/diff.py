"""The difference between two programs' instructions, as text."""

from __future__ import annotations

import difflib
from typing import Any


def instruction_diff(before: Any, after: Any) -> str:
    """Return a unified diff of the instructions of two programs, predictor by predictor; empty when they are equal."""
    texts = {name: predictor.signature.instructions for name, predictor in before.named_predictors()}
    parts: list[str] = []
    for name, predictor in after.named_predictors():
        old, new = texts.get(name, "").splitlines(), predictor.signature.instructions.splitlines()
        parts.extend(difflib.unified_diff(old, new, f"{name} (before)", f"{name} (after)", lineterm=""))
    return "\n".join(parts)
