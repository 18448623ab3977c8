"""How a skill runs between a predictor's output and the program seeing it: the same machine, on a graph of one edge.

The prediction is the pending draft, shown as JSON. Every operation is a call of its own, with a signature made from the
predictor's; only `revise` changes the prediction.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import dspy
from dspy.utils.exceptions import AdapterParseError

from dspy_evocue.control.compile import compile_skill, exit_name, node_name
from dspy_evocue.control.draft import PENDING, Draft, DraftState
from dspy_evocue.control.faults import find_problems
from dspy_evocue.control.machine import Performed, absorb, choose_edge, follow
from dspy_evocue.control.operations import ANY_OUTCOME, ERROR
from dspy_evocue.control.parts import signature_of
from dspy_evocue.control.performing import problem_text
from dspy_evocue.control.skills import FAILURE, Skill, SkillOperation, returns_to
from dspy_evocue.control.state import ControlState, Goal
from dspy_evocue.control.wiring import Condition, Edge, Node, Wiring
from dspy_evocue.injection import call_arguments
from dspy_evocue.running import current_executions

REVISING_OPERATIONS = ("revise", "validate", "reflect", "check_goals")
"""The operations that make sense where the draft is a prediction: nothing is executed, nothing starts from nothing."""

_SITE = Wiring(
    nodes=(Node("predictor", "draft"), Node("program", "code"), Node("end", "stop")),
    edges=(
        Edge("predictor", "program", Condition(draft=DraftState.PENDING_VALID)),
        Edge("predictor", "end"),
        Edge("program", "end"),
    ),
    start="predictor",
)
"""What a skill on an ordinary program sits on: the way from the predictor to the program."""


def find_revising_problems(operations: tuple[SkillOperation, ...]) -> tuple[str, ...]:
    """Return what is wrong with these operations on a prediction, one sentence each; empty when nothing is."""
    return tuple(map(str, find_problems(_skill(operations), _SITE, REVISING_OPERATIONS)))


@dataclass(frozen=True, slots=True)
class Asked:
    """A model call that the skill needs before it can go on."""

    part: dspy.Predict
    arguments: Mapping[str, Any]


@functools.lru_cache(maxsize=256)
def _compiled(operations: tuple[SkillOperation, ...]) -> Wiring:
    return compile_skill(_SITE, _skill(operations))


def _skill(operations: tuple[SkillOperation, ...]) -> Skill:
    return Skill("skill", "predictor", "program", operations, returns_to("program", PENDING))


def revising_walk(
    operations: tuple[SkillOperation, ...], max_calls: int, predictor: dspy.Predict, call: Any, prediction: Any
) -> Generator[Asked, Any, Any]:
    """Run the skill: yield the calls that it needs, return the prediction as it stands at the end.

    Where the skill ends in failure, or its calls do not suffice, `call.failures` is told.

    Args:
        operations: Sound ones (`find_revising_problems`).
        max_calls: When they are spent, the prediction is returned as it then stands.
        predictor: Whose prediction it is.
        call: The call, as `dspy_evocue.entries.Entry` describes it.
        prediction: What the predictor returned; it is not changed.
    """
    wiring = _compiled(operations)
    signature = signature_of(predictor)
    failed, last_failure = exit_name(_skill(operations), FAILURE), ""
    state = ControlState(node_name(_skill(operations), 1), draft=Draft.pending(_shown(prediction, signature)))
    while wiring.node(state.node).skill:
        node = wiring.node(state.node)
        performed = Performed(ANY_OUTCOME)
        if node.operation != "return":
            if state.model_calls >= max_calls:
                call.failures.append(f"the skill's {max_calls} model calls were spent before {node.operation}")
                return prediction
            part = _part(node, signature, predictor)
            inputs = {**_inputs(call, signature), **_state_inputs(state)}
            executions = [(execution, call, None) for execution in current_executions()]
            try:
                answer = yield Asked(part, call_arguments(part, inputs, executions))
            except AdapterParseError as error:
                performed = Performed(ERROR)
                last_failure = f"the reply to {node.operation} could not be read: {error!s:.200}"
            else:
                last_failure = ""
                performed, prediction = _performed(node, state, prediction, answer, signature)
        state = absorb(node, state, performed, is_model_call=node.operation != "return")
        edge = choose_edge(wiring, state, {}, outcome=performed.outcome)
        if edge.target == failed:
            call.failures.append(last_failure or f"the skill ended in failure after {node.operation}")
        state = follow(wiring, state, edge)
    return prediction


def _part(node: Node, signature: type[dspy.Signature], predictor: dspy.Predict) -> dspy.Predict:
    """Return a predictor for one operation: what the original was shown, what it answered, and what is asked of it."""
    fields: dict[str, Any] = {
        name: (field.annotation, dspy.InputField(desc=_description(field)))
        for name, field in signature.input_fields.items()
    }
    for name, desc in (
        ("draft_answer", "the answer that was written and that nobody has seen yet, as JSON"),
        ("draft_problem", "what is known to be wrong with it; may be empty"),
        ("draft_notes", "notes on it; may be empty"),
        ("draft_goals", "which requirements it satisfies; may be empty"),
    ):
        fields[name] = (str, dspy.InputField(desc=desc))
    fields.update(_output_fields(node.operation, signature))
    asked = f"{_ASKED[node.operation]}\n{node.instruction}".strip()
    instructions = f"An answer was written for this task:\n\n{signature.instructions}\n\n{asked}"
    part = dspy.Predict(cast(Any, dspy.Signature)(fields, instructions))
    part.lm = predictor.lm
    part.config = {name: value for name, value in predictor.config.items() if name != "n"}
    return part


_ASKED = {
    "revise": "Return its fields corrected, or exactly as they are.",
    "validate": "Say what is wrong with it; leave the problem empty when nothing is.",
    "reflect": "Write one short note that will help to correct it.",
    "check_goals": "List what the task requires of it: which requirements it satisfies, and which it misses.",
}


def _output_fields(operation: str, signature: type[dspy.Signature]) -> dict[str, Any]:
    if operation == "revise":
        return {
            name: (field.annotation, dspy.OutputField(desc=_description(field)))
            for name, field in signature.output_fields.items()
        }
    if operation == "check_goals":
        return {name: (list[str], dspy.OutputField()) for name in ("observed", "missing")}
    return {"problem_found" if operation == "validate" else "note": (str, dspy.OutputField())}


def _description(field: Any) -> str:
    return str((field.json_schema_extra or {}).get("desc", ""))


def _performed(
    node: Node, state: ControlState, prediction: Any, answer: Any, signature: type[dspy.Signature]
) -> tuple[Performed, Any]:
    """Return what came of an operation, and the prediction after it."""
    if node.operation == "validate":
        problem = problem_text(answer.problem_found)
        draft = Draft.pending(state.draft.text, problem)
        return Performed("invalid" if problem else "valid", draft=draft), prediction
    if node.operation == "reflect":
        return Performed("noted", note=str(answer.note or "").strip()), prediction
    if node.operation == "check_goals":
        goals = tuple(
            Goal(str(text), is_observed)
            for texts, is_observed in ((answer.observed, True), (answer.missing, False))
            for text in texts or ()
        )
        return Performed("observed" if all(goal.is_observed for goal in goals) else "missing", goals=goals), prediction
    text = _shown(answer, signature)
    if text == _shown(prediction, signature):
        return Performed("kept"), prediction
    return Performed("revised", draft=Draft.pending(text)), _revised(prediction, answer, signature)


def _revised(prediction: Any, answer: Any, signature: type[dspy.Signature]) -> Any:
    """Return the prediction with the answer's fields, and whatever else it had."""
    fields = {name: answer[name] for name in signature.output_fields}
    revised = dspy.Prediction(**{**dict(prediction.items()), **fields})
    usage = prediction.get_lm_usage()
    if usage is not None:
        revised.set_lm_usage(usage)
    return revised


def _inputs(call: Any, signature: type[dspy.Signature]) -> dict[str, Any]:
    return {name: value for name, value in call.inputs.items() if name in signature.input_fields}


def _state_inputs(state: ControlState) -> dict[str, str]:
    return {
        "draft_answer": state.draft.text,
        "draft_problem": state.draft.problem,
        "draft_notes": "\n".join(f"- {note}" for note in state.notes),
        "draft_goals": state.render_goals(),
    }


def _shown(prediction: Any, signature: type[dspy.Signature]) -> str:
    fields = {name: prediction.get(name) for name in signature.output_fields}
    return json.dumps(fields, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else str(value)
