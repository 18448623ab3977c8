"""Record a run on a tape; find the checkpoint before an edit can act; replay the tape up to it.

A checkpoint is the start of an event. Replaying answers every call before it from the tape, so neither the model nor
(unless the world must be rebuilt by acting again) a tool is called; the first call that is not before it goes live.
Any difference on the way is a divergence, never a guess.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dspy_combee.runtime.budget import Spend
from dspy_evocue.edits import Edit
from dspy_evocue.entries import Entry, NodeKind, Replayed
from dspy_evocue.errors import Divergence
from dspy_evocue.fingerprints import fingerprint


@dataclass(slots=True)
class Event:
    """One call of a run. Filled in twice: at its start, and at its end."""

    number: int
    """The order of starts, from 0."""
    kind: NodeKind
    node: str
    source: str
    branch: str
    """ "0" for the main line; "0.2" is the second branch that forked off it."""
    inputs: Mapping[str, Any]
    input_key: str
    features: Mapping[str, str]
    inside: int | None
    """The number of the tool call that it happened in."""
    within: str | None = None
    """The edit in whose skill, on a controller's edge, it happened."""
    edit_id: str | None = None
    """The edit that acted on it."""
    output: Any = None
    output_key: str = ""
    """Empty while it runs, and when it raised."""
    error: Exception | None = None
    attempt_failure: str = ""
    """What that edit could not do on this call, where it failed without raising."""
    snapshot: Any = None
    """The tools' world just before it; None where the environment cannot tell."""
    spent: Spend = field(default_factory=Spend)
    """What the run had spent before it."""

    @property
    def outcome_key(self) -> str:
        """What came of it, so that two outcomes can be compared."""
        return self.output_key if self.error is None else f"{type(self.error).__name__}: {self.error}"

    def describe(self) -> str:
        """Say which call it is, in words."""
        return f"{self.node} (call {self.number}, from {self.source}, inputs {self.input_key})"


@dataclass(frozen=True, slots=True)
class Tape:
    """The events of one run, in the order of their starts."""

    events: tuple[Event, ...] = ()

    def branch(self, path: str) -> tuple[Event, ...]:
        """Return the events of one branch."""
        return tuple(event for event in self.events if event.branch == path)

    def checkpoint(self, edit: Edit, *, acts_from: int = 0) -> Checkpoint | None:
        """Return where the edit would act first; None when no call has its edge and its rule.

        A call inside a fork or inside a tool cannot be gone back to alone: the checkpoint moves back to where the
        fork, or the tool call, starts.

        Args:
            edit: The edit.
            acts_from: The number of the event before which it is not to act.
        """
        acting = next((event for event in self.acting(edit) if event.number >= acts_from), None)
        return None if acting is None else Checkpoint(acting, self._restorable(acting))

    def acting(self, edit: Edit) -> tuple[Event, ...]:
        """Return the calls that were entered through an edge of the edit while its rule held."""
        return tuple(event for event in self.entered(edit) if edit.when.holds(event.features))

    def entered(self, edit: Edit) -> tuple[Event, ...]:
        """Return the calls that were entered through an edge of the edit, whatever its rule says."""
        return tuple(
            event for event in self.events if event.kind == edit.acts_on and edit.is_entered(event.source, event.node)
        )

    def _restorable(self, event: Event) -> int:
        number = event.number
        while True:
            number = self._start_of_fork(self.events[number])
            tool = self.events[number].inside
            if tool is None:
                return number
            number = tool

    def _siblings(self, path: str) -> set[str]:
        """Return the branches that forked off the same place: no event of the outer branch lies between them."""
        parent = path.rpartition(".")[0]
        groups: list[set[str]] = [set()]
        for event in self.events:
            if event.branch == parent:
                groups.append(set())
            elif event.branch.startswith(parent + "."):
                groups[-1].add(".".join(event.branch.split(".")[: parent.count(".") + 2]))
        return next((group for group in groups if path in group), set())

    def _start_of_fork(self, event: Event) -> int:
        path, start = event.branch, event.number
        while "." in path:
            siblings = self._siblings(path)
            if len(siblings) > 1:
                start = min(
                    other.number
                    for other in self.events
                    if any(other.branch == sibling or other.branch.startswith(sibling + ".") for sibling in siblings)
                )
            path = path.rpartition(".")[0]
        return start


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a trial goes live."""

    acting: Event
    """The call on which the edit acts first."""
    number: int
    """The event from which on everything runs: that call, or the fork or tool call that it lies in."""


class Recorder:
    """Write the events of a run on a tape. Called under the execution's lock."""

    wants_features = True
    is_live = True

    def __init__(
        self, *, snapshot: Callable[[], Any] | None = None, spent: Callable[[], Spend] = Spend, first: int = 0
    ) -> None:
        """Start an empty tape.

        Args:
            snapshot: Copies the tools' world; called before every call.
            spent: Tells what the run has spent so far.
            first: The number from which events are kept.
        """
        self._snapshot = snapshot
        self._spent = spent
        self._first = first
        self._events: dict[int, Event] = {}

    @property
    def tape(self) -> Tape:
        """What was recorded so far."""
        return Tape(tuple(self._events[number] for number in sorted(self._events)))

    def begin(self, entry: Entry) -> Replayed | None:
        """Write the start of a call down, and let it run."""
        if entry.number >= self._first:
            self._events[entry.number] = Event(
                number=entry.number,
                kind=entry.kind,
                node=entry.node,
                source=entry.source,
                branch=entry.branch.path,
                inputs=_own_copy(entry.inputs),
                input_key=entry.input_key,
                features=entry.features,
                inside=entry.inside,
                within=entry.within,
                edit_id=None if entry.edit is None else entry.edit.edit_id,
                snapshot=self._snapshot() if self._snapshot is not None else None,
                spent=self._spent(),
            )
        return None

    def end(self, entry: Entry, output: Any, error: BaseException | None) -> None:
        """Write down how it ended."""
        event = self._events.get(entry.number)
        if event is None:
            return
        event.attempt_failure = "; ".join(entry.failures)
        if isinstance(error, Exception):
            event.error = error
        elif error is None:
            event.output, event.output_key = _own_copy(output), fingerprint(output)


class Replayer:
    """Answer the calls before a checkpoint from a tape, check each against it, then let the run go live."""

    wants_features = True

    def __init__(
        self,
        tape: Tape,
        live_from: int,
        *,
        acts_again: bool = False,
        go_live: Callable[[], None] | None = None,
        spent: Callable[[], Spend] = Spend,
    ) -> None:
        """Stand at the start of the tape.

        Args:
            tape: The recorded run.
            live_from: The number of the first event that is not replayed.
            acts_again: Whether tools run during the replay too, to rebuild their world; what they return is verified.
            go_live: Called once, just before the first live call.
            spent: Tells what the run has spent so far.
        """
        self._tape = tape
        self._live_from = live_from
        self._acts_again = acts_again
        self._go_live = go_live
        self._recorder = Recorder(spent=spent)
        self._twins: dict[str, str] = {"0": "0"}
        self._positions: dict[str, int] = {}
        self._verifying: dict[int, Event] = {}
        self.is_live = False
        """Whether the checkpoint was reached."""
        self.divergence: Divergence | None = None
        """What went wrong, also where a program swallowed the exception."""

    @property
    def tape(self) -> Tape:
        """The events from the checkpoint on."""
        return self._recorder.tape

    @property
    def fault(self) -> str:
        """Why the run is no continuation of the recording; empty when it is one."""
        if self.divergence is not None:
            return f"the replay diverged: {self.divergence}"
        return "" if self.is_live else "the replay ended before the checkpoint"

    def begin(self, entry: Entry) -> Replayed | None:
        """Answer a call from the tape, or let it run.

        Raises:
            Divergence: When the tape has another call there.
        """
        if self.divergence is not None:
            raise self.divergence
        if self.is_live:
            return self._recorder.begin(entry)
        event = self._expected(entry)
        if event.number >= self._live_from:
            self.is_live = True
            if self._go_live is not None:
                self._go_live()
            return self._recorder.begin(entry)
        self._check(entry, event)
        self._positions[event.branch] = self._positions.get(event.branch, 0) + 1
        # An action in plain code is performed again, since nobody can keep it from the program.
        if event.kind == "action" or (event.kind == "tool" and self._acts_again):
            self._verifying[entry.number] = event
            return None
        if event.kind == "tool":
            self._skip_inside(event)
        return Replayed(_own_copy(event.output), event.error)

    def end(self, entry: Entry, output: Any, error: BaseException | None) -> None:
        """Verify what an action returned during the replay; write the end of a live call down.

        Raises:
            Divergence: When it returned something else than in the recording.
        """
        event = self._verifying.pop(entry.number, None)
        if event is None:
            self._recorder.end(entry, output, error)
            return
        got = fingerprint(output) if error is None else f"{type(error).__name__}: {error}"
        if got != event.outcome_key:
            shown = repr(output if error is None else error)
            raise self._diverge(event.describe(), f"the observation {_shown(event)}", f"observed {shown:.300}")

    def _expected(self, entry: Entry) -> Event:
        twin = self._twins.get(entry.branch.path)
        if twin is None:
            return self._claim(entry)
        events = self._tape.branch(twin)
        position = self._positions.get(twin, 0)
        if position >= len(events):
            raise self._diverge(f"the end of branch {twin}", "no further call", f"calls {entry.node}")
        return events[position]

    def _claim(self, entry: Entry) -> Event:
        """Find the recorded branch that a new branch is: one that starts with the same call and is not taken."""
        taken = set(self._twins.values())
        starts = {event.branch: event for event in reversed(self._tape.events) if event.branch not in taken}
        starts = {path: event for path, event in starts.items() if path.count(".") == entry.branch.path.count(".")}
        for path, event in sorted(starts.items(), key=lambda item: item[1].number):
            if (event.node, event.input_key) == (entry.node, entry.input_key):
                self._twins[entry.branch.path] = path
                return event
        raise self._diverge(
            f"a parallel call of {entry.node}", "no such call", f"calls it with inputs {entry.input_key}"
        )

    def _check(self, entry: Entry, event: Event) -> None:
        where = event.describe()
        if (entry.kind, entry.node) != (event.kind, event.node):
            raise self._diverge(where, event.node, f"calls {entry.node}")
        if entry.source != event.source:
            raise self._diverge(where, f"the source {event.source}", f"comes from {entry.source}")
        if entry.input_key != event.input_key:
            raise self._diverge(where, f"the inputs {event.inputs!r:.300}", f"has {dict(entry.inputs)!r:.300}")

    def _skip_inside(self, tool: Event) -> None:
        """Pass over the calls that happened inside a tool call that is not run again."""
        inside = {tool.number}
        for event in self._tape.events:
            if event.inside in inside:
                inside.add(event.number)
                if event.branch == tool.branch:
                    self._positions[event.branch] = self._positions.get(event.branch, 0) + 1

    def _diverge(self, where: str, expected: str, got: str) -> Divergence:
        self.divergence = Divergence(where, expected, got)
        return self.divergence


def _shown(event: Event) -> str:
    return repr(event.output if event.error is None else event.error)[:300]


def _own_copy(value: Any) -> Any:
    """Return a copy that later changes of the original do not reach, where the value can be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  whatever a user's object raises, sharing it is the best that can be done
        return value
