"""The six-node controller for agents that act by writing code: start, prepare, pre_commit, commit, route, stop.

Pure: knows neither dspy nor a model. `code_agent.build_code_agent` gives the nodes their parts.
"""

from __future__ import annotations

from dspy_evocue.control.draft import DraftState
from dspy_evocue.control.graph import ControlGraph
from dspy_evocue.control.operations import ERROR, OPERATIONS
from dspy_evocue.control.wiring import Condition, Edge, Node


def code_agent_graph(operations: tuple[str, ...] = tuple(OPERATIONS)) -> ControlGraph:
    """Return the graph of the code agent.

    `start` opens the world, `prepare` writes the next piece of code, `pre_commit` checks it without running it,
    `commit` runs it, `route` asks whether the task is done, `stop` ends the run. Code that must not run goes to
    `route` and is shown to the next `prepare` with its problem. The first entry of the model is `start -> prepare`,
    the recurring one `route -> prepare`; between writing and running lies `prepare -> pre_commit`. A check whose own
    reply cannot be read leaves the code as it was, valid or not.

    Args:
        operations: The primitive operations that skills may use.
    """
    valid = Condition(draft=DraftState.PENDING_VALID)
    return ControlGraph(
        nodes=(
            Node("start", "code"),
            Node("prepare", "draft"),
            Node("pre_commit", "validate"),
            Node("commit", "commit"),
            Node("route", "code", outcomes=("continue", "finished")),
            Node("stop", "stop"),
        ),
        edges=(
            Edge("start", "prepare"),
            Edge("prepare", "route", Condition(ERROR)),
            Edge("prepare", "pre_commit"),
            Edge("pre_commit", "commit", Condition(ERROR, DraftState.PENDING_VALID)),
            Edge("pre_commit", "route", Condition(ERROR)),
            Edge("pre_commit", "commit", valid),
            Edge("pre_commit", "route"),
            Edge("commit", "route"),
            Edge("route", "stop", Condition("finished")),
            Edge("route", "prepare"),
        ),
        start="start",
        operations=operations,
    )
