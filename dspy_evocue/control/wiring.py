"""Nodes, edges and their conditions: what a controller is made of, before anyone asks whether it is sound.

Pure: knows neither dspy nor a model. `graph.ControlGraph` is a wiring that has been validated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dspy_evocue.control.draft import DraftState
from dspy_evocue.control.operations import ERROR, OPERATIONS, PLAIN_OPERATIONS, Operation, plain_operation
from dspy_evocue.rules import FeatureTest, Rule

Scope = Literal["call", "next_action", "skill"]
"""How long an edge's instruction acts: one call of the edge's target, until the next action, or inside the skill."""

KNOWN_FEATURES = ("draft", "outcome")
"""The features that every state has with one meaning; all others are free as far as the checker knows."""


@dataclass(frozen=True, slots=True)
class Condition:
    """When an edge may be taken: an outcome of its source, a draft state, and tests on the observable state.

    An unreadable reply (outcome "error") is caught only by a condition that names it: no fault is passed over in
    silence.
    """

    outcome: str | None = None
    draft: DraftState | None = None
    tests: tuple[FeatureTest, ...] = ()

    @property
    def is_unconditional(self) -> bool:
        """Whether it holds after everything but an unreadable reply."""
        return self.outcome is None and self.draft is None and not self.tests

    def holds(self, outcome: str, draft: DraftState, features: Mapping[str, str]) -> bool:
        """Say whether it holds in this state; the features "draft" and "outcome" are those given here."""
        open_tests = self.open_tests(outcome, draft)
        return open_tests is not None and all(test.holds(features) for test in open_tests)

    def open_tests(self, outcome: str, draft: DraftState) -> tuple[FeatureTest, ...] | None:
        """Return the tests that outcome and draft leave open, or None when they already rule the condition out."""
        if self.outcome not in (None, outcome) or self.draft not in (None, draft):
            return None
        if outcome == ERROR and self.outcome is None:
            return None
        known = {"outcome": outcome, "draft": str(draft)}
        if any(test.feature in known and not test.holds(known) for test in self.tests):
            return None
        return tuple(test for test in self.tests if test.feature not in known)

    def and_rule(self, rule: Rule) -> Condition:
        """Return the condition that also asks for `rule`."""
        return Condition(self.outcome, self.draft, tuple(dict.fromkeys((*self.tests, *rule.tests))))

    def __str__(self) -> str:
        words = [self.outcome] if self.outcome is not None else []
        words += [f"draft {self.draft}"] if self.draft is not None else []
        return ", ".join((*words, *map(str, self.tests)))

    def to_dict(self) -> dict[str, Any]:
        """Return the condition as plain JSON values."""
        return {
            "outcome": self.outcome,
            "draft": None if self.draft is None else str(self.draft),
            "tests": [[test.feature, test.value] for test in self.tests],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Condition:
        """Read what `to_dict` wrote."""
        draft = values.get("draft")
        return cls(
            outcome=values.get("outcome"),
            draft=None if draft is None else DraftState(draft),
            tests=tuple(FeatureTest(feature, value) for feature, value in values.get("tests", ())),
        )


@dataclass(frozen=True, slots=True)
class Node:
    """A place that control passes through: a primitive operation, or a plain node with a part of its own."""

    name: str
    operation: str
    """A primitive operation, or "code", "model", "tool", "stop" (and "return", which only compiled skills use)."""
    outcomes: tuple[str, ...] = ()
    """What the part of a plain code or model node may say for the edges to tell apart."""
    instruction: str = ""
    """What the model is told at this node besides its own instructions."""
    skill: str = ""
    """The skill that it was compiled from; empty for a node of the program itself."""

    @property
    def row(self) -> Operation:
        """The row of the table that this node obeys."""
        return OPERATIONS.get(self.operation) or plain_operation(self.operation, self.outcomes)

    @property
    def part(self) -> str:
        """The name of the part that performs it: primitives share one an operation, plain nodes have their own."""
        return self.operation if self.operation in OPERATIONS else self.name

    @property
    def is_known(self) -> bool:
        """Whether its operation exists."""
        return self.operation in OPERATIONS or self.operation in PLAIN_OPERATIONS

    def to_dict(self) -> dict[str, Any]:
        """Return the node as plain JSON values."""
        return {
            "name": self.name,
            "operation": self.operation,
            "outcomes": list(self.outcomes),
            "instruction": self.instruction,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Node:
        """Read what `to_dict` wrote."""
        return cls(values["name"], values["operation"], tuple(values["outcomes"]), values["instruction"])


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from one node to another, and what the target is told when it is entered this way."""

    source: str
    target: str
    when: Condition = Condition()
    instruction: str = ""
    scope: Scope = "call"
    addressee: str = ""
    """The node that a "call" instruction is for; empty for the edge's own target."""
    skill: str = ""
    """The skill that it was compiled from; empty for an edge of the program itself."""

    @property
    def name(self) -> str:
        """The edge as tables show it."""
        return f"{self.source} -> {self.target}"

    def to_dict(self) -> dict[str, Any]:
        """Return the edge as plain JSON values."""
        return {
            "source": self.source,
            "target": self.target,
            "when": self.when.to_dict(),
            "instruction": self.instruction,
            "scope": self.scope,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Edge:
        """Read what `to_dict` wrote."""
        return cls(
            source=values["source"],
            target=values["target"],
            when=Condition.from_dict(values["when"]),
            instruction=values["instruction"],
            scope=values["scope"],
        )


@dataclass(frozen=True, slots=True)
class Wiring:
    """Nodes and edges with a start; the first edge whose condition holds is taken, in the order given."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    start: str

    def node(self, name: str) -> Node:
        """Return the node of this name.

        Raises:
            KeyError: When there is none.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def edges_from(self, name: str) -> tuple[Edge, ...]:
        """Return the edges that leave this node, in the order in which they are tried."""
        return tuple(edge for edge in self.edges if edge.source == name)
