"""A picture of the graph as Mermaid text. Pure: knows neither dspy nor a model."""

from __future__ import annotations

from collections.abc import Mapping

from dspy_evocue.control.graph import ControlGraph
from dspy_evocue.control.wiring import Edge, Node

_SHAPES = {"model": ("([", "])"), "tool": ("[[", "]]"), "code": ("[", "]")}


def draw_graph(graph: ControlGraph, counts: Mapping[str, int] | None = None) -> str:
    """Return the graph with its compiled skills as a Mermaid flowchart.

    Args:
        graph: What to draw: model nodes rounded, actions with double sides, each skill in a box of its own.
        counts: How often each edge ("prepare -> pre_commit") was taken, written on it; None for no numbers.
    """
    nodes = graph.wiring.nodes
    ids = {node.name: f"n{number}" for number, node in enumerate(nodes)}
    lines = ["flowchart TD"]
    lines += [f"    {_draw_node(node, ids)}" for node in nodes if not node.skill]
    for number, skill in enumerate(graph.skills):
        lines.append(f'    subgraph s{number}["{_quoted(f"{skill.skill_id}: when {skill.when}")}"]')
        lines += [f"        {_draw_node(node, ids)}" for node in nodes if node.skill == skill.skill_id]
        lines.append("    end")
    lines += [f"    {_draw_edge(edge, ids, counts)}" for edge in graph.wiring.edges]
    return "\n".join(lines)


def _draw_node(node: Node, ids: Mapping[str, str]) -> str:
    opening, closing = _SHAPES[node.row.performers[0]] if node.operation != "stop" else ("((", "))")
    label = node.name if node.skill or node.operation in ("code", "stop") else f"{node.name}<br/>{node.operation}"
    return f'{ids[node.name]}{opening}"{_quoted(label)}"{closing}'


def _draw_edge(edge: Edge, ids: Mapping[str, str], counts: Mapping[str, int] | None) -> str:
    words = [str(edge.when)] if str(edge.when) else []
    if counts is not None:
        words.append(f"{counts.get(edge.name, 0)}x")
    if edge.instruction and not edge.skill:
        words.append("told more")
    label = f'|"{_quoted(", ".join(words))}"|' if words else ""
    return f"{ids[edge.source]} -->{label} {ids[edge.target]}"


def _quoted(text: str) -> str:
    """Return the text as it may stand inside a Mermaid label; the line break that this file writes itself stays."""
    escaped = text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
    return " ".join(escaped.split()).replace("#lt;br/#gt;", "<br/>")
