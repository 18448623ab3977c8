"""The controller's graph: a frozen, validated value with its library of skills (EvoCUE, the controller).

A change gives a new graph; a removed skill or instruction gives back a graph equal to the one before it. Pure: knows
neither dspy nor a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from dspy_evocue.control.compile import compile_skill, matching_edges
from dspy_evocue.control.errors import GraphError, SkillError
from dspy_evocue.control.faults import describe_fault, find_problems
from dspy_evocue.control.operations import OPERATIONS, PLAIN_OPERATIONS
from dspy_evocue.control.reach import Reach, explore
from dspy_evocue.control.skills import Skill
from dspy_evocue.control.wiring import Edge, Node, Scope, Wiring

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ControlGraph:
    """Nodes, edges and skills of a controller, sound by construction.

    Raises:
        GraphError: When a node or edge is wrong, or a run could reach an operation with a draft that it refuses, or
            a node that no edge leaves.
        SkillError: When a skill of the library is refused by the checker.

    Example:
        ```python
        ControlGraph(
            nodes=(Node("write", "draft"), Node("run", "commit"), Node("stop", "stop")),
            edges=(Edge("write", "run", Condition(draft=DraftState.PENDING_VALID)), Edge("write", "write"),
                   Edge("run", "stop")),
            start="write",
        )
        ```
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    start: str
    operations: tuple[str, ...] = tuple(OPERATIONS)
    """The primitive operations that the program has parts for, and that skills may therefore use."""
    skills: tuple[Skill, ...] = ()
    """The library, oldest first: at one edge the latest skill whose start condition holds is entered."""
    wiring: Wiring = field(init=False, repr=False, compare=False)
    """The program's own nodes and edges together with those that the skills were compiled into."""
    reach: Reach = field(init=False, repr=False, compare=False)
    """Which draft states reach which node of the wiring."""

    def __post_init__(self) -> None:
        for name in ("nodes", "edges", "operations", "skills"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        own = Wiring(self.nodes, self.edges, self.start)
        problems = [*_node_problems(own), *_edge_problems(own)]
        if unknown := [name for name in self.operations if name not in OPERATIONS]:
            problems.append(f"operations must be of {', '.join(OPERATIONS)}, got {', '.join(unknown)}")
        if not problems:
            problems = [describe_fault(fault, own) for fault in explore(own).problems]
        if problems:
            raise GraphError("; ".join(problems))
        wiring = own
        for skill in self.skills:
            if refused := find_problems(skill, wiring, self.operations):
                raise SkillError(f"skill {skill.skill_id!r} is refused: {' '.join(map(str, refused))}")
            wiring = compile_skill(wiring, skill)
        object.__setattr__(self, "wiring", wiring)
        object.__setattr__(self, "reach", explore(wiring))

    def with_skill(self, skill: Skill) -> ControlGraph:
        """Return the graph with this skill added to its library.

        Raises:
            SkillError: When the checker refuses it; the message holds every problem, one sentence each.
        """
        return replace(self, skills=(*self.skills, skill))

    def without_skill(self, skill_id: str) -> ControlGraph:
        """Return the graph without this skill, equal to one that never had it.

        Raises:
            ValueError: When the library has no such skill.
        """
        known = [skill.skill_id for skill in self.skills]
        if skill_id not in known:
            raise ValueError(f"skill_id must be one of {', '.join(known) or 'none'}, got {skill_id!r}")
        return replace(self, skills=tuple(skill for skill in self.skills if skill.skill_id != skill_id))

    def with_instruction(self, source: str, target: str, text: str, *, scope: Scope = "call") -> ControlGraph:
        """Return the graph whose edges from `source` to `target` carry this text, in place of what they carried.

        Args:
            source: A node, "START" (the start node), "recurring" (any other node) or "*".
            target: The node that is told, when it is entered that way.
            text: What it is told; empty to take the text away, which restores the edge.
            scope: How long it acts.

        Raises:
            ValueError: When no edge matches.
        """
        matched = matching_edges(self._own, source, target)
        if not matched:
            raise ValueError(f"no edge {source} -> {target}; the edges are {_edge_names(self.edges)}")
        kept_scope: Scope = scope if text else "call"
        return replace(
            self,
            edges=tuple(
                replace(edge, instruction=text, scope=kept_scope) if edge in matched else edge for edge in self.edges
            ),
        )

    @property
    def _own(self) -> Wiring:
        return Wiring(self.nodes, self.edges, self.start)

    def describe(self) -> str:
        """Say in words which nodes there are, and in which draft states each edge can be taken: one line each.

        Edges from the start node are named as edits name them, from "START".
        """
        nodes = [f"- {node.name} ({node.operation}): {node.row.summary}" for node in self.nodes]
        names = dict.fromkeys((edge.source, edge.target) for edge in self.edges)
        sites = [line for name in names for line in self.describe_site(*name).split("\n")]
        first = f"{self.start} -> "
        edges = [f"START -> {line.removeprefix(first)}" if line.startswith(first) else line for line in sites]
        return "\n".join(["Nodes:", *nodes, "Edges:", *(f"- {edge}" for edge in edges)])

    def describe_site(self, source: str, target: str) -> str:
        """Say in one sentence an edge which entries a skill there would catch, and with which draft states."""
        matched = matching_edges(self._own, source, target)
        if not matched:
            return f"No edge {source} -> {target}; the edges are {_edge_names(self.edges)}."
        return "\n".join(
            f"{edge.name} is entered with the draft {' or '.join(map(str, self.reach.drafts_on(edge))) or 'never'}"
            + (f" when {edge.when}." if str(edge.when) else ".")
            for edge in matched
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as plain JSON values; `from_dict` reads them back to an equal graph."""
        return {
            "format": _FORMAT,
            "start": self.start,
            "operations": list(self.operations),
            "nodes": [node.to_dict() for node in self.nodes],
            "edges": [edge.to_dict() for edge in self.edges],
            "skills": [skill.to_dict() for skill in self.skills],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ControlGraph:
        """Read what `to_dict` wrote, and validate it.

        Raises:
            GraphError: When the values are not those of a graph, or the graph is not sound.
        """
        if values.get("format") != _FORMAT:
            raise GraphError(f"a saved graph must have format {_FORMAT}, got {values.get('format')!r}")
        try:
            return cls(
                nodes=tuple(Node.from_dict(node) for node in values["nodes"]),
                edges=tuple(Edge.from_dict(edge) for edge in values["edges"]),
                start=values["start"],
                operations=tuple(values["operations"]),
                skills=tuple(Skill.from_dict(skill) for skill in values["skills"]),
            )
        except (KeyError, TypeError) as error:
            raise GraphError(f"a saved graph lacks a part or has one of the wrong form: {error!r}") from error


def _edge_names(edges: Sequence[Edge]) -> str:
    return ", ".join(dict.fromkeys(edge.name for edge in edges))


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _node_problems(wiring: Wiring) -> list[str]:
    names = [node.name for node in wiring.nodes]
    problems = [f"node names must differ, got {name!r} twice" for name in _repeated(names)]
    if wiring.start not in names:
        problems.append(f"start must be one of {', '.join(names)}, got {wiring.start!r}")
    if not any(node.operation == "stop" for node in wiring.nodes):
        problems.append("a graph must have a node with the operation 'stop', got none")
    known = [*OPERATIONS, *(name for name in PLAIN_OPERATIONS if name != "return")]
    problems += [
        f"the operation of node {node.name!r} must be one of {', '.join(known)}, got {node.operation!r}"
        for node in wiring.nodes
        if node.operation not in known
    ]
    problems += [
        f"node {node.name!r}: only plain code and model nodes have outcomes of their own, got {node.outcomes}"
        for node in wiring.nodes
        if node.outcomes and node.operation not in ("code", "model")
    ]
    return problems


def _edge_problems(wiring: Wiring) -> list[str]:
    names = {node.name: node for node in wiring.nodes}
    problems = [
        f"edges must differ, got {name} twice with one condition"
        for name in _repeated(f"{edge.name} ({edge.when})" for edge in wiring.edges)
    ]
    ended: set[str] = set()
    for edge in wiring.edges:
        missing = [name for name in (edge.source, edge.target) if name not in names]
        if missing:
            problems.append(f"edge {edge.name} names a node that does not exist: {', '.join(missing)}")
            continue
        source = names[edge.source]
        outcomes = source.row.outcomes if source.is_known else ()
        if source.operation == "stop":
            problems.append(f"no edge may leave a stop node, got {edge.name}")
        if edge.when.outcome is not None and edge.when.outcome not in outcomes:
            problems.append(
                f"edge {edge.name} waits for {edge.when.outcome!r}, but {edge.source} ends in {', '.join(outcomes)}"
            )
        if edge.source in ended:
            problems.append(f"edge {edge.name} stands after an edge of {edge.source} that is always taken")
        if edge.scope not in get_args(Scope):
            problems.append(f"the scope of edge {edge.name} must be {', '.join(get_args(Scope))}, got {edge.scope!r}")
        if edge.when.is_unconditional:
            ended.add(edge.source)
    return problems
