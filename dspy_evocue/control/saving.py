"""The graph as DSPy's own `save` and `load` see it, and what a saved graph must fit to be taken."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from dspy.predict.parameter import Parameter

from dspy_evocue.control.errors import GraphError
from dspy_evocue.control.graph import ControlGraph


class GraphParameter(Parameter):
    """The graph of a program as one more DSPy parameter, so that it is saved even where the program is a part.

    Args:
        graph: The graph; it is replaced as a whole, never changed.
        features: The features that its conditions may test.
        tellable: The parts that can be given an instruction for one call.

    Raises:
        GraphError: When the graph asks for more than that.
    """

    def __init__(self, graph: ControlGraph, *, features: tuple[str, ...], tellable: tuple[str, ...]) -> None:
        self.features = features
        self.tellable = tellable
        self._require_fit(graph)
        self.graph = graph

    def with_graph(self, graph: ControlGraph) -> GraphParameter:
        """Return the parameter for another graph of the same program."""
        return GraphParameter(graph, features=self.features, tellable=self.tellable)

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """Return the graph as plain JSON values."""
        return self.graph.to_dict()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take the graph that `dump_state` returned.

        Raises:
            GraphError: When it is not sound, has other nodes or operations than this one, tests features that this
                program lacks, or tells something to a part that cannot be told.
        """
        loaded = ControlGraph.from_dict(state)
        if differing := sorted(_interface(loaded) ^ _interface(self.graph)):
            raise GraphError(
                f"a saved graph must have the nodes and operations of the program's; differing: {', '.join(differing)}"
            )
        self._require_fit(loaded)
        self.graph = loaded

    def reset(self) -> None:
        """Keep the graph: it is to a controller what its instructions are to a predictor."""

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphParameter:
        """Return a parameter of its own that shares the graph, which is a frozen value."""
        return copy.copy(self)

    def _require_fit(self, graph: ControlGraph) -> None:
        tested = {test.feature for edge in graph.wiring.edges for test in edge.when.tests}
        if unknown := sorted(tested - set(self.features)):
            raise GraphError(f"conditions may test {', '.join(self.features)}, got {', '.join(unknown)}")
        told = {node.name: node.part for node in graph.wiring.nodes if node.instruction}
        told |= {edge.name: graph.wiring.node(edge.target).part for edge in graph.edges if edge.instruction}
        if deaf := [f"{name} (part {part!r})" for name, part in told.items() if part not in self.tellable]:
            raise GraphError(
                f"only a dspy.Predict or dspy.ChainOfThought can be given an instruction for one call, "
                f"got one for {', '.join(deaf)}"
            )


def _interface(graph: ControlGraph) -> set[str]:
    return {*(f"node {node.name} ({node.operation})" for node in graph.nodes), *graph.operations}
