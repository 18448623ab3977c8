"""A skill on an edge of an explicit controller, as an edit: proposed, tried, fitted, inherited and taken off like any.

The edit holds the operations and the declared returns; the graph that it makes is `compile`'s. Whether it is sound is a
question about one program's graph: `check.check_skill`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dspy_evocue.call_sites import START, CallSite
from dspy_evocue.control.check import check_skill
from dspy_evocue.control.errors import SkillError
from dspy_evocue.control.features import FEATURES
from dspy_evocue.control.graph import ControlGraph
from dspy_evocue.control.skills import (
    Return,
    Skill,
    SkillOperation,
    describe_operations,
    operation_from_dict,
    operation_to_dict,
    return_from_dict,
    return_to_dict,
)
from dspy_evocue.edits import (
    ALWAYS,
    Edit,
    Scope,
    check_placement,
    placement_from_dict,
    placement_to_dict,
    register_edit_kind,
)
from dspy_evocue.rules import MAX_TESTS, FeatureTest, Rule

_SOME_RULE = FeatureTest("a rule fitted later", "holds")
"""A test that may come out either way, as any that trials may still add to a start condition."""


@dataclass(frozen=True, slots=True)
class GraphSkillEdit(Edit):
    """Operations that run on an edge of a `ControlProgram` before control reaches the edge's target.

    Example:
        ```python
        GraphSkillEdit(
            at=CallSite("prepare", "pre_commit"),
            operations=(SkillOperation("revise", "Give every payment its reference."),),
            returns=returns_to("pre_commit", PENDING),
            when=Rule.of(phase="middle"),
        )
        ```
    """

    at: CallSite | tuple[CallSite, ...]
    """The edge, by its nodes: "START" is the start node, "recurring" any other, "*" every one."""
    operations: tuple[SkillOperation, ...]
    returns: tuple[Return, ...]
    """Where control goes when the skill ends, by success or failure and by the draft state."""
    scope: Scope = "call"
    when: Rule = ALWAYS
    """The start condition, on the controller's features; where it fails, control passes by."""

    kind = "graph_skill"
    acts_on = "edge"

    def __post_init__(self) -> None:
        if not isinstance(self.at, CallSite):
            object.__setattr__(self, "at", tuple(self.at))
        object.__setattr__(self, "operations", tuple(self.operations))
        object.__setattr__(self, "returns", tuple(self.returns))
        check_placement(self)
        if self.scope != "call":
            raise ValueError(
                f"a skill on an edge runs whenever the edge is taken: scope must be call, got {self.scope}"
            )

    @property
    def skills(self) -> tuple[Skill, ...]:
        """The skills as the graph compiles them, one an edge; their names begin with the edit's id."""
        names = [self.edit_id] if len(self.sites) == 1 else [f"{self.edit_id}-{n + 1}" for n in range(len(self.sites))]
        return tuple(
            Skill(name, site.source, site.target, self.operations, self.returns, self.when)
            for name, site in zip(names, self.sites, strict=True)
        )

    def instruction(self) -> str:
        """Return nothing: no predictor is told anything more at its own entries."""
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Return the edit as plain JSON values."""
        return {
            "kind": self.kind,
            "operations": [operation_to_dict(operation) for operation in self.operations],
            "returns": [return_to_dict(one) for one in self.returns],
            **placement_to_dict(self),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GraphSkillEdit:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: When a part is missing or wrong; whether the skill is sound is for the graph to say.
        """
        try:
            operations = tuple(operation_from_dict(operation) for operation in values["operations"])
            returns = tuple(return_from_dict(one) for one in values["returns"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a skill on an edge must have operations and returns, got {values!r}") from error
        return cls(operations=operations, returns=returns, **placement_from_dict(values))

    def describe(self) -> str:
        """Say in one sentence what is done, where and when."""
        condition = f", when {self.when}" if self.when.tests else ""
        return f"does {describe_operations(self.operations)} on {' or '.join(map(str, self.sites))}{condition}"


def with_edits(graph: ControlGraph, edits: Sequence[GraphSkillEdit]) -> ControlGraph:
    """Return the graph with the skills of these edits after its own, in their order.

    Raises:
        SkillError: When the checker refuses one of them.
    """
    return _with_edits(graph, tuple(edits)) if edits else graph


@functools.lru_cache(maxsize=256)
def _with_edits(graph: ControlGraph, edits: tuple[GraphSkillEdit, ...]) -> ControlGraph:
    return replace(graph, skills=(*graph.skills, *(skill for edit in edits for skill in edit.skills)))


def find_edit_problems(edit: GraphSkillEdit, graph: ControlGraph) -> tuple[str, ...]:
    """Return why the edit must not be tried on this graph, one sentence each; empty when it may.

    It must be sound whatever further tests its trials add to its start condition: a rule lets control pass by where
    the skill alone would always have caught it.
    """
    problems = [
        f"The start condition asks for {test}, but {test.feature} is {' or '.join(FEATURES[test.feature])}."
        for test in edit.when.tests
        if test.feature in FEATURES and test.feature != "source" and test.value not in FEATURES[test.feature]
    ]
    problems += _misnamed(edit, graph)
    further = (_SOME_RULE,) if len(edit.when) < MAX_TESTS else ()
    for skill in edit.skills:
        refused = check_skill(replace(skill, when=Rule((*skill.when.tests, *further))), graph)
        problems += map(str, refused)
        if refused:
            break
        graph = graph.with_skill(skill)
    return tuple(dict.fromkeys(problems))


def require_sound(edits: Sequence[GraphSkillEdit], graph: ControlGraph) -> ControlGraph:
    """Return the graph with the skills of these edits, which are held against it together.

    Raises:
        SkillError: When an entry is not named as edits name it, or the checker refuses a skill.
    """
    if misnamed := [f"edit {edit.edit_id}: {problem}" for edit in edits for problem in _misnamed(edit, graph)]:
        raise SkillError(" ".join(misnamed))
    return with_edits(graph, edits)


def _misnamed(edit: GraphSkillEdit, graph: ControlGraph) -> list[str]:
    """Return what is wrong with an entry that the graph would take and no recording would find again."""
    is_wrong = any(site.source == graph.start for site in edit.sites)
    return [f"The source {graph.start} is the start node, which an entry names {START}."] if is_wrong else []


register_edit_kind(GraphSkillEdit.kind, GraphSkillEdit.from_dict)
