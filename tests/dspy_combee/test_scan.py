import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.scan import DEFAULT_MAX_FAN_IN, near_equal_sizes, plan_reduce, plan_scan

plans = st.fixed_dictionaries(
    {
        "count": st.integers(1, 5000),
        "group_size": st.none() | st.integers(1, 60),
        "max_fan_in": st.none() | st.integers(2, 60),
        "copies": st.integers(1, 4),
    }
)


@given(plans)
def test_levels_chain_from_the_reflections_down_to_one_update(case):
    levels = plan_scan(**case).levels
    assert levels[0].items == case["count"]
    for below, above in itertools.pairwise(levels):
        assert above.items == len(below.group_sizes)
    assert len(levels[-1].group_sizes) == 1


@given(plans)
def test_every_level_sees_every_item_of_it(case):
    for level in plan_scan(**case).levels:
        assert sum(level.group_sizes) == level.items * level.copies
        assert max(level.group_sizes) - min(level.group_sizes) <= 1
        assert min(level.group_sizes) >= 1


@given(plans)
def test_no_call_sees_more_than_the_fan_in(case):
    plan = plan_scan(**case)
    if case["max_fan_in"] is not None:
        assert plan.largest_call <= case["max_fan_in"]


@given(plans)
def test_copies_never_exceed_the_groups(case):
    first = plan_scan(**case).levels[0]
    assert first.copies <= min(case["copies"], len(first.group_sizes))


@given(st.integers(1, 56))
def test_two_levels_with_square_root_groups_are_the_default(count):
    plan = plan_scan(count, copies=2)
    groups = math.isqrt(count)
    assert len(plan.levels[0].group_sizes) == groups
    assert plan.calls == (groups + 1 if groups > 1 else 1)


@given(st.integers(65, 20_000))
def test_large_batches_get_more_groups_and_levels_instead_of_large_calls(count):
    plan = plan_scan(count, copies=2)
    assert plan.largest_call <= DEFAULT_MAX_FAN_IN
    assert len(plan.levels[0].group_sizes) == math.ceil(2 * count / DEFAULT_MAX_FAN_IN)


@given(st.integers(4, 5000), st.integers(1, 4))
def test_the_published_tree_is_had_with_a_fan_in_of_all_copies(count, copies):
    plan = plan_scan(count, max_fan_in=copies * count, copies=copies)
    assert [len(level.group_sizes) for level in plan.levels] == [math.isqrt(count), 1]


def test_group_size_overrides_the_square_root():
    assert plan_scan(50, group_size=10).levels[0].group_sizes == (10,) * 5


@given(st.integers(1, 500), st.integers(1, 60), st.integers(1, 4))
def test_a_group_size_that_the_user_asks_for_is_not_cut_by_the_default_fan_in(count, group_size, copies):
    assert len(plan_scan(count, group_size=group_size, copies=copies).levels[0].group_sizes) == math.ceil(
        count / group_size
    )


def test_three_records_are_one_call():
    assert plan_scan(3, copies=2).calls == 1


def test_nothing_to_aggregate_is_an_empty_plan():
    plan = plan_scan(0)
    assert (plan.calls, plan.largest_call) == (0, 0)


@given(st.integers(0, 500), st.integers(2, 20))
def test_reduce_depth_is_logarithmic(count, fan_in):
    depth = len(plan_reduce(count, max_fan_in=fan_in))
    assert depth <= math.ceil(math.log(max(count, 1), fan_in)) + 1


@given(st.integers(0, 1000), st.integers(1, 50))
def test_near_equal_sizes_add_up(total, groups):
    sizes = near_equal_sizes(total, groups)
    assert (sum(sizes), len(sizes)) == (total, groups)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": -1}, "count must be at least 0, got -1"),
        ({"count": 1, "group_size": 0}, "group_size must be at least 1 or None, got 0"),
        ({"count": 1, "max_fan_in": 1}, "max_fan_in must be at least 2 or None, got 1"),
        ({"count": 1, "copies": 0}, "copies must be at least 1, got 0"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan_scan(**arguments)
