"""Ask again and mean it: a repeated call is a new sample and not the cached reply of the first."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import dspy

DEFAULT_TEMPERATURE = 0.7
"""What a repeat is sampled at where the model has no temperature of its own, or zero."""


def fresh_sample(number: int) -> AbstractContextManager[object]:
    """Return a context in which repeat `number` of a call is a sample of its own; 0 is the first call, as it is."""
    lm = dspy.settings.lm
    if number == 0 or not isinstance(lm, dspy.BaseLM):
        return nullcontext()
    temperature = lm.kwargs.get("temperature") or DEFAULT_TEMPERATURE
    return dspy.context(lm=lm.copy(rollout_id=number, temperature=temperature))
