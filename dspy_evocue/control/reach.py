"""Which draft states can reach which node, and where a run can get stuck: abstract interpretation of a wiring.

An abstract state is a node and the draft state in which it is entered. What an operation makes of the draft is read
off the table; features other than the draft and the outcome are free, so both answers to a test are followed. Under
that reading the analysis is exact: every problem comes with a run that shows it, and a wiring without problems has no
run that fails. A real program's features are not free, so what is accepted here is safe there. Pure: knows neither
dspy nor a model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dspy_evocue.control.draft import DraftState
from dspy_evocue.control.operations import ERROR
from dspy_evocue.control.wiring import Condition, Edge, Wiring


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One node of a run: how it was entered, how it ended, and where control went."""

    node: str
    entered: DraftState
    outcome: str
    draft: DraftState
    """The draft state after the node."""
    features: Mapping[str, str] = field(default_factory=dict)
    """Values of the free features under which control goes to `target`; all others have some other value."""
    target: str | None = None
    """The next node; None when no edge can be taken."""


@dataclass(frozen=True, slots=True)
class StateProblem:
    """A run that cannot go on, with the run."""

    node: str
    """The node that refuses the draft, or that no edge leaves."""
    draft: DraftState
    outcome: str | None
    """The outcome after which no edge can be taken; None when the node refuses the draft it is entered with."""
    trace: tuple[TraceStep, ...]
    """From the start of the program to the fault."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Every (node, draft state) that a run can enter, and every way in which a run can fail."""

    entered: frozenset[tuple[str, DraftState]]
    taken: frozenset[tuple[Edge, DraftState]]
    """Every edge that a run can take, with the draft states in which it takes it."""
    problems: tuple[StateProblem, ...]

    def drafts_at(self, node: str) -> tuple[DraftState, ...]:
        """Return the draft states in which this node can be entered."""
        return tuple(draft for draft in DraftState if (node, draft) in self.entered)

    def drafts_on(self, edge: Edge) -> tuple[DraftState, ...]:
        """Return the draft states in which this edge can be taken."""
        return tuple(draft for draft in DraftState if (edge, draft) in self.taken)


def explore(wiring: Wiring) -> Reach:
    """Follow every run of the wiring from its start with an empty draft, shortest runs first."""
    first: tuple[str, DraftState] = (wiring.start, DraftState.EMPTY)
    traces: dict[tuple[str, DraftState], tuple[TraceStep, ...]] = {first: ()}
    taken: set[tuple[Edge, DraftState]] = set()
    problems: list[StateProblem] = []
    waiting: deque[tuple[str, DraftState]] = deque([first])
    while waiting:
        name, entered = waiting.popleft()
        node, trace = wiring.node(name), traces[name, entered]
        if entered not in node.row.requires:
            problems.append(StateProblem(name, entered, None, trace))
            continue
        if node.operation == "stop":
            continue
        for outcome, draft in node.row.ends(entered):
            for edge, features in ways_out(wiring.edges_from(name), outcome, draft):
                step = TraceStep(name, entered, outcome, draft, features, edge.target if edge else None)
                if edge is None:
                    problems.append(StateProblem(name, draft, outcome, (*trace, step)))
                    continue
                taken.add((edge, draft))
                reached = (edge.target, draft)
                if reached not in traces:
                    traces[reached] = (*trace, step)
                    waiting.append(reached)
    return Reach(frozenset(traces), frozenset(taken), tuple(problems))


def ways_out(edges: tuple[Edge, ...], outcome: str, draft: DraftState) -> Iterator[tuple[Edge | None, dict[str, str]]]:
    """Yield every edge that can be the first whose condition holds, with features under which it is.

    Last comes None when it can happen that no edge holds, except after an unreadable reply, which ends the run with
    the model's own error and is no fault of the wiring.
    """
    earlier: list[Condition] = []
    for edge in edges:
        open_tests = edge.when.open_tests(outcome, draft)
        if open_tests is None:
            continue
        wanted = {test.feature: test.value for test in open_tests}
        is_possible = len(wanted) == len(set(open_tests))
        # An earlier edge lets this one through only if one of its tests can fail while this edge's tests hold.
        if is_possible and all(
            any(wanted.get(test.feature) != test.value for test in condition.open_tests(outcome, draft) or ())
            for condition in earlier
        ):
            yield edge, wanted
        if not open_tests:
            return
        earlier.append(edge.when)
    if outcome != ERROR:
        yield None, {}
