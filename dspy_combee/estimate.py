"""What a run may cost at the most, worked out from its settings without calling a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dspy

from dspy_combee.settings import RunSettings


@dataclass(frozen=True, slots=True)
class Estimate:
    """Upper bounds for one `compile`."""

    metric_calls: int
    """Rollouts that are scored, the last iteration in flight included."""
    iterations: int
    """Batches that can be learned from."""
    aggregation_calls: int
    """Calls of the reflection model when none has to be repeated."""
    task_calls: int | None
    """Calls of the task model in the rollouts; None when a module's calls have no bound that can be known."""
    largest_batch: int
    """The largest batch that the controller may pick, or the given one."""
    reasons: tuple[str, ...]
    """How the numbers came about, and what they leave out."""
    reflection_calls: int | None = 0
    """Calls that reflect on single runs, beside the aggregation; None when a learner does not say how many it makes."""

    @property
    def lm_calls(self) -> int | None:
        """Calls of all models; None when those of the task model or of the reflections cannot be bounded."""
        if self.task_calls is None or self.reflection_calls is None:
            return None
        return self.task_calls + self.reflection_calls + self.aggregation_calls


def estimate_gepa(
    base: Any,
    settings: RunSettings,
    student: dspy.Module,
    trainset: Sequence[dspy.Example],
    valset: Sequence[dspy.Example] | None,
) -> Estimate:
    """Return the bounds for a wrapped `dspy.GEPA`.

    GEPA looks at its limit between iterations only, so one iteration (a batch for parent and child, and a validation)
    may run past it when batches are small; larger ones are cut to what is left.
    """
    from dspy_combee.learners.batch_control import controller_within, fixed_size_within
    from dspy_combee.learners.gepa import metric_call_limit
    from dspy_combee.runtime.execution.threads import default_num_workers
    from dspy_combee.scan import SMALL_BATCH

    val_size = len(valset) if valset is not None else len(trainset)
    limit = metric_call_limit(base, student, len(trainset), len(valset) if valset is not None else None)
    if settings.budget.max_metric_calls is not None:
        limit = min(limit, settings.budget.max_metric_calls)
    controller = controller_within(
        settings.controller,
        train_size=len(trainset),
        metric_calls=limit,
        num_threads=base.num_threads or default_num_workers(),
    )
    if settings.batch_size is None:
        smallest, largest = controller.candidates[0], controller.cap or controller.candidates[-1]
    else:
        smallest = largest = fixed_size_within(
            settings.batch_size, train_size=len(trainset), metric_calls=limit, val_size=val_size
        )
    # A skipped iteration costs the parent's batch only, and makes no aggregation call.
    iterations = max(0, -(-(limit - val_size) // smallest))
    in_flight = 2 * smallest + val_size if largest <= SMALL_BATCH else val_size
    metric_calls = max(limit, val_size) + in_flight
    components = len(student.named_predictors()) if base.component_selector != "round_robin" else 1
    most = max(settings.aggregation.calls_for(size) for size in range(1, largest + 1))
    per_example = calls_per_rollout(student)
    return Estimate(
        metric_calls=metric_calls,
        iterations=iterations,
        aggregation_calls=iterations * components * most,
        task_calls=None if per_example is None else metric_calls * per_example,
        largest_batch=largest,
        reasons=(
            f"{limit} metric calls allowed, at most {in_flight} more in flight when the limit is reached",
            f"batches of {smallest} to {largest} examples, {val_size} validation examples",
            "calls repeated after failures, and calls split for the length of their records, are not included",
        ),
    )


def estimate_rounds(
    learner: Any,
    settings: RunSettings,
    student: dspy.Module,
    trainset: Sequence[dspy.Example],
    valset: Sequence[dspy.Example] | None,
) -> Estimate:
    """Return the bounds for a `PromptLearner`: each example is run, scored and reflected on once an epoch."""
    from dspy_combee.learners.rounds_run import bounded_controller
    from dspy_combee.rounds.learner_extras import plan_of

    plan = plan_of(learner)
    val_size, size = len(valset or ()), len(trainset)
    total = plan.epochs * size
    if settings.budget.max_metric_calls is not None:
        total = min(total, settings.budget.max_metric_calls)
    if settings.batch_size is None:
        controller = bounded_controller(settings, train_size=size, total=plan.epochs * size, val_size=val_size)
        smallest, largest = controller.candidates[0], controller.cap or controller.candidates[-1]
    else:
        smallest = largest = min(settings.batch_size, size)
    components = sum(name not in settings.frozen for name, _ in student.named_predictors())
    every = plan.schedule.validate_every
    validations = (2 + (plan.epochs if every is None else total // every)) if val_size else 0
    per_example = calls_per_rollout(student)
    runs = total + validations * val_size
    return Estimate(
        metric_calls=runs,
        iterations=plan.epochs * -(-size // smallest),
        aggregation_calls=components * _most_aggregation_calls(settings, size, plan.epochs, smallest, largest),
        task_calls=None if per_example is None else runs * per_example,
        largest_batch=largest,
        reasons=(
            f"epochs: {plan.epochs}, of {size} examples, in batches of {smallest} to {largest}",
            f"at most {validations} validations of {val_size} examples",
            "calls repeated after failures, and calls split for the length of their records, are not included",
        ),
        reflection_calls=None if plan.reflection_calls is None else total * plan.reflection_calls,
    )


def _most_aggregation_calls(settings: RunSettings, size: int, epochs: int, smallest: int, largest: int) -> int:
    """Return how many calls the epochs take in batches within these sizes, the last of an epoch being smaller."""
    calls = [settings.aggregation.calls_for(count) for count in range(largest + 1)]
    if smallest == largest:
        return epochs * (size // largest * calls[largest] + calls[size % largest])
    an_example = max(calls[count] / count for count in range(smallest, largest + 1))
    return math.ceil(epochs * size * an_example) + epochs * max(calls[:smallest])


def calls_per_rollout(program: dspy.Module) -> int | None:
    """Return the most model calls that one run of the program makes, or None when it cannot be told.

    Every predictor counts once, those of a ReAct loop `max_iters` times; a program with code of its own around the
    predictors is taken to call each of them once, unless it loops over them, which cannot be seen from outside.
    """
    total = 0
    looping: dict[int, int] = {}
    for _, module in program.named_sub_modules():
        iterations = getattr(module, "max_iters", None)
        if isinstance(iterations, int):
            for predictor in _predictors_of(module):
                looping[id(predictor)] = max(iterations, looping.get(id(predictor), 1))
        elif type(module).__name__ in ("BestOfN", "Refine", "Parallel"):
            return None
    for _, predictor in program.named_predictors():
        total += looping.get(id(predictor), 1)
    return total


def _predictors_of(module: Any) -> list[Any]:
    return [predictor for _, predictor in module.named_predictors()]
