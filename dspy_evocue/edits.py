"""Edits: what is added to a program at a call site, for how long, and when.

An edit never touches the program's own text: it is applied to one call while that call runs. Which of several edits
acts is decided here too: the latest one that is applicable.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast, get_args

from dspy_evocue.call_sites import ANY, CallSite
from dspy_evocue.rules import Rule

Scope = Literal["call", "next_action", "skill"]
"""How long an edit acts once its edge was entered.

`call`: for this call. `next_action`: for the predictor calls of the branch until its next action starts (a tool call,
or a node that was marked as an action). `skill`: until the module ends in which the entry happened.
"""


Acting = Literal["predictor", "edge"]
"""What an edit's call sites are: entries of predictors, or edges of an explicit controller."""

ALWAYS = Rule()
"""The empty rule: the edit acts whenever its edge is entered."""


class Edit(ABC):
    """What every kind of edit has; a kind is a frozen dataclass with these fields that may be saved as JSON."""

    __slots__ = ()

    kind: str
    """The name under which a saved edit finds its class again."""
    at: CallSite | tuple[CallSite, ...]
    """The edge, or several edges, on which it acts."""
    scope: Scope
    """How long it acts from there."""
    when: Rule
    """The rule on the state before it acts; `Rule()` always holds."""
    acts_on: ClassVar[Acting] = "predictor"
    """What its call sites are, and so what its rule can test: predictors see the features of any program, edges those
    of the controller."""

    @property
    def sites(self) -> tuple[CallSite, ...]:
        """The edges on which it acts, always as a tuple."""
        return (self.at,) if isinstance(self.at, CallSite) else tuple(self.at)

    @property
    def edit_id(self) -> str:
        """A short name derived from the content: equal edits have equal ids in every process."""
        content = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=True)
        return "e" + hashlib.sha256(content.encode("ascii")).hexdigest()[:8]

    def is_entered(self, source: str, target: str) -> bool:
        """Say whether an entry of `target` from `source` is on one of its edges."""
        return any(site.matches(source, target) for site in self.sites)

    @abstractmethod
    def instruction(self) -> str:
        """Return the text that the predictor reads after its own instructions; empty for none."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the edit as plain JSON values, its `kind` among them."""

    @abstractmethod
    def describe(self) -> str:
        """Say in one sentence what it does, where and when."""

    def revise(self, call: Any, prediction: Any) -> Any:
        """Return what the program gets to see in place of the prediction; the prediction itself by default.

        An edit that cannot do what it is for, and lets the program go on all the same, says so in `call.failures`.

        Args:
            call: The call, as `dspy_evocue.entries.Entry` describes it.
            prediction: What the predictor returned.
        """
        return prediction

    async def arevise(self, call: Any, prediction: Any) -> Any:
        """Do the same on the asynchronous path."""
        return self.revise(call, prediction)


@dataclass(frozen=True, slots=True)
class InstructionEdit(Edit):
    """A text that a predictor reads only when it is entered through this edge while the rule holds.

    Example:
        ```python
        InstructionEdit(at=CallSite("recurring", "react"), text="Press the brake before you start the engine.")
        ```
    """

    at: CallSite | tuple[CallSite, ...]
    text: str
    """Appended to the predictor's own instructions, which stay as they are."""
    scope: Scope = "call"
    when: Rule = ALWAYS

    kind = "instruction"

    def __post_init__(self) -> None:
        if isinstance(self.at, Sequence) and not isinstance(self.at, str):
            object.__setattr__(self, "at", tuple(self.at))
        check_placement(self)
        if not isinstance(self.text, str) or not self.text.strip():
            raise ValueError(f"the text of an instruction edit must not be empty, got {self.text!r}")

    def instruction(self) -> str:
        """Return the text."""
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Return the edit as plain JSON values."""
        return {"kind": self.kind, "text": self.text, **placement_to_dict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> InstructionEdit:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: When a part is missing or wrong.
        """
        if not isinstance(values.get("text"), str):
            raise ValueError(f"an instruction edit must have a text, got {values!r}")
        return cls(text=values["text"], **placement_from_dict(values))

    def describe(self) -> str:
        """Say in one sentence what is added, where and when."""
        return f'adds "{self.text}" {describe_placement(self)}'


def check_placement(edit: Edit) -> None:
    """Check the fields that every kind of edit shares.

    Raises:
        TypeError: When `at` is no call site (or tuple of them), or `when` no rule.
        ValueError: When there is no call site, or the scope is unknown.
    """
    if not edit.sites or not all(isinstance(site, CallSite) for site in edit.sites):
        raise TypeError(f"an edit must be at a CallSite or at several of them, got {edit.at!r}")
    if edit.scope not in get_args(Scope):
        raise ValueError(f"the scope of an edit must be one of {', '.join(get_args(Scope))}, got {edit.scope!r}")
    if not isinstance(edit.when, Rule):
        raise TypeError(f"when must be a Rule, got {edit.when!r}")


def describe_placement(edit: Edit) -> str:
    """Say where an edit acts, how long and when, as the end of a sentence."""
    places = " or ".join(
        (f"{site.target!r}" if site.target != ANY else "any predictor") + f" entered from {site.source}"
        for site in edit.sites
    )
    lasting = {
        "call": "for that call",
        "next_action": "until the next action",
        "skill": "until the enclosing module ends",
    }[edit.scope]
    condition = f", when {edit.when}" if edit.when.tests else ""
    return f"to {places}, {lasting}{condition}"


def placement_to_dict(edit: Edit) -> dict[str, Any]:
    """Return the shared fields of an edit as plain JSON values."""
    return {"at": [site.to_dict() for site in edit.sites], "scope": edit.scope, "when": edit.when.to_dict()}


def placement_from_dict(values: Mapping[str, Any]) -> dict[str, Any]:
    """Read the shared fields back, as keyword arguments of the edit's class.

    Raises:
        ValueError: When one is missing or wrong.
    """
    try:
        sites = tuple(CallSite.from_dict(site) for site in values["at"])
        rule = Rule.from_dict(values["when"])
        scope = cast(Scope, values["scope"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"an edit must have at, scope and when, got {values!r}") from error
    return {"at": sites[0] if len(sites) == 1 else sites, "scope": scope, "when": rule}


_KINDS: dict[str, Callable[[Mapping[str, Any]], Edit]] = {InstructionEdit.kind: InstructionEdit.from_dict}
_DEFINED_IN = {
    "skill": "dspy_evocue.control.skill_edit",
    "graph_skill": "dspy_evocue.control.graph_skill_edit",
}
"""Kinds of this package whose module registers them, imported when a saved edit first asks for one."""


def register_edit_kind(kind: str, from_dict: Callable[[Mapping[str, Any]], Edit]) -> None:
    """Make saved edits of another kind readable; called where the kind is defined."""
    _KINDS[kind] = from_dict


def edit_from_dict(values: Mapping[str, Any]) -> Edit:
    """Read a saved edit of any known kind.

    Raises:
        ValueError: When the kind is unknown, or the kind's own reader refuses it.
    """
    kind = values.get("kind") if isinstance(values, Mapping) else None
    if kind in _DEFINED_IN and kind not in _KINDS:
        importlib.import_module(_DEFINED_IN[kind])
    if kind not in _KINDS:
        known = ", ".join(sorted({*_KINDS, *_DEFINED_IN}))
        raise ValueError(f"the kind of an edit must be one of {known}, got {kind!r}")
    return _KINDS[kind](values)


def latest_applicable(candidates: Sequence[Edit], order: Sequence[Edit]) -> Edit | None:
    """Return the candidate that comes last in the program's own order of edits; None when there is none."""
    ranks = {id(edit): rank for rank, edit in enumerate(order)}
    return max(candidates, key=lambda edit: ranks[id(edit)], default=None)
