"""A DSPy program whose control flow is data: a graph that runs, is saved, drawn, changed and optimised."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from dspy_evocue.control.driving import Walk, adrive, drive
from dspy_evocue.control.edited_walk import EditedWalk
from dspy_evocue.control.errors import RoutingError
from dspy_evocue.control.features import FEATURES, describe_features, observable_features
from dspy_evocue.control.graph import ControlGraph
from dspy_evocue.control.graph_skill_edit import GraphSkillEdit, require_sound, with_edits
from dspy_evocue.control.machine import (
    Limits,
    Performed,
    absorb,
    begin,
    follow,
    require_draft,
    spent_limit,
)
from dspy_evocue.control.mermaid import draw_graph
from dspy_evocue.control.operations import ERROR
from dspy_evocue.control.parts import (
    STATE_FIELDS,
    Part,
    PlainParts,
    available_operations,
    predictor_of,
    require_parts,
)
from dspy_evocue.control.performing import PartCall, inputs_for, perform
from dspy_evocue.control.saving import GraphParameter
from dspy_evocue.control.skills import Skill
from dspy_evocue.control.state import ControlState
from dspy_evocue.control.wiring import Node, Scope
from dspy_evocue.edits import Edit
from dspy_evocue.instrument import state_of
from dspy_evocue.observer import acting


class ControlProgram(dspy.Module):
    """An explicit controller: a graph of operations on one draft, run within budgets.

    Args:
        graph: Nodes, edges and skills.
        parts: What performs them, by name: one part for each primitive operation in use ("draft", "commit", ...) and
            one for each plain node, under the node's name. A DSPy module becomes an attribute of the program, so that
            `named_predictors()` and every optimizer find it. A function is called with the parts of the state that its
            parameters name: `history`, `observation`, `notes`, `goals`, `draft`, `problem`, the program's inputs, and
            what plain nodes wrote before. It should hold no state of a run; copies of the program share it.
        inputs: The names of the program's inputs.
        features: More features for rules to test, by name: functions of the same kind that return one word.
        limits: What one run may spend.
        on_end: A function of the same kind that is called when a run is over, however it ended.

    Raises:
        ValueError: When parts and graph do not fit.
        TypeError: When a part is of the wrong kind.

    Example:
        ```python
        program = ControlProgram(
            ControlGraph(
                nodes=(Node("write", "draft"), Node("run", "commit"), Node("stop", "stop")),
                edges=(Edge("write", "run", Condition(draft=DraftState.PENDING_VALID)), Edge("write", "write"),
                       Edge("run", "stop")),
                start="write",
            ),
            parts={"draft": dspy.Predict("task -> action"), "commit": lambda draft: database.query(draft)},
        )
        program(task="...").history
        ```
    """

    def __init__(
        self,
        graph: ControlGraph,
        parts: Mapping[str, Part],
        *,
        inputs: tuple[str, ...] = ("task",),
        features: Mapping[str, Callable[..., str]] | None = None,
        limits: Limits | None = None,
        on_end: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__()
        graph = replace(graph, operations=tuple(o for o in graph.operations if o in available_operations({*parts})))
        require_parts(graph, parts)
        if shadowed := sorted(set(inputs) & STATE_FIELDS):
            raise ValueError(f"inputs must not have the names of the state's own parts, got {', '.join(shadowed)}")
        if taken := sorted(set(features or {}) & {*FEATURES, "outcome"}):
            raise ValueError(f"features must not have the names of built-in ones, got {', '.join(taken)}")
        self.inputs = tuple(inputs)
        self.limits = limits or Limits()
        for name, part in parts.items():
            if isinstance(part, dspy.Module):
                if hasattr(self, name):
                    raise ValueError(f"a part must not have the name of an attribute of the program, got {name!r}")
                setattr(self, name, part)
        self.plain = PlainParts(
            functions={name: part for name, part in parts.items() if not isinstance(part, dspy.Module)},
            features=dict(features or {}),
            on_end=on_end,
        )
        self._module_names = tuple(name for name, part in parts.items() if isinstance(part, dspy.Module))
        self.control = GraphParameter(
            graph,
            features=(*FEATURES, "outcome", *self.plain.features),
            tellable=tuple(name for name, part in parts.items() if predictor_of(part) is not None),
        )

    @classmethod
    def code_agent(cls, open_world: Callable[..., Any], **options: Any) -> ControlProgram:
        """Return the six-node controller for agents that write code; see `code_agent.build_code_agent`."""
        from dspy_evocue.control.code_agent import build_code_agent

        return build_code_agent(open_world, program_class=cls, **options)

    @property
    def graph(self) -> ControlGraph:
        """The graph with its skills, those of the edits that the program carries last: a frozen value."""
        return with_edits(self.control.graph, self._edits_on_edges)

    def with_graph(self, graph: ControlGraph) -> ControlProgram:
        """Return a copy of the program that runs this graph; the program itself is not changed.

        The edits that the program carries stay edits, whether their skills are in `graph` or not.

        Raises:
            ValueError: When the graph needs parts or features that the program does not have.
        """
        edits = self._edits_on_edges
        own = replace(graph, skills=tuple(one for one in graph.skills if one.skill_id not in _names(edits)))
        require_parts(own, self._parts())
        require_edits(self, edits, graph=own)
        changed = self.deepcopy()
        changed.control = self.control.with_graph(own)
        return changed

    def with_skill(self, skill: Skill) -> ControlProgram:
        """Return a copy with this skill in its library; raises `SkillError` with the reasons when it is not sound."""
        return self.with_graph(self.graph.with_skill(skill))

    def without_skill(self, skill_id: str) -> ControlProgram:
        """Return a copy without this skill; its graph equals one that never had it.

        Raises:
            ValueError: When there is none, or it is an edit's, which `program.evocue.without(edit_id)` takes off.
        """
        if skill_id in _names(self._edits_on_edges):
            raise ValueError(f"skill_id must not be an edit's (program.evocue.without takes it off), got {skill_id!r}")
        return self.with_graph(self.graph.without_skill(skill_id))

    def with_instruction(self, source: str, target: str, text: str, *, scope: Scope = "call") -> ControlProgram:
        """Return a copy whose edges from `source` to `target` carry this text; the empty text takes it away."""
        return self.with_graph(self.graph.with_instruction(source, target, text, scope=scope))

    def describe(self) -> str:
        """Say in words which nodes and edges the graph has, with the draft states on them, and what rules can test."""
        features = describe_features(self.plain.features)
        return f"{self.graph.describe()}\nFeatures that a start condition can test:\n{features}"

    def mermaid(self, counts: Mapping[str, int] | None = None) -> str:
        """Return the graph as Mermaid text, with how often each edge was taken where `counts` says so."""
        return draw_graph(self.graph, counts)

    def load_state(self, state: dict[str, Any], *, allow_unsafe_lm_state: bool = False) -> None:
        """Load what `dump_state` gave; see `saving.GraphParameter.load_state` for the graphs that are refused."""
        # A copy that EvoCUE made shares what is no module with its original, which must not change.
        self.control = copy.copy(self.control)
        super().load_state(state, allow_unsafe_lm_state=allow_unsafe_lm_state)

    def forward(self, **inputs: Any) -> dspy.Prediction:
        """Run the controller from its start until it stops or a limit is reached.

        Returns:
            What the stop node's part returned (or what plain nodes wrote, when it has none), and always `stop_reason`
            ("finished", "max_steps", "max_actions" or "max_model_calls"), `steps`, `actions`, `model_calls`, `history`
            (text) and `path` (the edges taken, in order).
        """
        return drive(self._walk(inputs))

    async def aforward(self, **inputs: Any) -> dspy.Prediction:
        """Do the same as `forward`; parts may be async functions."""
        return await adrive(self._walk(inputs))

    def _walk(self, inputs: Mapping[str, Any]) -> Walk:
        """Run the graph: yield every call with its instructions, receive its answer, return the prediction."""
        if set(inputs) != set(self.inputs):
            raise ValueError(f"the inputs must be {', '.join(self.inputs)}, got {', '.join(inputs) or 'none'}")
        walk, parts = EditedWalk(self, self.control.graph, self._edits_on_edges), self._parts()
        state = begin(walk.wiring, inputs)
        try:
            while True:
                node = walk.wiring.node(state.node)
                is_model_call = isinstance(parts.get(node.part), dspy.Module)
                spent = spent_limit(node, state, self.limits, is_model_call=is_model_call)
                if spent or node.operation == "stop":
                    walk.end(spent, node)
                    return (yield from self._finish(state, spent or "finished"))
                require_draft(node, state)
                performed, unreadable = yield from _performed(node, state, parts)
                state = absorb(node, state, performed, is_model_call=is_model_call)
                try:
                    features = functools.partial(self._features, state, performed.outcome)
                    edge = walk.choose(state, features, performed.outcome)
                except RoutingError:
                    if unreadable is not None:
                        raise unreadable from None
                    raise
                state = follow(walk.wiring, state, edge)
        finally:
            walk.end()
            if self.plain.on_end is not None:
                self.plain.on_end(**_present_inputs(self.plain.on_end, state))

    def _finish(self, state: ControlState, stop_reason: str) -> Walk:
        stops = [node.name for node in self.graph.nodes if node.operation == "stop"]
        part = self.plain.functions.get(state.node if state.node in stops else stops[0])
        if part is None:
            outputs = {name: value for name, value in state.values.items() if name not in self.inputs}
        else:
            outputs = yield PartCall(part, inputs_for(part, state.view(), "stop"))
        account = {
            "stop_reason": stop_reason,
            "steps": state.steps,
            "actions": state.actions,
            "model_calls": state.model_calls,
            "history": state.render_history(),
            "path": list(state.path),
        }
        return dspy.Prediction(**{**account, **outputs})

    def _features(self, state: ControlState, outcome: str) -> dict[str, str]:
        view = state.view()
        own = {name: str(read(**inputs_for(read, view, name))) for name, read in self.plain.features.items()}
        return {**observable_features(state, self.limits), "outcome": outcome, **own}

    @property
    def _edits_on_edges(self) -> tuple[GraphSkillEdit, ...]:
        carried = state_of(self)
        return () if carried is None else tuple(one for one in carried.edits if isinstance(one, GraphSkillEdit))

    def _parts(self) -> dict[str, Part]:
        return {**{name: getattr(self, name) for name in self._module_names}, **self.plain.functions}


def require_edits(program: Any, edits: Sequence[Edit], *, graph: ControlGraph | None = None) -> None:
    """Refuse skills of edits that the program's graph cannot take together.

    Args:
        program: What is to carry them.
        edits: All edits on edges that it would carry, in their order.
        graph: The graph without them; None for the program's own.

    Raises:
        TypeError: When the program has no graph.
        GraphError: When a start condition or an instruction asks for what the program does not have.
        SkillError: When the checker refuses a skill.
    """
    if not isinstance(program, ControlProgram):
        raise TypeError(f"a skill on an edge must be attached to a ControlProgram itself, got {type(program).__name__}")
    on_edges = [edit for edit in edits if isinstance(edit, GraphSkillEdit)]
    program.control.with_graph(require_sound(on_edges, graph or program.control.graph))


def _names(edits: Sequence[GraphSkillEdit]) -> set[str]:
    return {skill.skill_id for edit in edits for skill in edit.skills}


def _performed(
    node: Node, state: ControlState, parts: Mapping[str, Part]
) -> Generator[PartCall, Any, tuple[Performed, AdapterParseError | None]]:
    """Perform the node's operation; a reply that cannot be read is an outcome, any other fault goes through."""
    try:
        if not node.row.is_action:
            return (yield from perform(node, state, parts)), None
        with acting(node.name, {"draft": state.draft.text}) as observed:
            performed = yield from perform(node, state, parts)
            observed.append("" if performed.turn is None else performed.turn.observation)
            return performed, None
    except AdapterParseError as error:
        if ERROR not in node.row.outcomes:
            raise
        # The note also makes the next prompt differ, which a cached unreadable reply would otherwise answer again.
        return Performed(ERROR, note=f"The reply at {node.name} could not be read; keep to the format."), error


def _present_inputs(function: Callable[..., Any], state: ControlState) -> dict[str, Any]:
    """Return what the function reads, None for what a run that broke off early never wrote."""
    view = state.view()
    return {name: view.get(name) for name in inspect.signature(function).parameters}
