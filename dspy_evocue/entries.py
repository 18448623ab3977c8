"""One line of control, the calls that run on it, and the entries of nodes: what a run is made of.

Who enters what, and which edit acts there, is decided in `running`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dspy_evocue.call_sites import JOIN, START
from dspy_evocue.edits import Edit

NodeKind = Literal["predictor", "tool", "frozen", "unattached", "mark", "action", "edge", "skill"]
"""`frozen` and `unattached` predictors run, but no edit can be attached to them. Plain code becomes a `mark` by saying
so, and an `action` where it acts on the world as a tool does. An explicit controller reports its own `edge`s as it
takes them, and each `skill` of an edit while it runs."""
ACTIONS: tuple[NodeKind, ...] = ("tool", "action")
"""Kinds of node that act on the world: edits for the next action end there, and the control check compares them."""


@dataclass(eq=False, slots=True)
class Branch:
    """One line of control. The first is "0"; what forks off it is "0.1", "0.2", ..."""

    path: str
    last: str = START
    """The node that control was at last: the source of the next entry."""
    visits: dict[str, int] = field(default_factory=dict)
    tools_called: tuple[str, ...] = ()
    action_keys: tuple[str, ...] = ()
    last_arguments: Any = None
    last_observation: Any = None
    last_failed: bool = False
    completion_seen: bool = False
    predictor_calls: int = 0
    lingering: tuple[tuple[Edit, Frame | None], ...] = ()
    """Edits that go on acting: until the next action (None), or until the frame ends."""
    within: str | None = None
    """The edit whose skill is running on a controller's edge."""
    unjoined: list[Branch] = field(default_factory=list)
    """Branches that forked off since this one last went on."""
    forks: int = 0
    is_joined: bool = False

    def fork(self) -> Branch:
        """Start a branch that knows what this one knows."""
        self.forks += 1
        child = Branch(f"{self.path}.{self.forks}")
        child._take(self)
        child.visits = dict(self.visits)
        child.lingering = self.lingering
        child.within = self.within
        self.unjoined.append(child)
        return child

    def join(self) -> None:
        """Go on after the branches that forked off: from the end of the only one, or from JOIN."""
        if not self.unjoined:
            return
        ended, self.unjoined = self.unjoined, []
        for child in ended:
            child.join()
            child.is_joined = True
        self.visits = _total(self.visits, [child.visits for child in ended])
        called = len(self.tools_called)
        tools_called = self.tools_called + tuple(name for child in ended for name in child.tools_called[called:])
        predictor_calls = self.predictor_calls + sum(child.predictor_calls - self.predictor_calls for child in ended)
        self._take(ended[-1])
        self.tools_called, self.predictor_calls = tools_called, predictor_calls
        self.completion_seen = any(child.completion_seen for child in ended)
        self.last = ended[0].last if len(ended) == 1 else JOIN

    def _take(self, other: Branch) -> None:
        self.last = other.last
        self.tools_called = other.tools_called
        self.action_keys = other.action_keys
        self.last_arguments = other.last_arguments
        self.last_observation = other.last_observation
        self.last_failed = other.last_failed
        self.completion_seen = other.completion_seen
        self.predictor_calls = other.predictor_calls


@dataclass(eq=False, slots=True)
class Frame:
    """A module or tool call that is running: which thread and task runs it, and on which branch."""

    owner: tuple[int, Any]
    branch: Branch
    parent: Frame | None = None
    tool_entry: Entry | None = None
    """The innermost tool call that this frame is inside of."""
    hops: dict[tuple[int, ...], tuple[Branch, Any]] = field(default_factory=dict)
    """Branches for the calls that other threads and tasks make from here; holds what their keys are ids of."""
    is_open: bool = True
    serial: int = field(default_factory=itertools.count().__next__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a node, as journals and edits see it."""

    number: int
    """The order of starts within the execution, from 0."""
    kind: NodeKind
    node: str
    source: str
    branch: Branch
    frame: Frame
    inputs: Mapping[str, Any]
    input_key: str
    features: Mapping[str, str]
    """Empty where nobody needs them."""
    edit: Edit | None
    """The edit that acts on this call."""
    inside: int | None
    """The number of the tool call that it happens in."""
    within: str | None = None
    """The edit in whose skill, on a controller's edge, it happens."""
    failures: list[str] = field(default_factory=list)
    """What the edit could not do on this call, in words; it says so here when it fails without raising."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a journal answers when a call must not run: its recorded outcome."""

    output: Any
    error: Exception | None


def _total(before: Mapping[str, int], counts: list[dict[str, int]]) -> dict[str, int]:
    """Add what each of several counts has more than the one that they all started from."""
    total = dict(before)
    for count in counts:
        for node, visits in count.items():
            total[node] = total.get(node, 0) + visits - before.get(node, 0)
    return total
