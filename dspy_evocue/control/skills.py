"""What a structural edit says: one to six primitive operations with forward branches and declared returns (EvoCUE).

The records only hold what was proposed, sound or not; `check.check_skill` judges it and `graph.compile_skill` makes
nodes of it. Pure: knows neither dspy nor a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dspy_evocue.control.draft import ANY_DRAFT, DraftState
from dspy_evocue.rules import Rule

MAX_OPERATIONS = 6
"""The most operations that one skill may hold."""
SUCCESS = "success"
FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Branch:
    """Where control goes after an operation when the condition holds; without a condition, always."""

    target: int | str
    """The number of a later operation (the first is 1), or "success" or "failure" to leave the skill."""
    outcome: str | None = None
    """Only after this outcome of the operation."""
    draft: DraftState | None = None
    """Only in this draft state."""

    @property
    def is_conditional(self) -> bool:
        """Whether it is specific: it names an outcome, a draft state, or both."""
        return self.outcome is not None or self.draft is not None

    def __str__(self) -> str:
        conditions = [f"after {self.outcome}"] if self.outcome is not None else []
        if self.draft is not None:
            conditions.append(f"with the draft {self.draft}")
        return f"to {self.target} " + (" ".join(conditions) or "always")


@dataclass(frozen=True, slots=True)
class SkillOperation:
    """One step of a skill: a primitive operation, what it is told, and where control goes next.

    Of several branches that hold, a specific one wins over an unconditional one, and the first over a later one; when
    none holds, the next operation follows. After an unreadable reply ("error"), only a branch that names that outcome
    counts; without one the skill ends in failure. The end of the last operation is success.
    """

    operation: str
    """The name of a primitive operation."""
    instruction: str = ""
    """What the model that performs it is told besides its own instructions."""
    branches: tuple[Branch, ...] = ()


@dataclass(frozen=True, slots=True)
class Return:
    """Where control goes when the skill ends this way with the draft in this state."""

    status: str
    """ "success" or "failure"."""
    draft: DraftState
    target: str
    """The node that takes over."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A structural edit: operations that run on one edge of the graph before control reaches its target."""

    skill_id: str
    """Unique in its graph; part of the names of its nodes."""
    source: str
    """The node that control comes from: its name, "START" (the start node), "recurring" (any other) or "*"."""
    target: str
    """The node that control was on its way to."""
    operations: tuple[SkillOperation, ...]
    returns: tuple[Return, ...]
    when: Rule = field(default_factory=Rule)
    """The start condition, on the features of the state before the skill; where it fails, control passes by."""

    def to_dict(self) -> dict[str, Any]:
        """Return the skill as plain JSON values; `from_dict` reads them back to an equal skill."""
        return {
            "skill_id": self.skill_id,
            "source": self.source,
            "target": self.target,
            "operations": [operation_to_dict(operation) for operation in self.operations],
            "returns": [return_to_dict(one) for one in self.returns],
            "when": self.when.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Skill:
        """Read what `to_dict` wrote, or what a proposer wrote in its form.

        Raises:
            ValueError: When a part is missing or has the wrong form; whether the skill is sound is not judged here.
        """
        try:
            return cls(
                skill_id=str(values["skill_id"]),
                source=str(values["source"]),
                target=str(values["target"]),
                operations=tuple(operation_from_dict(one) for one in values["operations"]),
                returns=tuple(return_from_dict(one) for one in values["returns"]),
                when=Rule.from_dict(values["when"]) if values.get("when") else Rule(),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                "a skill must have skill_id, source, target, operations and returns, each of its own form, "
                f"got {values!r}"
            ) from error

    def explain(self) -> str:
        """Say in words what the skill does, one line an operation."""
        lines = [f"On {self.source} -> {self.target}, when {self.when}:"]
        for number, operation in enumerate(self.operations, start=1):
            told = f' told "{operation.instruction}"' if operation.instruction else ""
            goes = "".join(f"; {branch}" for branch in operation.branches)
            lines.append(f"  {number}. {operation.operation}{told}{goes}")
        lines.extend(f"  {one.status} with the draft {one.draft}: on to {one.target}" for one in self.returns)
        return "\n".join(lines)


def returns_to(target: str, drafts: tuple[DraftState, ...] = ANY_DRAFT) -> tuple[Return, ...]:
    """Return the declaration that hands control to `target` after success and failure in each of these states."""
    return tuple(Return(status, draft, target) for status in (SUCCESS, FAILURE) for draft in drafts)


def return_to_dict(one: Return) -> dict[str, str]:
    """Return the declared return as plain JSON values."""
    return {"status": one.status, "draft": str(one.draft), "target": one.target}


def return_from_dict(values: Mapping[str, Any]) -> Return:
    """Read what `return_to_dict` wrote."""
    return Return(str(values["status"]), _draft_state(values["draft"]), str(values["target"]))


def describe_operations(operations: Sequence[SkillOperation]) -> str:
    """Say what is done, step by step, as a part of a sentence."""
    return ", then ".join(
        operation.operation + (f' told "{operation.instruction}"' if operation.instruction else "")
        for operation in operations
    )


def operation_to_dict(operation: SkillOperation) -> dict[str, Any]:
    """Return the operation as plain JSON values."""
    return {
        "operation": operation.operation,
        "instruction": operation.instruction,
        "branches": [
            {
                "target": branch.target,
                "outcome": branch.outcome,
                "draft": None if branch.draft is None else str(branch.draft),
            }
            for branch in operation.branches
        ],
    }


def operation_from_dict(values: Mapping[str, Any]) -> SkillOperation:
    """Read what `operation_to_dict` wrote."""
    return SkillOperation(
        operation=str(values["operation"]),
        instruction=str(values.get("instruction") or ""),
        branches=tuple(
            Branch(
                target=_target(branch["target"]),
                outcome=branch.get("outcome"),
                draft=None if branch.get("draft") is None else _draft_state(branch["draft"]),
            )
            for branch in values.get("branches") or ()
        ),
    )


def _target(value: Any) -> Any:
    """Return the number that a proposer wrote as text; anything else as it is, for the checker to judge."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _draft_state(value: Any) -> DraftState:
    try:
        return DraftState(value)
    except ValueError:
        raise ValueError(f"a draft state must be {', '.join(map(str, DraftState))}, got {value!r}") from None
