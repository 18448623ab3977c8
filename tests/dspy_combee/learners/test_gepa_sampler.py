from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from gepa.core.data_loader import ListDataLoader
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.learners.gepa_sampler import ResumableBatchSampler, next_minibatch, reseeded_selector


@given(st.integers(1, 40), st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(0, 99))
def test_no_example_is_taken_more_than_once_more_often_than_another(count, sizes, seed):
    taken = Counter()
    for size in sizes:
        batch = next_minibatch(range(count), taken=taken, size=size, seed=seed)
        assert len(batch) == len(set(batch)) == min(size, count)
        taken.update(batch)
        times = [taken[identifier] for identifier in range(count)]
        assert max(times) - min(times) <= 1


def test_every_epoch_has_an_order_of_its_own():
    orders = [
        tuple(next_minibatch(range(20), taken=dict.fromkeys(range(20), epoch), size=20, seed=0)) for epoch in range(5)
    ]
    assert len(set(orders)) == 5


@dataclass
class State:
    i: int = 0
    full_program_trace: list = field(default_factory=list)
    program_candidates: Any = (0, 1, 2)


def test_several_minibatches_of_one_iteration_follow_each_other():
    sampler, loader, state = ResumableBatchSampler(lambda state: 4, seed=0), ListDataLoader(list(range(12))), State()
    batches = [sampler.next_minibatch_ids(loader, state) for _ in range(3)]
    assert sorted(one for batch in batches for one in batch) == list(range(12))


def test_a_new_sampler_goes_on_where_the_trace_ends():
    loader = ListDataLoader(list(range(12)))
    sampler, state = ResumableBatchSampler(lambda state: 5, seed=3), State()
    first = sampler.next_minibatch_ids(loader, state)
    state = State(i=1, full_program_trace=[{"tasks": [{"subsample_ids": first}]}, {}])
    second = ResumableBatchSampler(lambda state: 5, seed=3).next_minibatch_ids(loader, state)
    assert second == sampler.next_minibatch_ids(loader, state)
    assert not set(first) & set(second)


def test_a_users_own_selector_is_left_as_it_is():
    own = object()
    assert reseeded_selector(own, 0) is own
    assert reseeded_selector("no such strategy", 0) == "no such strategy"


@pytest.mark.parametrize("name", ["pareto", "current_best", "epsilon_greedy", "top_k_pareto"])
def test_the_strategies_by_name_are_made_resumable(name):
    assert callable(reseeded_selector(name, 0).select_candidate_idx)
