"""A skill on an ordinary DSPy program: operations between a predictor's output and the program seeing it.

The prediction is the pending draft. `revise` may rewrite its fields, `validate` may find it wrong, `check_goals` and
`reflect` give the later operations something to go by; whichever way the skill ends, the program goes on with the
prediction as it then stands. The operations are calls of their own, outside the program's trace, within a budget of
their own; the trace shows the revised prediction where the first one stood.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.dsp.utils.settings import settings
from dspy.utils.exceptions import AdapterParseError

from dspy_evocue.call_sites import CallSite
from dspy_evocue.control.errors import SkillError
from dspy_evocue.control.revising import find_revising_problems, revising_walk
from dspy_evocue.control.skills import SkillOperation, describe_operations, operation_from_dict, operation_to_dict
from dspy_evocue.edits import (
    ALWAYS,
    Edit,
    Scope,
    check_placement,
    describe_placement,
    placement_from_dict,
    placement_to_dict,
    register_edit_kind,
)
from dspy_evocue.rules import Rule
from dspy_evocue.running import SETTINGS_KEY


@dataclass(frozen=True, slots=True)
class SkillEdit(Edit):
    """Operations on what a predictor returned, before the program sees it.

    Raises:
        SkillError: When the checker refuses the operations; the message says why, one sentence a problem.

    Example:
        ```python
        SkillEdit(
            at=CallSite("recurring", "react"),
            operations=(
                SkillOperation("validate", "The engine must not be started with a door open.",
                               branches=(Branch("success", outcome="valid"),)),
                SkillOperation("revise"),
            ),
            when=Rule.of(last_tool="lockDoors"),
        )
        ```
    """

    at: CallSite | tuple[CallSite, ...]
    operations: tuple[SkillOperation, ...]
    scope: Scope = "call"
    when: Rule = ALWAYS
    max_calls: int = 6
    """The most model calls of one run of the skill; when they are spent, the program goes on with what there is."""

    kind = "skill"

    def __post_init__(self) -> None:
        if not isinstance(self.at, CallSite):
            object.__setattr__(self, "at", tuple(self.at))
        object.__setattr__(self, "operations", tuple(self.operations))
        check_placement(self)
        if not isinstance(self.max_calls, int) or isinstance(self.max_calls, bool) or self.max_calls < 1:
            raise ValueError(f"max_calls must be an integer of at least 1, got {self.max_calls!r}")
        if problems := find_revising_problems(self.operations):
            raise SkillError(" ".join(problems))

    def instruction(self) -> str:
        """Return nothing: the predictor itself is told nothing more."""
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Return the edit as plain JSON values."""
        return {
            "kind": self.kind,
            "operations": [operation_to_dict(operation) for operation in self.operations],
            "max_calls": self.max_calls,
            **placement_to_dict(self),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SkillEdit:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: When a part is missing or wrong, or the skill is not sound.
        """
        try:
            operations = tuple(operation_from_dict(operation) for operation in values["operations"])
            max_calls = values["max_calls"]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a skill edit must have operations and max_calls, got {values!r}") from error
        return cls(operations=operations, max_calls=max_calls, **placement_from_dict(values))

    def describe(self) -> str:
        """Say in one sentence what is done, where and when."""
        return f"does {describe_operations(self.operations)} on what comes out, {describe_placement(self)}"

    def revise(self, call: Any, prediction: Any) -> Any:
        """Run the operations on the prediction; return what the program gets to see."""
        walk = revising_walk(self.operations, self.max_calls, _current_predictor(), call, prediction)
        try:
            asked = next(walk)
            while True:
                try:
                    with _apart():
                        answer = asked.part(**asked.arguments)
                except AdapterParseError as error:
                    asked = walk.throw(error)
                else:
                    asked = walk.send(answer)
        except StopIteration as stop:
            return _put_in_trace(prediction, stop.value)

    async def arevise(self, call: Any, prediction: Any) -> Any:
        """Do the same on the asynchronous path."""
        walk = revising_walk(self.operations, self.max_calls, _current_predictor(), call, prediction)
        try:
            asked = next(walk)
            while True:
                try:
                    with _apart():
                        answer = await asked.part.acall(**asked.arguments)
                except AdapterParseError as error:
                    asked = walk.throw(error)
                else:
                    asked = walk.send(answer)
        except StopIteration as stop:
            return _put_in_trace(prediction, stop.value)


def _current_predictor() -> dspy.Predict:
    """Return the predictor whose call is being revised: DSPy keeps the modules that are running in its settings."""
    return settings.caller_modules[-1]


def _apart() -> Any:
    """Return the context in which an operation's own call runs: outside the program's trace and of its executions."""
    return settings.context(trace=None, caller_modules=[], **{SETTINGS_KEY: ()})


def _put_in_trace(before: Any, after: Any) -> Any:
    """Put the revised prediction where the first one stands in the trace, and return it."""
    trace = settings.trace
    if after is not before and trace is not None:
        for position in range(len(trace) - 1, -1, -1):
            if trace[position][2] is before:
                trace[position] = (*trace[position][:2], after)
                break
    return after


register_edit_kind(SkillEdit.kind, SkillEdit.from_dict)
