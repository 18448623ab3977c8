"""A controller's run as EvoCUE sees it: which skills of edits may act by now, and what the run's record is told.

A recorded run notes every edge that it takes, with the state as rules test it: an edge is where the skill of an edit
can act first, so it is what a trial goes back to. Before that, the skills under trial do not act. A skill that runs is
noted from its entry to its return, and with it what it could not do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspy.utils.callback_context import ACTIVE_CALL_ID

from dspy_evocue.call_sites import START
from dspy_evocue.control.compile import exit_name
from dspy_evocue.control.graph import ControlGraph
from dspy_evocue.control.graph_skill_edit import GraphSkillEdit, with_edits
from dspy_evocue.control.machine import choose_edge
from dspy_evocue.control.operations import ERROR
from dspy_evocue.control.skills import FAILURE, Skill
from dspy_evocue.control.state import ControlState
from dspy_evocue.control.wiring import Edge, Node, Wiring
from dspy_evocue.entries import Entry, Replayed
from dspy_evocue.running import Execution, current_executions


@dataclass(frozen=True, slots=True)
class _RunningSkill:
    """A skill of an edit that a noted run is in."""

    skill: Skill
    edge: Edge
    """Through which it was entered."""
    state: ControlState
    """Before it."""
    entry: Entry
    replayed: Replayed | None

    def changed(self, edge: Edge, state: ControlState) -> bool:
        """Say whether the program goes on otherwise than past the skill, or in another state."""
        before, after = ((one.draft, one.notes, one.goals, one.history) for one in (self.state, state))
        return edge.target != self.edge.addressee or before != after


class EditedWalk:
    """What one run of a controller shares with the execution that it belongs to."""

    def __init__(self, program: Any, graph: ControlGraph, carried: Sequence[GraphSkillEdit]) -> None:
        """Find the execution of this run, if it has one.

        Args:
            program: The controller.
            graph: Its graph without the skills of edits.
            carried: The edits that act in a run without an execution.
        """
        mine = (execution for execution in reversed(current_executions()) if execution.program is program)
        self._execution: Execution | None = next(mine, None)
        self._graph = graph
        self._carried = carried
        self._is_noted = self._execution is not None and self._execution.journal is not None
        self._running: _RunningSkill | None = None
        self._skills: dict[str, tuple[Skill, GraphSkillEdit]] = {}
        self.wiring: Wiring = graph.wiring
        """The nodes and edges with the skills that may act by now."""
        self._update()

    def choose(self, state: ControlState, features: Callable[[], Mapping[str, str]], outcome: str) -> Edge:
        """Return the edge that control takes, and note it.

        Args:
            state: After the operation of the node that control is at.
            features: Tells the state as rules test it; asked only where a condition or a record wants it.
            outcome: How the operation ended.

        Raises:
            RoutingError: When no edge can be taken.
            Divergence: When a replayed run takes another edge than its recording.
        """
        is_tested = any(edge.when.tests for edge in self.wiring.edges_from(state.node))
        known = features() if self._is_noted or is_tested else {}
        edge = choose_edge(self.wiring, state, known, outcome=outcome)
        if not self._is_noted:
            return edge
        self._note(edge, state, known)
        if self._update():
            # The run has just reached the checkpoint of a trial: from this edge on, the skills under trial act.
            edge = choose_edge(self.wiring, state, known, outcome=outcome)
        self._note_skill(edge, state)
        return edge

    def end(self, spent: str | None = None, node: Node | None = None) -> None:
        """Note the end of a skill that the run has ended in.

        Args:
            spent: The limit that kept the operation from being performed; None when something was raised.
            node: The node of that operation.
        """
        if self._running is not None:
            failure = f"{spent} was reached before {node.operation}" if spent and node is not None else ""
            self._leave_skill(failure, changed=True)

    def _update(self) -> bool:
        """Take the skills that may act by now into the wiring; say whether there are others than before."""
        acting = self._carried if self._execution is None else self._execution.edits_on_edges
        edits = [edit for edit in acting if isinstance(edit, GraphSkillEdit)]
        skills = {skill.skill_id: (skill, edit) for edit in edits for skill in edit.skills}
        is_new = skills.keys() != self._skills.keys()
        if is_new:
            self._skills = skills
            self.wiring = with_edits(self._graph, edits).wiring
        return is_new

    def _note(self, edge: Edge, state: ControlState, features: Mapping[str, str]) -> None:
        target = edge.addressee if edge.skill else edge.target
        if target and self._execution is not None:
            source = START if edge.source == self._graph.start else edge.source
            self._execution.cross(source, target, {"draft": state.draft.text}, features, ACTIVE_CALL_ID.get())

    def _note_skill(self, edge: Edge, state: ControlState) -> None:
        if self._running is not None:
            if not self.wiring.node(edge.target).skill:
                failed = edge.source == exit_name(self._running.skill, FAILURE)
                self._leave_skill(self._reason(state) if failed else "", changed=self._running.changed(edge, state))
        elif edge.skill in self._skills and self._execution is not None:
            skill, edit = self._skills[edge.skill]
            begun = self._execution.enter_skill(edit, edge.source, ACTIVE_CALL_ID.get())
            self._running = _RunningSkill(skill, edge, state, *begun)

    def _leave_skill(self, failure: str, *, changed: bool) -> None:
        assert self._running is not None, "a skill runs"
        assert self._execution is not None, "a skill is noted in an execution"
        entry, replayed = self._running.entry, self._running.replayed
        self._running = None
        if failure:
            entry.failures.append(failure)
        self._execution.leave(entry, changed, None, was_replayed=replayed is not None)

    def _reason(self, state: ControlState) -> str:
        """Say why a skill that stands at its failure exit has come there."""
        operation = self.wiring.node(state.source).operation
        if state.outcome == ERROR:
            return f"the reply to {operation} could not be read"
        return f"the skill ended in failure after {operation}"
