"""Run a user's `dspy.GEPA` with Combee's proposer, batch sizes and records, without changing it.

The optimizer is copied, the attributes below are set on the copy, and its own `compile` is called: prompts, scores,
parents and metric calls of a run with small batches are those of plain `dspy.GEPA`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy
from dspy.teleprompt.gepa.gepa import AUTO_RUN_SETTINGS

from dspy_combee.learners.batch_control import BatchControl
from dspy_combee.learners.gepa_evidence import AbortSwitch, CrashWatch, EvidenceLog, SourcedMetric
from dspy_combee.learners.gepa_observer import GepaObserver
from dspy_combee.learners.gepa_proposer import CombeeProposer
from dspy_combee.learners.gepa_records import SMALL_BATCH
from dspy_combee.learners.gepa_sampler import ResumableBatchSampler, reseeded_selector
from dspy_combee.learners.gepa_stopping import Stopping

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class GepaParts:
    """What one run plugs into the copied optimizer."""

    metric: SourcedMetric
    proposer: CombeeProposer
    observer: GepaObserver
    stopping: Stopping
    control: BatchControl
    crashes: CrashWatch
    evidence: EvidenceLog
    abort: AbortSwitch


@dataclass(frozen=True, slots=True)
class GepaSettings:
    """What the user asked of the run beside the optimizer itself."""

    seed: int
    log_dir: str | None
    max_metric_calls: int | None
    """A limit of the budget on top of the optimizer's own."""
    frozen: tuple[str, ...] = ()
    """Predictors whose instruction must stay as it is."""
    is_resumed: bool = False
    """Whether GEPA will find a checkpoint, so that the seed need not be evaluated again."""
    own_sampler: bool = field(default=False)
    """Whether the user's `gepa_kwargs` bring a batch sampler, which then decides the batches."""


def metric_call_limit(base: Any, program: dspy.Module, train_size: int, val_size: int | None) -> int:
    """Return the metric calls that the optimizer will allow itself, as its own `compile` computes them."""
    if base.max_full_evals is not None:
        return base.max_full_evals * (train_size + (val_size or 0))
    if base.auto is not None:
        return base.auto_budget(
            num_preds=max(len(program.named_predictors()), 1),
            num_candidates=AUTO_RUN_SETTINGS[base.auto]["n"],
            valset_size=val_size if val_size is not None else train_size,
        )
    return base.max_metric_calls


def wire(base: Any, parts: GepaParts, settings: GepaSettings, limit: int) -> Any:
    """Return a copy of the optimizer with Combee's parts in it; the user's own callbacks, stoppers and strategies stay.

    Batches of up to three examples leave the optimizer's sampler and selector alone: such a run is plain `dspy.GEPA`.
    """
    wired = copy.copy(base)
    kwargs = dict(base.gepa_kwargs)
    wired.metric_fn = parts.metric
    wired.custom_instruction_proposer = parts.proposer
    wired.add_format_failure_as_feedback = True
    wired.auto, wired.max_full_evals, wired.max_metric_calls = None, None, limit
    wired.log_dir = settings.log_dir
    wired.component_selector = ObservedComponentSelector(base.component_selector, parts.observer, settings.frozen)
    kwargs["callbacks"] = [*(kwargs.get("callbacks") or ()), parts.observer]
    kwargs["stop_callbacks"] = [parts.stopping]
    if not settings.own_sampler:
        _set_batches(wired, kwargs, base, parts, settings)
    if settings.is_resumed:
        kwargs["val_evaluation_policy"] = _without_seed_evaluation(kwargs.get("val_evaluation_policy"))
    wired.gepa_kwargs = kwargs
    return wired


def mark_equal_signatures(program: dspy.Module) -> dspy.Module:
    """Return a copy of the program in which no two predictors have equal signatures.

    GEPA tells predictors in a trace apart by their signature; two equal ones get each other's records. The mark is in
    a field's private settings and never reaches a prompt. `without_marks` takes it off.
    """
    marked = program.deepcopy()
    predictors = marked.named_predictors()
    for name, predictor in predictors:
        signature = predictor.signature
        if sum(signature.equals(other.signature) for _, other in predictors) > 1:
            field_name = next(iter(signature.output_fields))
            predictor.signature = signature.with_updated_fields(field_name, combee_component=name)
    return marked


def without_marks(compiled: dspy.Module, original: dspy.Module) -> dspy.Module:
    """Give a compiled program, and the candidates in its detailed results, the original's signatures back.

    The program is one that GEPA built for this run, so it is changed in place; its instructions stay.
    """
    signatures = {name: predictor.signature for name, predictor in original.named_predictors()}
    results = getattr(compiled, "detailed_results", None)
    for program in (compiled, *(results.candidates if results is not None else ())):
        for name, predictor in program.named_predictors():
            predictor.signature = signatures[name].with_instructions(predictor.signature.instructions)
    return compiled


class ObservedComponentSelector:
    """A GEPA component selector that asks the user's own one, and tells the observer whose rollouts are meant."""

    def __init__(self, own: Any, observer: GepaObserver, frozen: Sequence[str]) -> None:
        self._own = _component_selector(own)
        self._observer = observer
        self._frozen = frozenset(frozen)

    def __call__(
        self, state: Any, trajectories: Any, subsample_scores: Any, candidate_idx: int, candidate: Mapping[str, str]
    ) -> list[str]:
        """Return the components to update, none of them frozen."""
        self._observer.select_rollouts(trajectories, candidate)
        names = list(self._own(state, trajectories, subsample_scores, candidate_idx, candidate))
        free = [name for name in names if name not in self._frozen]
        if free or not self._frozen:
            return free
        others = [name for name in candidate if name not in self._frozen]
        return [others[state.i % len(others)]]


def _set_batches(wired: Any, kwargs: dict[str, Any], base: Any, parts: GepaParts, settings: GepaSettings) -> None:
    fixed = parts.control.fixed
    if fixed is not None and fixed <= SMALL_BATCH:
        wired.reflection_minibatch_size = fixed
        return
    wired.reflection_minibatch_size = None
    kwargs["batch_sampler"] = ResumableBatchSampler(
        lambda state: parts.control.size(affordable=affordable_batch(state, wired.max_metric_calls)), settings.seed
    )
    wired.candidate_selection_strategy = reseeded_selector(base.candidate_selection_strategy, settings.seed)


def affordable_batch(state: Any, limit: int | None) -> int | None:
    """Return the largest batch for which parent, child and a validation of the child still fit; None for no limit."""
    if limit is None:
        return None
    val_size = len(state.prog_candidate_val_subscores[0])
    return (limit - state.total_num_evals - val_size) // 2


def _component_selector(own: Any) -> Any:
    from gepa.strategies.component_selector import AllReflectionComponentSelector, RoundRobinReflectionComponentSelector

    named = {"round_robin": RoundRobinReflectionComponentSelector, "all": AllReflectionComponentSelector}
    if isinstance(own, str):
        if own not in named:
            raise ValueError(f"component_selector must be one of {sorted(named)} or a selector, got {own!r}")
        return named[own]()
    return own


def _without_seed_evaluation(policy: Any) -> Any:
    """Return the validation policy with a first look at nothing: a resumed run knows the seed's scores."""
    from gepa.strategies.eval_policy import FullEvaluationPolicy

    resumed = copy.copy(FullEvaluationPolicy() if policy in (None, "full_eval") else policy)
    resumed.get_seed_eval_batch = lambda loader: []
    return resumed
