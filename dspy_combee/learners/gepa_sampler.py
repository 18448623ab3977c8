"""Which examples, and how many, GEPA reflects on next: variable batch sizes that survive a resume.

GEPA pickles its own state only. So nothing is drawn from a generator that lives on: the order of an epoch follows from
the seed and the epoch's number, what is left of it from the minibatches in GEPA's own trace, the size from the
controller's observations in the run log, the parent from the seed and the iteration.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dspy_combee.seeding import branch_rng

SizeOf = Callable[[Any], int]
"""From GEPA's state to the size of the next minibatch."""


def next_minibatch(ids: Sequence[Any], *, taken: Mapping[Any, int], size: int, seed: int) -> list[Any]:
    """Return the ids that were taken least often, in the shuffled order of their epoch; none of them twice.

    However the sizes vary, no id is ever taken more than once more often than another one.

    Args:
        ids: All ids of the train set.
        taken: How often earlier minibatches took each of them; missing means never.
        size: How many are wanted; more than there are ids gives each once.
        seed: Decides the order of every epoch.
    """
    batch: list[Any] = []
    for epoch in sorted({taken.get(identifier, 0) for identifier in ids}):
        if len(batch) >= size:
            break
        order = list(ids)
        branch_rng(seed, "epoch", epoch).shuffle(order)
        batch.extend(identifier for identifier in order if taken.get(identifier, 0) == epoch)
    return batch[:size]


class ResumableBatchSampler:
    """A GEPA `BatchSampler` of variable size; two runs that share seed and history pick the same minibatches."""

    def __init__(self, size_of: SizeOf, seed: int) -> None:
        self._size_of = size_of
        self._seed = seed
        self._iteration: int | None = None
        self._taken_now: Counter[Any] = Counter()

    def next_minibatch_ids(self, loader: Any, state: Any) -> list[Any]:
        """Return the next minibatch; further calls within one iteration get the following ones."""
        if state.i != self._iteration:
            self._iteration, self._taken_now = state.i, Counter()
        batch = next_minibatch(
            list(loader.all_ids()),
            taken=examples_taken(state.full_program_trace) + self._taken_now,
            size=self._size_of(state),
            seed=self._seed,
        )
        self._taken_now.update(batch)
        return batch


def examples_taken(full_program_trace: Sequence[dict[str, Any]]) -> Counter[Any]:
    """Return how often each example stands in the minibatches of GEPA's trace."""
    return Counter(
        identifier
        for iteration in full_program_trace
        for task in iteration.get("tasks", ())
        for identifier in task["subsample_ids"]
    )


class ReseededCandidateSelector:
    """A GEPA `CandidateSelector` whose draws follow from the seed and the iteration, so that a resume repeats them."""

    def __init__(self, selector: Any, seed: int) -> None:
        self._selector = selector
        self._seed = seed
        self._iteration: int | None = None
        self._calls = 0

    def select_candidate_idx(self, state: Any) -> int:
        """Return what the wrapped selector picks with a generator of this iteration's own."""
        if state.i != self._iteration:
            self._iteration, self._calls = state.i, 0
        selector = copy.copy(self._selector)
        selector.rng = branch_rng(self._seed, "parent", state.i, self._calls)
        self._calls += 1
        return selector.select_candidate_idx(state)


def reseeded_selector(strategy: Any, seed: int) -> Any:
    """Return the strategy made resumable when it is one of GEPA's names; a user's own object as it is."""
    from gepa.strategies.candidate_selector import (
        CurrentBestCandidateSelector,
        EpsilonGreedyCandidateSelector,
        ParetoCandidateSelector,
        TopKParetoCandidateSelector,
    )

    factories: dict[str, Callable[[], Any]] = {
        "pareto": lambda: ReseededCandidateSelector(ParetoCandidateSelector(rng=None), seed),
        "current_best": CurrentBestCandidateSelector,
        "epsilon_greedy": lambda: ReseededCandidateSelector(EpsilonGreedyCandidateSelector(0.1, rng=None), seed),
        "top_k_pareto": lambda: ReseededCandidateSelector(TopKParetoCandidateSelector(5, rng=None), seed),
    }
    factory = factories.get(strategy) if isinstance(strategy, str) else None
    return strategy if factory is None else factory()
