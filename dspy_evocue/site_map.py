"""List the call sites that a program really uses, by running it on examples or by reading recordings of such runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dspy_combee.runtime.execution.base import Executor
from dspy_combee.runtime.execution.threads import ThreadExecutor
from dspy_evocue.call_sites import CallSite
from dspy_evocue.checkpoints import Tape
from dspy_evocue.environments import Environment, ForkingEnvironment
from dspy_evocue.episodes import Recording, check_example, plan_runs, record_run
from dspy_evocue.features import FeatureFunction
from dspy_evocue.instrument import editable_predictors, frozen_predictors


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge that was used: control went from `source` to `target`."""

    source: str
    target: str
    count: int
    """How often, over all runs."""
    runs: int
    """In how many of the runs."""

    @property
    def site(self) -> CallSite:
        """The edge as an edit names it; only edges into a predictor can carry one."""
        return CallSite(self.source, self.target)

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True, slots=True)
class Node:
    """One predictor or tool of the program."""

    name: str
    """As `named_predictors()` spells it; `tool:` and its name for a tool."""
    calls: int
    """How often it was entered, over all runs; 0 for one that was never reached."""
    attachable: bool
    """Whether an edit can be attached to its entries."""
    note: str = ""
    """Why not, or under which other names the program holds it."""
    instructions: str = ""
    """What the predictor is told; empty for a tool."""


@dataclass(frozen=True, slots=True)
class SiteMap:
    """The call sites of a program, with how often each was used."""

    edges: tuple[Edge, ...]
    """The most used first."""
    nodes: tuple[Node, ...]
    """Editable predictors in the program's order, then tools, then what cannot be attached."""
    runs: int
    """How many runs it comes from."""
    failures: tuple[str, ...] = ()
    """What the runs that failed raised."""

    @property
    def sites(self) -> tuple[CallSite, ...]:
        """The edges on which an edit can act, the most used first."""
        attachable = {node.name for node in self.nodes if node.attachable}
        return tuple(edge.site for edge in self.edges if edge.target in attachable)

    def count(self, source: str, target: str) -> int:
        """Return how often control went along edges that this pattern names (`recurring`, `tool:*`, `*`, ...)."""
        pattern = CallSite(source, target)
        return sum(edge.count for edge in self.edges if pattern.matches(edge.source, edge.target))

    def to_dict(self) -> dict[str, Any]:
        """Return the map as plain JSON values."""
        return asdict(self)

    def mermaid(self) -> str:
        """Return the graph as Mermaid text, the counts on its edges."""
        from dspy_evocue.report.mermaid import site_map_mermaid

        return site_map_mermaid(self)

    def _repr_html_(self) -> str:
        from dspy_evocue.report.html import site_map_html

        return site_map_html(self)

    def __str__(self) -> str:
        width = max((len(str(edge)) for edge in self.edges), default=0)
        lines = [f"{edge!s:<{width}}  {edge.count:>5} in {edge.runs} of {self.runs} runs" for edge in self.edges]
        lines += [f"{node.name}: {node.note}" for node in self.nodes if node.note]
        lines += [f"{node.name}: never reached" for node in self.nodes if node.attachable and not node.calls]
        return "\n".join(lines)


def list_sites(
    program: Any,
    examples: Sequence[Any] = (),
    *,
    recordings: Sequence[Recording] = (),
    environment: Environment | None = None,
    features: Sequence[FeatureFunction] = (),
    num_threads: int = 1,
    executor: Executor | None = None,
) -> SiteMap:
    """Return the edges that a program uses, with counts.

    Args:
        program: Any DSPy module; it is not changed.
        examples: Run with the current language model; their inputs must be marked.
        recordings: Runs that exist already; they need no language model.
        environment: Where the tools act during the runs; None to leave them as they are.
        features: As for `paired_trial`.
        num_threads: How many examples run at once. An environment that cannot fork runs them one by one.
        executor: Where they run; by default that many threads.
    """
    plan = plan_runs(program, _no_score, environment=environment, features=tuple(features))
    for example in examples:
        check_example(example)
    alone = environment is not None and not isinstance(environment, ForkingEnvironment)
    runner = executor or ThreadExecutor(1 if alone else num_threads)
    outcomes = runner.run(lambda example: record_run(plan, example), examples)
    made = [outcome.value for outcome in outcomes if outcome.value is not None]
    failures = [f"{type(outcome.error).__name__}: {outcome.error}" for outcome in outcomes if outcome.error is not None]
    every = [*recordings, *made]
    faults = [run.episode.error or run.episode.missing for run in every]
    failures += [str(fault) for fault in faults if fault]
    tapes = [_without_controller_notes(run.tape) for run in every]
    return SiteMap(_edges(tapes), _nodes(program, tapes), len(tapes), tuple(failures))


def _no_score(gold: Any, pred: Any) -> float:
    return 0.0


def _without_controller_notes(tape: Tape) -> Tape:
    """Return the tape without what an explicit controller notes of its own edges: a map of call sites shows others."""
    return Tape(tuple(event for event in tape.events if event.kind not in ("edge", "skill")))


def _edges(tapes: Sequence[Tape]) -> tuple[Edge, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    runs: Counter[tuple[str, str]] = Counter()
    for tape in tapes:
        pairs = [(event.source, event.node) for event in tape.events if event.kind != "frozen"]
        counts.update(pairs)
        runs.update(set(pairs))
    return tuple(Edge(*pair, count, runs[pair]) for pair, count in counts.most_common())


def _nodes(program: Any, tapes: Sequence[Tape]) -> tuple[Node, ...]:
    calls = Counter(event.node for tape in tapes for event in tape.events)
    kinds = {event.node: event.kind for tape in tapes for event in tape.events}
    aliases = _aliases(program)
    editable = [
        Node(
            name, calls[name], True, _alias_note(aliases.get(id(predictor), ()), name), predictor.signature.instructions
        )
        for name, predictor in editable_predictors(program).items()
    ]
    tools = [Node(name, calls[name], False) for name, kind in kinds.items() if kind in ("tool", "mark", "action")]
    frozen = [
        Node(
            name,
            calls[f"frozen:{name}"],
            False,
            "frozen: in a compiled sub-module, or too deep in a container",
            predictor.signature.instructions,
        )
        for name, predictor in frozen_predictors(program).items()
    ]
    made_inside = [
        Node(name, calls[name], False, "cannot be attached: this predictor is made inside forward")
        for name, kind in kinds.items()
        if kind == "unattached"
    ]
    return (*editable, *tools, *frozen, *made_inside)


def _alias_note(names: Sequence[str], own: str) -> str:
    others = [name for name in names if name != own]
    return f"shared: also held as {', '.join(others)}" if others else ""


def _aliases(program: Any) -> dict[int, list[str]]:
    """Return the names under which each predictor is held, by the predictor's identity."""
    held: dict[int, list[str]] = defaultdict(list)
    _collect_aliases(program, "", held, set())
    return held


def _collect_aliases(value: Any, path: str, held: dict[int, list[str]], inside: set[int]) -> None:
    import dspy

    if isinstance(value, dspy.Predict) and path:
        held[id(value)].append(path)
    if isinstance(value, dspy.Module) and id(value) not in inside:
        for name, item in vars(value).items():
            _collect_aliases(item, f"{path}.{name}" if path else name, held, inside | {id(value)})
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _collect_aliases(item, f"{path}[{index}]", held, inside)
    elif isinstance(value, dict):
        for key, item in value.items():
            _collect_aliases(item, f"{path}['{key}']", held, inside)
