"""The call graph as Mermaid text: any Markdown viewer draws it, and it reads well as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dspy_evocue.site_map import SiteMap


def site_map_mermaid(sites: SiteMap) -> str:
    """Return the graph of a site map: rounded tools, dashed what cannot be attached, counts on the edges."""
    names: dict[str, str] = {}
    for edge in sites.edges:
        for node in (edge.source, edge.target):
            names.setdefault(node, f"n{len(names)}")
    fixed = {node.name for node in sites.nodes if not node.attachable and not node.name.startswith("tool:")}
    lines = ["flowchart TD"]
    for node, short in names.items():
        opening, closing = ("([", "])") if node.startswith("tool:") else ("[", "]")
        lines.append(f'    {short}{opening}"{_escaped(node)}"{closing}')
    lines += [f"    {names[edge.source]} -->|{edge.count}| {names[edge.target]}" for edge in sites.edges]
    dashed = [short for node, short in names.items() if node in fixed]
    if dashed:
        lines += ["    classDef fixed stroke-dasharray: 4 3", f"    class {','.join(dashed)} fixed"]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
