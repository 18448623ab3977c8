import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.shuffle import augmented_shuffle

dealings = st.fixed_dictionaries(
    {
        "count": st.integers(0, 40),
        "copies": st.integers(1, 6),
        "groups": st.integers(1, 12),
        "seed": st.integers(0, 10_000),
    }
)


def deal(count, copies, groups, seed):
    return augmented_shuffle(range(count), copies=copies, groups=groups, rng=random.Random(seed))


@given(dealings)
def test_every_item_is_dealt_as_often_as_asked(case):
    dealt = Counter(item for group in deal(**case) for item in group)
    assert dealt == {item: case["copies"] for item in range(case["count"])}


@given(dealings)
def test_group_sizes_differ_by_at_most_one(case):
    sizes = [len(group) for group in deal(**case)]
    assert len(sizes) == case["groups"]
    assert max(sizes) - min(sizes) <= 1


@given(dealings)
def test_no_group_holds_an_item_more_often_than_it_must(case):
    most = -(-case["copies"] // case["groups"])
    for group in deal(**case):
        assert all(times <= most for times in Counter(group).values())


@given(dealings)
def test_same_seed_gives_same_groups(case):
    assert deal(**case) == deal(**case)


def test_other_seeds_give_other_groups():
    assert len({deal(25, 2, 5, seed) for seed in range(20)}) > 15


def test_equal_values_are_told_apart_by_position():
    groups = augmented_shuffle(["same"] * 6, copies=2, groups=3, rng=random.Random(0))
    assert sorted(map(len, groups)) == [4, 4, 4]


def test_second_copy_meets_other_neighbours():
    groups = deal(100, 2, 10, 0)
    homes = {item: [i for i, group in enumerate(groups) if item in group] for item in range(100)}
    assert len({tuple(home) for home in homes.values()}) > 20


@pytest.mark.parametrize(("copies", "groups", "name"), [(0, 2, "copies"), (2, 0, "groups")])
def test_numbers_below_one_are_refused(copies, groups, name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        augmented_shuffle([1], copies=copies, groups=groups, rng=random.Random(0))
