"""Run a user's `dspy.GEPA` with Combee's proposer, batch sizes and records, without changing it.

The optimizer is copied, the attributes below are set on the copy, and its own `compile` is called: prompts, scores,
parents and metric calls of a run with small batches are those of plain `dspy.GEPA`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.teleprompt.gepa.gepa import AUTO_RUN_SETTINGS

from dspy_combee.learners.batch_control import BatchControl
from dspy_combee.learners.gepa_components import ObservedComponentSelector
from dspy_combee.learners.gepa_crashes import CrashWatch
from dspy_combee.learners.gepa_evidence import EvidenceLog, SourcedMetric
from dspy_combee.learners.gepa_observer import GepaObserver
from dspy_combee.learners.gepa_proposer import CombeeProposer
from dspy_combee.learners.gepa_resume import RememberedDraws, ResumedPolicy
from dspy_combee.learners.gepa_sampler import ResumableBatchSampler, reseeded_selector
from dspy_combee.learners.gepa_stopping import Stopping
from dspy_combee.runtime.abort import AbortSwitch
from dspy_combee.scan import SMALL_BATCH


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
    on_selected: Callable[[Sequence[Any], Mapping[str, str], Sequence[str]], None]
    """Told which components of which rollouts are about to be taught."""
    draws: RememberedDraws | None = None
    """Keeps GEPA's own draws beside the checkpoint; None where Combee's sampler needs no keeping."""


@dataclass(frozen=True, slots=True)
class GepaSettings:
    """What the user asked of the run beside the optimizer itself."""

    seed: int
    log_dir: str | None
    frozen: tuple[str, ...] = ()
    """Predictors whose instruction must stay as it is."""
    is_resumed: bool = False
    """Whether GEPA will find a checkpoint, so that the seed need not be evaluated again."""
    own_sampler: bool = False
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
    wired.component_selector = ObservedComponentSelector(
        base.component_selector, frozen=settings.frozen, on_selected=parts.on_selected
    )
    kwargs["callbacks"] = [*(kwargs.get("callbacks") or ()), parts.observer]
    kwargs["stop_callbacks"] = [parts.stopping]
    if not settings.own_sampler:
        _set_batches(wired, kwargs, base, parts, settings)
    if settings.is_resumed:
        kwargs["val_evaluation_policy"] = ResumedPolicy(kwargs.get("val_evaluation_policy"))
    if parts.draws is not None:
        kwargs["sampling_strategy"] = parts.draws
    wired.gepa_kwargs = kwargs
    return wired


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
    """Return the largest batch for which parent, child and a validation of the child still fit; None for no limit.

    With several proposals an iteration, as many as the last one had have to fit.
    """
    if limit is None:
        return None
    proposals = next((step["n_tasks"] for step in reversed(state.full_program_trace) if "n_tasks" in step), 1)
    val_size = len(state.prog_candidate_val_subscores[0])
    return (limit - state.total_num_evals - proposals * val_size) // (2 * proposals)
