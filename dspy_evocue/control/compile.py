"""How a skill becomes nodes and edges of the graph: an entry, one node an operation, and explicit returns.

Pure: knows neither dspy nor a model. The skill must have the right form (`check.find_form_problems`); whether its
operations fit the draft states that reach them is found on what this file makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dspy_evocue.control.operations import ERROR, OPERATIONS
from dspy_evocue.control.skills import FAILURE, SUCCESS, Skill, SkillOperation
from dspy_evocue.control.wiring import Condition, Edge, Node, Wiring


def node_name(skill: Skill, number: int) -> str:
    """Return the name of the node of the operation with this number (the first is 1)."""
    return f"{skill.skill_id}.{number}:{skill.operations[number - 1].operation}"


def exit_name(skill: Skill, status: str) -> str:
    """Return the name of the node in which the skill ends in success or failure."""
    return f"{skill.skill_id}.{status}"


def matching_edges(wiring: Wiring, source: str, target: str) -> tuple[Edge, ...]:
    """Return the program's own edges into `target` that `source` names: a node, "START", "recurring" or "*"."""

    def fits(edge: Edge) -> bool:
        if source == "recurring":
            return edge.source != wiring.start
        return source in ("*", edge.source) or (source == "START" and edge.source == wiring.start)

    return tuple(edge for edge in wiring.edges if not edge.skill and edge.target == target and fits(edge))


def compile_skill(wiring: Wiring, skill: Skill) -> Wiring:
    """Return the wiring with the skill on its edges; where an earlier skill sits, this one is asked first."""
    hosts = matching_edges(wiring, skill.source, skill.target)
    entry = node_name(skill, 1)
    edges: list[Edge] = []
    asked_at = {hosts_edge: _first_entry(wiring.edges, hosts_edge) for hosts_edge in hosts}
    for edge in wiring.edges:
        edges.extend(
            replace(
                host, target=entry, when=host.when.and_rule(skill.when), addressee=host.target, skill=skill.skill_id
            )
            for host in hosts
            if asked_at[host] is edge
        )
        edges.append(edge)
    return Wiring((*wiring.nodes, *_nodes(skill)), (*edges, *_inner_edges(skill)), wiring.start)


def _first_entry(edges: tuple[Edge, ...], host: Edge) -> Edge:
    """Return the first of the entries of earlier skills that stand right before their host edge, or the host."""
    position = edges.index(host)
    while position > 0 and edges[position - 1].skill and edges[position - 1].addressee == host.target:
        if edges[position - 1].source != host.source:
            break
        position -= 1
    return edges[position]


def _nodes(skill: Skill) -> list[Node]:
    inner = [
        Node(node_name(skill, number), operation.operation, instruction=operation.instruction, skill=skill.skill_id)
        for number, operation in enumerate(skill.operations, start=1)
    ]
    return [*inner, *(Node(exit_name(skill, status), "return", skill=skill.skill_id) for status in (SUCCESS, FAILURE))]


def _inner_edges(skill: Skill) -> list[Edge]:
    edges: list[Edge] = []
    for number, operation in enumerate(skill.operations, start=1):
        source = node_name(skill, number)
        following = number + 1 if number < len(skill.operations) else SUCCESS
        edges.extend(
            Edge(source, _resolve(skill, target), when, skill=skill.skill_id)
            for target, when in _ways(operation, following)
        )
    edges.extend(
        Edge(exit_name(skill, one.status), one.target, Condition(draft=one.draft), skill=skill.skill_id)
        for one in skill.returns
    )
    return edges


def _ways(operation: SkillOperation, following: int | str) -> Sequence[tuple[int | str, Condition]]:
    """Return where control may go after an operation, in the order asked: specific, unconditional, sequential."""
    ways: list[tuple[int | str, Condition]] = [
        (branch.target, Condition(branch.outcome, branch.draft))
        for branch in operation.branches
        if branch.is_conditional
    ]
    if ERROR in OPERATIONS[operation.operation].outcomes:
        ways.append((FAILURE, Condition(ERROR)))
    unconditional = [branch.target for branch in operation.branches if not branch.is_conditional]
    ways.append((unconditional[0] if unconditional else following, Condition()))
    return ways


def _resolve(skill: Skill, target: int | str) -> str:
    return node_name(skill, target) if isinstance(target, int) else exit_name(skill, target)
