"""The table of operations: what each reads, writes, needs of the draft and makes of it (EvoCUE, structural edits).

The table is data. The checker interprets it, the controller obeys it, and the proposer is told it; nothing about an
operation is written down a second time. Pure: knows neither dspy nor a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from dspy_evocue.control.draft import ANY_DRAFT, PENDING, DraftState

ERROR = "error"
"""The outcome of an operation whose model gave a reply that cannot be read; it leaves the draft as it was."""

Performer = Literal["model", "tool", "code"]


@dataclass(frozen=True, slots=True)
class Effect:
    """One way in which an operation may end."""

    outcome: str
    becomes: DraftState | None = None
    """The draft state afterwards; None when the draft stays as it was."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table."""

    name: str
    performers: tuple[Performer, ...]
    """Who may perform it, the usual one first."""
    reads: tuple[str, ...]
    """The parts of the observable state that it may be shown."""
    writes: tuple[str, ...]
    """The parts of the observable state that it may change; nothing else does."""
    requires: tuple[DraftState, ...]
    """The draft states in which it may start."""
    effects: tuple[Effect, ...]
    """Every way in which it may end."""
    summary: str
    is_action: bool = False
    """Whether it acts on the world, and so takes one unit of the action budget."""

    def ends(self, draft: DraftState) -> tuple[tuple[str, DraftState], ...]:
        """Return every (outcome, draft state) in which it may end when it starts in `draft`."""
        return tuple((effect.outcome, effect.becomes or draft) for effect in self.effects)

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Every outcome once, in the order of the table."""
        return tuple(dict.fromkeys(effect.outcome for effect in self.effects))


_SEEN = ("task", "history", "observation", "notes", "goals")
_SEEN_WITH_DRAFT = (*_SEEN, "draft", "problem")
_VALID, _INVALID = DraftState.PENDING_VALID, DraftState.PENDING_INVALID

_ROWS = (
    Operation(
        name="draft",
        performers=("model",),
        reads=_SEEN_WITH_DRAFT,
        writes=("draft", "problem"),
        requires=(DraftState.EMPTY, _INVALID),
        effects=(Effect("drafted", _VALID), Effect("drafted", _INVALID), Effect(ERROR)),
        summary="write the next action; an invalid pending one is replaced, a valid one must not be",
    ),
    Operation(
        name="revise",
        performers=("model",),
        reads=_SEEN_WITH_DRAFT,
        writes=("draft", "problem"),
        requires=PENDING,
        effects=(
            Effect("revised", _VALID),
            Effect("revised", _INVALID),
            Effect("kept"),
            Effect(ERROR),
        ),
        summary="rewrite the pending action; 'kept' when the text comes back unchanged",
    ),
    Operation(
        name="validate",
        performers=("code", "model"),
        reads=_SEEN_WITH_DRAFT,
        writes=("problem",),
        requires=PENDING,
        effects=(Effect("valid", _VALID), Effect("invalid", _INVALID), Effect(ERROR)),
        summary="say whether the pending action may be executed, and why not; its text stays",
    ),
    Operation(
        name="discard",
        performers=("code",),
        reads=("draft",),
        writes=("draft", "problem"),
        requires=PENDING,
        effects=(Effect("discarded", DraftState.EMPTY),),
        summary="throw the pending action away without executing it",
    ),
    Operation(
        name="commit",
        performers=("tool",),
        reads=("draft",),
        writes=("draft", "history", "observation"),
        requires=(_VALID,),
        effects=(Effect("ok", DraftState.EMPTY), Effect("failed", DraftState.EMPTY)),
        summary="execute the pending action and add it to the history with what was observed",
        is_action=True,
    ),
    Operation(
        name="reflect",
        performers=("model",),
        reads=_SEEN_WITH_DRAFT,
        writes=("notes",),
        requires=ANY_DRAFT,
        effects=(Effect("noted"), Effect(ERROR)),
        summary="add a note for later steps; it cannot change a pending action",
    ),
    Operation(
        name="check_goals",
        performers=("model",),
        reads=_SEEN_WITH_DRAFT,
        writes=("goals",),
        requires=ANY_DRAFT,
        effects=(Effect("observed"), Effect("missing"), Effect(ERROR)),
        summary="mark each requirement of the task as observed in the history or missing",
    ),
)

OPERATIONS: Mapping[str, Operation] = MappingProxyType({row.name: row for row in _ROWS})
"""The primitive operations by name: those that a skill may use."""


ANY_OUTCOME = "done"
"""The outcome of a plain node that declares none of its own."""

PLAIN_OPERATIONS = ("code", "model", "tool", "return", "stop")
"""What a node may be besides a primitive operation: a user's function, module or tool, a skill's exit, or the end."""


def plain_operation(kind: str, outcomes: tuple[str, ...]) -> Operation:
    """Return the row of a plain node with these outcomes; no plain node touches the draft.

    Args:
        kind: One of `PLAIN_OPERATIONS`.
        outcomes: What the node's part may say; empty for one that says nothing ("done"). A tool says "ok" or "failed".
    """
    said = ("ok", "failed") if kind == "tool" else outcomes or (ANY_OUTCOME,)
    performer: Performer = "model" if kind == "model" else "tool" if kind == "tool" else "code"
    return Operation(
        name=kind,
        performers=(performer,),
        reads=_SEEN_WITH_DRAFT,
        writes=("values",),
        requires=ANY_DRAFT,
        effects=(*(Effect(outcome) for outcome in said), *((Effect(ERROR),) if kind == "model" else ())),
        summary=f"a plain {kind} node",
        is_action=kind == "tool",
    )


def describe_operations(names: tuple[str, ...] = tuple(OPERATIONS)) -> str:
    """Return the rows as lines of text, one an operation: what a proposer is told before it writes a skill."""
    lines: list[str] = []
    for name in names:
        row = OPERATIONS[name]
        ends = ", ".join(f"{effect.outcome} (draft {effect.becomes or 'unchanged'})" for effect in row.effects)
        lines.append(
            f"- {name}: {row.summary}. Reads {', '.join(row.reads)}. Writes {', '.join(row.writes)}. "
            f"Needs the draft to be {' or '.join(map(str, row.requires))}. Ends: {ends}."
            + (" Takes one environment action." if row.is_action else "")
        )
    return "\n".join(lines)
