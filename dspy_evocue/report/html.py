"""Notebook renderings: plain HTML and SVG, no script, nothing fetched, every user's text escaped."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dspy_evocue.edits import Edit, describe_placement

if TYPE_CHECKING:
    from dspy_evocue.site_map import Edge, SiteMap
    from dspy_evocue.trial_record import TrialRecord

_ROW = 44
_NODE_HEIGHT = 26
_CHARACTER = 7.2


def edits_html(edits: Sequence[Edit]) -> str:
    """Return a table of edits: id, where, when, what."""
    rows = [(edit.edit_id, describe_placement(edit), edit.instruction() or edit.describe()) for edit in edits]
    return table(("edit", "acts", "text"), rows)


def trials_html(trials: Sequence[TrialRecord]) -> str:
    """Return a table of paired trials: task, status, both scores, what both arms took."""
    rows = [
        (
            trial.task_id,
            trial.status,
            trial.site,
            _score(trial.before),
            _score(trial.after),
            f"{trial.parent.lm_calls} + {trial.edited.lm_calls}",
            str(len(trial.changes)),
            trial.reason,
        )
        for trial in trials
    ]
    return table(("task", "status", "site", "parent", "edited", "LM calls", "changed calls", "reason"), rows)


def site_map_html(sites: SiteMap) -> str:
    """Return the picture of a call graph, and tables of its edges and of its nodes."""
    edges = [(str(edge), str(edge.count), f"{edge.runs} of {sites.runs}") for edge in sites.edges]
    nodes = [(node.name, str(node.calls), "yes" if node.attachable else "no", node.note) for node in sites.nodes]
    return (
        graph_svg(sites.edges)
        + table(("edge", "count", "runs"), edges)
        + table(("node", "calls", "attachable", "note"), nodes)
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table of escaped text."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def graph_svg(edges: Sequence[Edge]) -> str:
    """Draw the edges as arcs beside one column of nodes: down on the right, back up on the left."""
    nodes = list(dict.fromkeys(name for edge in edges for name in (edge.source, edge.target)))
    width = max((len(node) for node in nodes), default=1) * _CHARACTER + 20
    reach = 30 + 22 * len(nodes)
    middle = {node: 20 + index * _ROW for index, node in enumerate(nodes)}
    parts = [_arc(edge, middle, reach, width) for edge in edges]
    for node, y in middle.items():
        radius = 13 if node.startswith("tool:") else 3
        parts.append(
            f'<rect x="{reach}" y="{y - _NODE_HEIGHT / 2}" width="{width}" height="{_NODE_HEIGHT}" rx="{radius}" '
            f'fill="white" stroke="#555"/><text x="{reach + width / 2}" y="{y + 4}" text-anchor="middle" '
            f'font-size="12" font-family="monospace">{html.escape(node)}</text>'
        )
    size = f'width="{2 * reach + width:.0f}" height="{20 + len(nodes) * _ROW}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{_ARROW}{"".join(parts)}</svg>'


_ARROW = (
    '<defs><marker id="evocue-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#888"/></marker></defs>'
)


def _arc(edge: Edge, middle: Mapping[str, float], reach: float, width: float) -> str:
    start, end = middle[edge.source], middle[edge.target]
    is_down = end > start
    side = reach + width if is_down else reach
    bulge = (24 + abs(end - start) / 3) * (1 if is_down else -1)
    if start == end:
        start, end = start - 8, end + 8
    return (
        f'<path d="M{side},{start} C{side + bulge},{start} {side + bulge},{end} {side},{end}" fill="none" '
        f'stroke="#888" marker-end="url(#evocue-arrow)"/>'
        f'<text x="{side + bulge * 0.75}" y="{(start + end) / 2 + 4}" text-anchor="middle" font-size="11" '
        f'font-family="monospace">{edge.count}</text>'
    )


def _score(score: float | None) -> str:
    return "missing" if score is None else f"{score:g}"
