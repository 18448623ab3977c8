"""How control moves: enter a node, take in what its operation gave, choose the next edge, follow it.

Every step is `(wiring, state, ...) -> state`; who performs an operation is not decided here, and neither is where the
features come from. Pure: knows neither dspy nor a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from dspy_evocue.control.draft import Draft
from dspy_evocue.control.errors import DraftStateError, RoutingError
from dspy_evocue.control.state import ActiveInstruction, ControlState, Goal, Turn
from dspy_evocue.control.wiring import Edge, Node, Wiring


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may spend; an operation that would go beyond is not started, and the run stops."""

    max_steps: int = 200
    """Operations of any kind, those of skills included; entering and leaving a skill is free."""
    max_actions: int = 40
    """Actions on the world."""
    max_model_calls: int | None = None
    """Operations performed by a model; None for no limit of its own."""

    def __post_init__(self) -> None:
        for name in ("max_steps", "max_actions", "max_model_calls"):
            value = getattr(self, name)
            if value is None and name == "max_model_calls":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")


@dataclass(frozen=True, slots=True)
class Performed:
    """What an operation gave."""

    outcome: str
    draft: Draft | None = None
    """The new draft; None when the operation leaves it as it was."""
    turn: Turn | None = None
    note: str = ""
    goals: tuple[Goal, ...] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    """What a plain node writes for later nodes to read."""


def begin(wiring: Wiring, values: Mapping[str, Any]) -> ControlState:
    """Return the state before the first node, with an empty draft."""
    return ControlState(node=wiring.start, values=MappingProxyType(dict(values)))


def require_draft(node: Node, state: ControlState) -> None:
    """Refuse to start the node's operation with a draft that it does not accept.

    Raises:
        DraftStateError: When it does not.
    """
    if state.draft.state not in node.row.requires:
        needs = " or ".join(map(str, node.row.requires))
        raise DraftStateError(
            f"{node.name} ({node.row.name}) needs the draft to be {needs}, got {state.draft.state} from {state.source}"
        )


def spent_limit(node: Node, state: ControlState, limits: Limits, *, is_model_call: bool) -> str | None:
    """Return the name of the limit that performing this node would go beyond, or None."""
    if node.operation in ("stop", "return"):
        return None
    if state.steps >= limits.max_steps:
        return "max_steps"
    if node.row.is_action and state.actions >= limits.max_actions:
        return "max_actions"
    if is_model_call and limits.max_model_calls is not None and state.model_calls >= limits.max_model_calls:
        return "max_model_calls"
    return None


def absorb(node: Node, state: ControlState, performed: Performed, *, is_model_call: bool) -> ControlState:
    """Return the state after the node's operation.

    Raises:
        RoutingError: When the operation ended in a way that its row of the table does not declare.
    """
    draft = state.draft if performed.draft is None else performed.draft
    if (performed.outcome, draft.state) not in node.row.ends(state.draft.state):
        raise RoutingError(
            f"{node.name} must end in {', '.join(node.row.outcomes)} with a draft that the table allows, "
            f"got {performed.outcome!r} with the draft {draft.state}"
        )
    is_free = node.operation in ("stop", "return")
    return replace(
        state,
        values=MappingProxyType({**state.values, **performed.values}),
        draft=draft,
        history=state.history if performed.turn is None else (*state.history, performed.turn),
        notes=(*state.notes, performed.note) if performed.note else state.notes,
        goals=state.goals if performed.goals is None else performed.goals,
        outcome=state.outcome if is_free else performed.outcome,
        active=_still_active(node, state.active),
        steps=state.steps + (not is_free),
        actions=state.actions + node.row.is_action,
        model_calls=state.model_calls + is_model_call,
    )


def choose_edge(wiring: Wiring, state: ControlState, features: Mapping[str, str], *, outcome: str) -> Edge:
    """Return the first edge of the current node whose condition holds.

    Raises:
        RoutingError: When none does.
    """
    for edge in wiring.edges_from(state.node):
        if edge.when.holds(outcome, state.draft.state, features):
            return edge
    raise RoutingError(f"no edge leaves {state.node} after {outcome!r} with the draft {state.draft.state}")


def follow(wiring: Wiring, state: ControlState, edge: Edge) -> ControlState:
    """Return the state at the edge's target, with the edge's instruction added to those that act."""
    target = wiring.node(edge.target)
    active = tuple(one for one in state.active if _outlives(one, target))
    if edge.instruction:
        active = (*active, ActiveInstruction(edge.instruction, edge.scope, edge.addressee or edge.target))
    return replace(
        state, node=edge.target, source=state.node, active=active, path=(*state.path, f"{edge.source} -> {edge.target}")
    )


def instructions_for(node: Node, state: ControlState) -> tuple[str, ...]:
    """Return what the model is told at this node besides its own instructions, each text once, oldest first."""
    acting = [one.text for one in state.active if _acts_at(one, node)]
    return tuple(dict.fromkeys([*acting, *([node.instruction] if node.instruction else [])]))


def _acts_at(one: ActiveInstruction, node: Node) -> bool:
    if one.scope == "call":
        return node.name == one.addressee
    return one.scope == "next_action" or bool(node.skill)


def _outlives(one: ActiveInstruction, target: Node) -> bool:
    """Say whether the text still waits to act once control reaches `target`."""
    if one.scope == "call":
        return bool(target.skill) or target.name == one.addressee
    return one.scope == "next_action" or bool(target.skill)


def _still_active(node: Node, active: tuple[ActiveInstruction, ...]) -> tuple[ActiveInstruction, ...]:
    """Return the texts that go on acting after the node's operation."""

    def is_over(one: ActiveInstruction) -> bool:
        if one.scope == "call":
            return one.addressee == node.name
        return one.scope == "next_action" and node.row.is_action

    return tuple(one for one in active if not is_over(one))
