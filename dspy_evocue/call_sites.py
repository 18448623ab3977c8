"""Call sites: the edges of a program on which control enters a predictor, and how an edit names them.

An instruction on an edge is seen by the target only when it is entered through that edge (EvoCUE, controller): in a
ReAct loop `START -> react` is the first entry and `recurring -> react` every later one. This file is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

START = "START"
"""The source of the first node of a run."""
JOIN = "JOIN"
"""The source after parallel branches have ended."""
RECURRING = "recurring"
"""Matches every source but START."""
ANY = "*"
"""Matches every source, or every target."""
TOOL_PREFIX = "tool:"
"""Tools are nodes too: `tool:search`."""


def tool_node(name: str) -> str:
    """Return the name of a tool's node."""
    return TOOL_PREFIX + name


@dataclass(frozen=True, slots=True, order=True)
class CallSite:
    """An edge pattern: where control comes from, and which predictor it enters.

    Example:
        ```python
        CallSite("tool:search", "react").matches("tool:search", "react")  # True
        CallSite("recurring", "react").matches("START", "react")  # False
        ```
    """

    source: str
    """A node's exact name, `START`, `JOIN`, `recurring` (any but START), `tool:*` (any tool) or `*`."""
    target: str
    """The predictor, as `named_predictors()` spells it; `*` for every predictor."""

    def __post_init__(self) -> None:
        for role, name in (("source", self.source), ("target", self.target)):
            if not isinstance(name, str) or not name.strip():
                raise ValueError(f"the {role} of a call site must be a non-empty string, got {name!r}")
        if self.target in (START, JOIN, RECURRING):
            raise ValueError(f"the target of a call site must be a predictor's name, got {self.target!r}")

    def matches(self, source: str, target: str) -> bool:
        """Say whether an entry of `target` from `source` is on this edge."""
        return self.target in (ANY, target) and _source_matches(self.source, source)

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"

    def to_dict(self) -> dict[str, str]:
        """Return the site as plain JSON values; `from_dict` reads it back."""
        return {"source": self.source, "target": self.target}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CallSite:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: When a part is missing or is not a name.
        """
        try:
            return cls(values["source"], values["target"])
        except (KeyError, TypeError) as error:
            raise ValueError(f'a call site must read {{"source": ..., "target": ...}}, got {values!r}') from error


def _source_matches(pattern: str, source: str) -> bool:
    if pattern == ANY:
        return True
    if pattern == RECURRING:
        return source != START
    if pattern == TOOL_PREFIX + ANY:
        return source.startswith(TOOL_PREFIX)
    return pattern == source
