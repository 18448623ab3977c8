"""How each operation is performed: which part is called with what, and what is made of its answer.

Written once for sync and async runs: an operation is a generator that yields the calls it needs and receives their
results. It never changes the state; it says what came of it (`Performed`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import dspy

from dspy_evocue.control.draft import Draft
from dspy_evocue.control.errors import ControlError
from dspy_evocue.control.machine import Performed, instructions_for
from dspy_evocue.control.operations import ANY_OUTCOME
from dspy_evocue.control.parts import STATE_FIELDS, Part, reads_of
from dspy_evocue.control.state import ControlState, Goal, Turn
from dspy_evocue.control.wiring import Node


@dataclass(frozen=True, slots=True)
class Observation:
    """What a tool returns when its text alone does not say whether the action succeeded."""

    text: str
    succeeded: bool = True


@dataclass(frozen=True, slots=True)
class PartCall:
    """A call that the run needs before it can go on."""

    part: Part
    inputs: Mapping[str, Any]
    instructions: tuple[str, ...] = ()
    """What a predictor is told for this call besides its own instructions."""


Performing = Generator[PartCall, Any, Performed]


def perform(node: Node, state: ControlState, parts: Mapping[str, Part]) -> Performing:
    """Perform the node's operation: yield the calls it needs, return what came of them."""
    performers: dict[str, Callable[..., Performing]] = {
        "draft": _draft,
        "revise": _revise,
        "validate": _validate,
        "discard": _discard,
        "commit": _commit,
        "reflect": _reflect,
        "check_goals": _check_goals,
        "tool": _use_tool,
        "model": _ask_module,
        "code": _run_code,
        "return": _return,
    }
    return performers[node.operation](node, state, parts)


def inputs_for(part: Part, view: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what the part reads, out of what there is.

    Raises:
        ControlError: When it reads something that is not there.
    """
    reads = reads_of(part)
    if reads is None:
        return dict(view)
    if missing := [field_name for field_name in reads if field_name not in view]:
        raise ControlError(f"{name} reads {', '.join(missing)}, which is not there; there is {', '.join(view)}")
    return {field_name: view[field_name] for field_name in reads}


def strip_fence(text: str) -> str:
    """Return the inside of the one fenced block that the text consists of or holds; the text itself otherwise."""
    blocks = re.findall(r"^```[\w+-]*[ \t]*\n(.*?)^```[ \t]*$", text, flags=re.DOTALL | re.MULTILINE)
    return blocks[0].strip("\n") if len(blocks) == 1 else text.strip("\n")


def _call(node: Node, state: ControlState, parts: Mapping[str, Part]) -> PartCall:
    part = parts[node.part]
    return PartCall(part, inputs_for(part, state.view(), node.name), instructions_for(node, state))


def _draft(node: Node, state: ControlState, parts: Mapping[str, Part]) -> Performing:
    prediction = yield _call(node, state, parts)
    draft = yield from _checked(_last_output(prediction), state, parts)
    return Performed("drafted", draft=draft)


def _revise(node: Node, state: ControlState, parts: Mapping[str, Part]) -> Performing:
    prediction = yield _call(node, state, parts)
    text = strip_fence(_last_output(prediction))
    if text.strip() == state.draft.text.strip():
        return Performed("kept")
    draft = yield from _checked(text, state, parts)
    return Performed("revised", draft=draft)


def _checked(text: str, state: ControlState, parts: Mapping[str, Part]) -> Generator[PartCall, Any, Draft]:
    """Return the draft of a newly written text: where the check is plain code, it costs nothing to ask it at once."""
    draft = Draft.pending(strip_fence(text))
    check = parts.get("validate")
    if draft.problem or check is None or isinstance(check, dspy.Module):
        return draft
    view = {**state.view(), "draft": draft.text, "problem": ""}
    problem = yield PartCall(check, inputs_for(check, view, "validate"))
    return Draft.pending(draft.text, problem_text(problem))


def _validate(node: Node, state: ControlState, parts: Mapping[str, Part]) -> Performing:
    answer = yield _call(node, state, parts)
    problem = problem_text(_last_output(answer) if isinstance(answer, dspy.Prediction) else answer)
    draft = Draft.pending(state.draft.text, problem)
    return Performed("invalid" if draft.problem else "valid", draft=draft)


def _discard(node: Node, state: ControlState, parts: Mapping[str, Part]) -> Performing:
    yield from ()
    return Performed("discarded", draft=Draft())


def _commit(node: Node, state: ControlState, parts: Mapping[str, Part]) -> Performing:
    observed = _observation((yield _call(node, state, parts)))
    turn = Turn(state.draft.text, observed.text, observed.succeeded)
    return Performed("ok" if observed.succeeded else "failed", draft=Draft(), turn=turn)


def _reflect(node: Node, state: ControlState, parts: Mapping[str, Part]) -> Performing:
    prediction = yield _call(node, state, parts)
    return Performed("noted", note=_last_output(prediction).strip())


def _check_goals(node: Node, state: ControlState, parts: Mapping[str, Part]) -> Performing:
    prediction = yield _call(node, state, parts)
    goals = tuple(
        Goal(str(requirement), is_observed)
        for name, is_observed in (("observed", True), ("missing", False))
        for requirement in prediction.get(name) or ()
    )
    return Performed("observed" if all(goal.is_observed for goal in goals) else "missing", goals=goals)


def _use_tool(node: Node, state: ControlState, parts: Mapping[str, Part]) -> Performing:
    call = _call(node, state, parts)
    observed = _observation((yield call))
    action = f"{node.name}({', '.join(f'{name}={value!r}' for name, value in call.inputs.items())})"
    return Performed(
        "ok" if observed.succeeded else "failed",
        turn=Turn(action, observed.text, observed.succeeded),
        values={node.name: observed.text},
    )


def _ask_module(node: Node, state: ControlState, parts: Mapping[str, Part]) -> Performing:
    prediction = yield _call(node, state, parts)
    outcome = str(prediction.get("outcome")) if node.outcomes else ANY_OUTCOME
    return Performed(outcome, values=_written(node, prediction.items()))


def _run_code(node: Node, state: ControlState, parts: Mapping[str, Part]) -> Performing:
    said = yield _call(node, state, parts)
    if said is None or isinstance(said, str):
        return Performed(said or ANY_OUTCOME)
    if isinstance(said, Mapping):
        values = _written(node, said.items())
        return Performed(str(values.pop("outcome", ANY_OUTCOME)), values=values)
    raise ControlError(
        f"{node.name} must return its outcome as text, a mapping of values, or None, got {type(said).__name__}"
    )


def _written(node: Node, items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(items)
    if taken := sorted(STATE_FIELDS & set(values)):
        raise ControlError(f"{node.name} must not write {', '.join(taken)}: only operations change these")
    return values


def _return(node: Node, state: ControlState, parts: Mapping[str, Part]) -> Performing:
    yield from ()
    return Performed(ANY_OUTCOME)


def _last_output(prediction: dspy.Prediction) -> str:
    """Return the last output as text: a module that reasons first puts its reasoning before it."""
    values = list(prediction.values())
    return "" if not values or values[-1] is None else str(values[-1])


def problem_text(answer: Any) -> str:
    """Return what is wrong in words; models say "none" where nothing is."""
    text = "" if answer is None else str(answer).strip()
    return "" if text.lower().strip(".()") in ("none", "no", "n/a", "no problem", "empty", "valid", "ok") else text


def _observation(answer: Any) -> Observation:
    return answer if isinstance(answer, Observation) else Observation("" if answer is None else str(answer))
