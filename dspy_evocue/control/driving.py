"""Driving a walk: make the calls that it asks for, sync or async, and hand their answers back.

The walk is written once, as a generator; this is all that differs between `forward` and `aforward`.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator
from typing import Any

import dspy

from dspy_evocue.control.parts import Part, predictor_of, signature_of
from dspy_evocue.control.performing import PartCall

Walk = Generator[PartCall, Any, dspy.Prediction]


def drive(walk: Walk) -> dspy.Prediction:
    """Run the walk to its end; what a call raises is raised inside the walk, which may know what it means."""
    try:
        call = next(walk)
        while True:
            try:
                answer = call.part(**call.inputs, **_told(call))
                _refuse_awaitable(answer, call.part)
            except Exception as error:  # noqa: BLE001 - handed to the walk, nothing is swallowed here
                call = walk.throw(error)
            else:
                call = walk.send(answer)
    except StopIteration as stop:
        return stop.value
    finally:
        walk.close()


async def adrive(walk: Walk) -> dspy.Prediction:
    """Do the same as `drive` in an event loop; parts may be async functions."""
    try:
        call = next(walk)
        while True:
            try:
                if isinstance(call.part, dspy.Module):
                    answer = await call.part.acall(**call.inputs, **_told(call))
                else:
                    answer = call.part(**call.inputs)
                    answer = await answer if inspect.isawaitable(answer) else answer
            except Exception as error:  # noqa: BLE001 - handed to the walk, nothing is swallowed here
                call = walk.throw(error)
            else:
                call = walk.send(answer)
    except StopIteration as stop:
        return stop.value
    finally:
        walk.close()


def _told(call: PartCall) -> dict[str, Any]:
    """Return the keyword that tells a predictor something for this one call; its own signature stays untouched."""
    predictor = predictor_of(call.part)
    if predictor is None or not call.instructions:
        return {}
    return {"signature": signature_of(predictor).append_instructions("\n\n".join(call.instructions))}


def _refuse_awaitable(answer: Any, part: Part) -> None:
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(f"an async part needs `await program.acall(...)`, got {part!r} in a sync run")
