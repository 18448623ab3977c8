"""One run of a program as text for a reflection call: what went in, each predictor call, what came out.

An agent's calls repeat what was said before with every step; what a call repeats is named and not sent again. Text
above the limit is cut in the middle, visibly. Whether the judgement is shown is the caller's decision: it is a text
of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspy_combee.learners.base import Trajectory
from dspy_combee.records import render_record, render_value
from dspy_combee.truncation import cut_middle

DEFAULT_RUN_CHARS = 20_000
REPEAT_CHARS = 120
"""Shorter repeats are shown again: naming them would not be shorter."""


def render_run(
    trajectory: Trajectory, component_names: Mapping[object, str], *, max_chars: int | None = DEFAULT_RUN_CHARS
) -> str:
    """Return what the program was given and did, without a word on whether it was right.

    Args:
        trajectory: The run.
        component_names: The name of each predictor, see `names_of_components`.
        max_chars: The longest text wanted; None for no limit.
    """
    record: dict[str, Any] = {}
    shown: dict[str, str] = {}
    inputs = _fields(trajectory.example, "inputs")
    if not trajectory.trace:
        record.update((f"input {name}", value) for name, value in inputs.items())
    for number, (predictor, given, made) in enumerate(trajectory.trace, start=1):
        name = component_name(predictor, component_names)
        for field, value in dict(given).items():
            record[f"step {number}, {name}, input {field}"] = _without_repeats(f"{name}.{field}", value, shown)
        for field, value in _fields(made).items():
            record[f"step {number}, {name}, output {field}"] = render_value(value)
    if trajectory.prediction is not None:
        for field, value in _fields(trajectory.prediction).items():
            record[f"final {field}"] = _without_repeats(f"final.{field}", value, shown)
    if trajectory.error is not None:
        record["error"] = trajectory.error
    return render_record(trajectory.record_id, record, max_chars=max_chars)


def render_judgement(trajectory: Trajectory, *, max_chars: int = 6_000) -> str:
    """Return what is known about how good the run was: feedback, expected output, score."""
    lines = [f"feedback: {cut_middle(trajectory.feedback, max_chars)}"] if trajectory.feedback.strip() else []
    expected = {name: render_value(value) for name, value in _fields(trajectory.example, "labels").items()}
    lines.extend(f"expected {name}: {cut_middle(text, max_chars)}" for name, text in expected.items() if text)
    if trajectory.score is not None:
        lines.append(f"score: {trajectory.score:g}")
    return "\n".join(lines) or "nothing is known"


def render_case(trajectory: Trajectory, *, max_chars: int) -> str:
    """Return the values that the program was given and that it answered, in one line."""
    values = (*_fields(trajectory.example, "inputs").values(), *_fields(trajectory.prediction).values())
    return cut_middle(" ".join(map(render_value, values)), max_chars)


def names_of_components(program: Any) -> dict[object, str]:
    """Return the name of each predictor by the `id()` of the object in a trace, and by its `stage`.

    DSPy gives a predictor its stage when it is made, and copies of a program keep it: so traces that were recorded with
    another copy of the program are told apart too.
    """
    named = program.named_predictors()
    return {**{predictor.stage: name for name, predictor in named}, **{id(p): name for name, p in named}}


def component_name(predictor: Any, component_names: Mapping[object, str]) -> str:
    """Return the name of the predictor in a trace entry; recorded traces hold the name itself."""
    if isinstance(predictor, str):
        return predictor
    return component_names.get(id(predictor)) or component_names.get(getattr(predictor, "stage", None), "")


def components_that_ran(trajectory: Trajectory, component_names: Mapping[object, str]) -> tuple[str, ...]:
    """Return the predictors of the trace by name, each once, in call order."""
    names = (component_name(predictor, component_names) for predictor, _, _ in trajectory.trace)
    return tuple(dict.fromkeys(name for name in names if name))


def _fields(holder: Any, part: str = "") -> dict[str, Any]:
    """Return the fields of an example, prediction or mapping; of an example only its inputs or labels when asked."""
    if part and hasattr(holder, part):
        holder = getattr(holder, part)()
    elif part == "labels":
        return {}
    if isinstance(holder, Mapping):
        return dict(holder)
    if hasattr(holder, "items"):
        return dict(holder.items())
    return {} if holder is None else {"value": holder}


def _without_repeats(key: str, value: Any, shown: dict[str, str]) -> str:
    """Return the value with the beginning that an earlier call had already shown replaced by a remark."""
    text = render_value(value)
    before = shown.get(key, "")
    shown[key] = text
    if len(before) < REPEAT_CHARS or not text.startswith(before):
        return text
    return f"[the {len(before):,} characters shown for the step before] {text[len(before) :].lstrip()}".rstrip()
