"""The state of one execution: which node each branch was at last, which edits act, and which call comes next.

An execution travels in `dspy.settings.context` under a private key, so that it follows DSPy's own threads and tasks.
Control forks where a call runs in another thread or task than the call that made it, and joins when the outer call
goes on. This file decides sources, visits and edits; what is recorded or replayed is a journal's decision.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dspy.dsp.utils.settings import settings, thread_local_overrides

from dspy_evocue.call_sites import ANY
from dspy_evocue.edits import Edit, latest_applicable
from dspy_evocue.entries import ACTIONS, Branch, Entry, Frame, NodeKind, Replayed
from dspy_evocue.features import FeatureSet, RunState, reads_like_completion, reads_like_failure
from dspy_evocue.fingerprints import fingerprint

SETTINGS_KEY = "_evocue_executions"
"""Where the executions of the current call live: a tuple, the innermost program's last."""

_NO_PLACES = ("frozen", "unattached", "edge", "skill")
"""Kinds that are noted without control being said to have been there."""


class Journal(Protocol):
    """What records or replays the entries of an execution; called under the execution's lock, in order of number."""

    @property
    def wants_features(self) -> bool:
        """Whether entries must carry the features of the state."""
        ...

    @property
    def is_live(self) -> bool:
        """Whether calls run by now: false before the checkpoint of a replay, where edits under trial must not act."""
        ...

    def begin(self, entry: Entry) -> Replayed | None:
        """Note the start of a call; return its recorded outcome, or None to let it run."""
        ...

    def end(self, entry: Entry, output: Any, error: BaseException | None) -> None:
        """Note how a call that ran has ended."""
        ...


class World(Protocol):
    """The tools' world of one execution."""

    def bind(self, function: Any) -> Any:
        """Return the function as it acts on this world."""
        ...


class Execution:
    """One run of one program. Everything mutable in it is guarded by its lock."""

    def __init__(
        self,
        token: str,
        edits: tuple[Edit, ...],
        features: FeatureSet,
        *,
        program: Any = None,
        tried: tuple[Edit, ...] = (),
        journal: Journal | None = None,
        world: World | None = None,
        rollout_id: int | None = None,
        max_calls: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """Start at START, on the current thread and task.

        Args:
            token: Under which token the program's predictors know their names.
            edits: In order; of several that apply, the latest acts.
            features: What rules can test.
            program: Whose run it is, for a program that asks which of its edges carry skills.
            tried: Edits after those, which act on edges only once the journal is live.
            journal: Records or replays the calls; None for an ordinary run.
            world: Where the tools act; None to leave them as they are.
            rollout_id: Makes the calls of this run distinct from other runs' in DSPy's cache; None for no change.
            max_calls: Tells the most entries of each node that the program allows itself, where it says so; asked once,
                when a feature is first wanted.
        """
        self.token = token
        self.program = program
        self.edits = (*edits, *tried)
        self.features = features
        self.journal = journal
        self.world = world
        self.rollout_id = rollout_id
        self.root = Frame(_owner(), Branch("0"))
        self.outage = ""
        """The failure of a language model during the run, whatever the program made of it."""
        self._own = edits
        self._on_predictors = tuple(edit for edit in self.edits if edit.acts_on == "predictor")
        self._read_max_calls = max_calls
        self._max_calls: Mapping[str, int] | None = None
        self._frames: dict[str, Frame] = {}
        self._numbers = itertools.count()
        self._lock = threading.RLock()

    @property
    def must_see_every_call(self) -> bool:
        """Whether it has to be known where entries come from, or what tools said.

        Not so when every edit acts on one call, whatever came before.
        """
        return self.journal is not None or not all(
            edit.scope == "call" and not edit.when.tests and all(site.source == ANY for site in edit.sites)
            for edit in self._on_predictors
        )

    @property
    def edits_on_edges(self) -> tuple[Edit, ...]:
        """The edits on a controller's edges that may act by now.

        A predictor's call before the checkpoint is answered from the tape, whatever edits say; a controller walks.
        """
        edits = self.edits if self.journal is None or self.journal.is_live else self._own
        return tuple(edit for edit in edits if edit.acts_on == "edge")

    def open_frame(self, call_id: str, parent_id: str | None) -> None:
        """Note that a module's or a tool's call has started."""
        with self._lock:
            parent = self._frames.get(parent_id or "", self.root)
            branch = self._branch_from(parent)
            self._frames[call_id] = Frame(_owner(), branch, parent=parent, tool_entry=parent.tool_entry)

    def close_frame(self, call_id: str) -> None:
        """Note that it has ended."""
        with self._lock:
            frame = self._frames.pop(call_id, None)
            if frame is not None:
                frame.is_open = False

    def enter(
        self, kind: NodeKind, node: str, inputs: Mapping[str, Any], call_id: str | None
    ) -> tuple[Entry, Replayed | None]:
        """Note that a node is entered; say which edit acts, and whether the call is to be replayed."""
        with self._lock:
            frame, branch = place = self._at(call_id)
            features = self._features_at(kind, node, branch, inputs)
            edit = self._acting_edit(kind, node, branch, frame, features)
            entry, replayed = self._begin(place, kind, node, inputs, source=branch.last, features=features, edit=edit)
            _move_to(entry)
            if kind == "tool":
                frame.tool_entry = entry
            return entry, replayed

    def cross(
        self, source: str, target: str, inputs: Mapping[str, Any], features: Mapping[str, str], call_id: str | None
    ) -> None:
        """Note that a controller goes from one of its nodes to another.

        Args:
            source: The node that control leaves; "START" for the first.
            target: The node that control is on its way to.
            inputs: What of the state is compared with a recording.
            features: The state as rules can test it.
            call_id: The call of the controller.
        """
        with self._lock:
            place = self._at(call_id)
            entry, replayed = self._begin(place, "edge", target, inputs, source=source, features=features)
            self.leave(entry, None, None, was_replayed=replayed is not None)

    def enter_skill(self, edit: Edit, source: str, call_id: str | None) -> tuple[Entry, Replayed | None]:
        """Note that the skill of an edit starts on a controller's edge; `leave` ends it."""
        with self._lock:
            place = self._at(call_id)
            begun = self._begin(place, "skill", edit.edit_id, {}, source=source, features={}, edit=edit)
            place[1].within = edit.edit_id
            return begun

    def _at(self, call_id: str | None) -> tuple[Frame, Branch]:
        """Return where a call is made from, once all that forked off there has been joined."""
        frame = self._frames.get(call_id or "", self.root)
        branch = self._branch_from(frame)
        branch.join()
        return frame, branch

    def _begin(
        self,
        place: tuple[Frame, Branch],
        kind: NodeKind,
        node: str,
        inputs: Mapping[str, Any],
        *,
        source: str,
        features: Mapping[str, str],
        edit: Edit | None = None,
    ) -> tuple[Entry, Replayed | None]:
        frame, branch = place
        entry = Entry(
            next(self._numbers),
            kind,
            node,
            source,
            branch,
            frame,
            inputs,
            fingerprint(inputs) if self.journal is not None or kind == "tool" else "",
            features,
            edit,
            frame.tool_entry.number if frame.tool_entry is not None else None,
            branch.within,
        )
        return entry, self.journal.begin(entry) if self.journal is not None else None

    def leave(self, entry: Entry, output: Any, error: BaseException | None, *, was_replayed: bool = False) -> None:
        """Note that the call of an entry has ended; control is at its node again."""
        with self._lock:
            branch = entry.branch
            branch.join()
            if entry.kind in ("predictor", "tool"):
                branch.last = entry.node
            if entry.kind == "skill":
                branch.within = None
            if entry.kind == "tool":
                observation = output if error is None else error
                branch.last_observation = observation
                branch.last_failed = reads_like_failure(observation)
                branch.completion_seen = branch.completion_seen or reads_like_completion(observation)
            if self.journal is not None and not was_replayed:
                self.journal.end(entry, output, error)

    def _branch_from(self, frame: Frame) -> Branch:
        """Return the branch of a call made from this frame, by whichever thread and task is making it."""
        owner = _owner()
        if owner == frame.owner:
            return frame.branch
        identities = (owner[1],) if owner[1] is not None else (thread_local_overrides.get(), _hop_from(frame))
        key = tuple(map(id, identities))
        if key not in frame.hops or frame.hops[key][0].is_joined:
            frame.hops[key] = (frame.branch.fork(), identities)
        return frame.hops[key][0]

    def _features_at(self, kind: NodeKind, node: str, branch: Branch, inputs: Mapping[str, Any]) -> Mapping[str, str]:
        if kind != "predictor":
            return {}
        wanted = self.journal is not None and self.journal.wants_features
        if not wanted and not any(
            edit.when.tests and edit.is_entered(branch.last, node) for edit in self._on_predictors
        ):
            return {}
        if self._max_calls is None:
            self._max_calls = self._read_max_calls()
        state = RunState(
            node=node,
            source=branch.last,
            visit=branch.visits.get(node, 0) + 1,
            inputs=inputs,
            tools_called=branch.tools_called,
            last_arguments=branch.last_arguments,
            last_observation=branch.last_observation,
            last_failed=branch.last_failed,
            is_repeated=len(branch.action_keys) == 2 and branch.action_keys[0] == branch.action_keys[1],
            completion_seen=branch.completion_seen,
            predictor_calls=branch.predictor_calls,
            max_calls=self._max_calls.get(node),
        )
        return self.features.evaluate(state)

    def _acting_edit(
        self, kind: NodeKind, node: str, branch: Branch, frame: Frame, features: Mapping[str, str]
    ) -> Edit | None:
        if kind in ACTIONS:
            branch.lingering = tuple(item for item in branch.lingering if item[1] is not None)
        if kind != "predictor" or not self._on_predictors:
            return None
        branch.lingering = tuple(item for item in branch.lingering if item[1] is None or item[1].is_open)
        entered = [
            edit for edit in self._on_predictors if edit.is_entered(branch.last, node) and edit.when.holds(features)
        ]
        lasting = [edit for edit, _ in branch.lingering]
        acting = latest_applicable(entered + lasting, self.edits)
        if acting is not None and acting in entered and acting.scope != "call":
            until = None if acting.scope == "next_action" else (frame.parent or self.root)
            branch.lingering += ((acting, until),)
        return acting


def _move_to(entry: Entry) -> None:
    branch = entry.branch
    if entry.kind in _NO_PLACES:
        return
    branch.last = entry.node
    branch.visits[entry.node] = branch.visits.get(entry.node, 0) + 1
    if entry.kind == "predictor":
        branch.predictor_calls += 1
    if entry.kind == "tool":
        branch.tools_called += (entry.node.partition(":")[2],)
        branch.action_keys = (*branch.action_keys[-1:], f"{entry.node} {entry.input_key}")
        branch.last_arguments = entry.inputs


def current_executions() -> tuple[Execution, ...]:
    """Return the executions of the call that is running, the outermost program's first."""
    return settings.get(SETTINGS_KEY, ())


_hop: contextvars.ContextVar[tuple[int, object] | None] = contextvars.ContextVar("evocue_hop", default=None)


def _hop_from(frame: Frame) -> object:
    """Return what the calls of one piece of work share that another thread does for this frame.

    A thread of a pool serves several pieces. A worker of `dspy.Parallel` has a settings dictionary of its own for each
    (and one context for all); a pool that is given copied contexts has a context of its own for each (and settings
    that are shared). So both are looked at: the settings by the caller, the context here.
    """
    hop = _hop.get()
    if hop is None or hop[0] != frame.serial:
        hop = (frame.serial, object())
        _hop.set(hop)
    return hop[1]


def _owner() -> tuple[int, Any]:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), task
