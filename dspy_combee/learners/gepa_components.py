"""Tell a program's predictors apart in GEPA's traces, and choose which of them is taught next.

GEPA knows a predictor in a trace by its signature, so that two with equal ones get each other's records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy
from dspy.teleprompt.bootstrap_trace import FailedPrediction

from dspy_combee.instructions import instructions_of, signatures_of
from dspy_combee.learners.gepa_evidence import FeedbackCall

_MARK = "combee_component"


def mark_components(program: dspy.Module) -> dspy.Module:
    """Return a copy of the program in which every predictor's signature carries its name.

    The mark is in a field's private settings and never reaches a prompt. `without_marks` takes it off.
    """
    marked = program.deepcopy()
    for name, predictor in marked.named_predictors():
        signature: Any = predictor.signature
        predictor.signature = signature.with_updated_fields(next(iter(signature.output_fields)), **{_MARK: name})
    return marked


def without_marks(compiled: dspy.Module, original: dspy.Module) -> dspy.Module:
    """Give a compiled program, and the candidates in its detailed results, the original's signatures back.

    The program is one that GEPA built for this run, so it is changed in place; its instructions stay.
    """
    signatures = signatures_of(original)
    results = getattr(compiled, "detailed_results", None)
    for program in (compiled, *(results.candidates if results is not None else ())):
        instructions = instructions_of(program)
        for name, predictor in program.named_predictors():
            predictor.signature = signatures[name].with_instructions(instructions[name])
    return compiled


def component_of(predictor: Any) -> str | None:
    """Return the name that a predictor in a trace was marked with; None when it is none of the program's own."""
    fields = predictor.signature.output_fields.values()
    return next((name for field in fields if (name := (field.json_schema_extra or {}).get(_MARK))), None)


def reached_components(trajectories: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the names of the predictors that were called in these trajectories."""
    names = {component_of(step[0]) for trajectory in trajectories for step in trajectory["trace"]}
    return {name for name in names if name is not None}


def feedback_calls(
    trajectories: Sequence[Mapping[str, Any]], names: Sequence[str], program: dspy.Module
) -> list[FeedbackCall]:
    """Return the calls of the metric that GEPA will make for the feedback of these predictors.

    Where a predictor was called several times in a rollout, GEPA draws one of the calls: that one is not foreseen.

    Args:
        trajectories: The rollouts.
        names: The predictors that are about to be taught.
        program: The program that GEPA was given; its predictors stand in the calls.
    """
    predictors = dict(program.named_predictors())
    calls: list[FeedbackCall] = []
    for name in names:
        for trajectory in trajectories:
            steps = [step for step in trajectory["trace"] if component_of(step[0]) == name]
            if len(steps) != 1 or any(
                isinstance(part, FailedPrediction) for part in (steps[0][2], trajectory["prediction"])
            ):
                continue
            _, inputs, outputs = steps[0]
            own = [(predictors[name], inputs, outputs)]
            calls.append(FeedbackCall(trajectory["example"], trajectory["prediction"], trajectory["trace"], name, own))
    return calls


class ObservedComponentSelector:
    """A GEPA component selector that asks the user's own one and passes over what cannot be taught.

    Frozen predictors are never chosen, and one that no rollout of the batch has called only where no other was.
    """

    def __init__(
        self,
        own: Any,
        *,
        frozen: Sequence[str],
        on_selected: Callable[[Sequence[Any], Mapping[str, str], Sequence[str]], None],
    ) -> None:
        """Wrap a selector.

        Args:
            own: The user's: a name of GEPA's or an object.
            frozen: Predictors whose instruction must stay.
            on_selected: Told of the rollouts, the candidate and the choice, just before GEPA builds the records.
        """
        self._own = _component_selector(own)
        self._frozen = frozenset(frozen)
        self._on_selected = on_selected

    def __call__(
        self, state: Any, trajectories: Any, subsample_scores: Any, candidate_idx: int, candidate: Mapping[str, str]
    ) -> list[str]:
        """Return the components to update."""
        names = list(self._own(state, trajectories, subsample_scores, candidate_idx, candidate))
        reached = reached_components(trajectories)
        chosen = [name for name in names if name not in self._frozen]
        if not any(name in reached for name in chosen):
            others = [name for name in candidate if name not in self._frozen and name in reached]
            chosen = [others[state.i % len(others)]] if others else chosen
        self._on_selected(trajectories, candidate, chosen)
        return chosen


def _component_selector(own: Any) -> Any:
    from gepa.strategies.component_selector import AllReflectionComponentSelector, RoundRobinReflectionComponentSelector

    named = {"round_robin": RoundRobinReflectionComponentSelector, "all": AllReflectionComponentSelector}
    if isinstance(own, str):
        if own not in named:
            raise ValueError(f"component_selector must be one of {sorted(named)} or a selector, got {own!r}")
        return named[own]()
    return own
