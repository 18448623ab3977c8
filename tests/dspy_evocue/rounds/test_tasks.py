"""Which task serves for what."""

import dspy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dspy_evocue.rounds.tasks import draw_confirmation, draw_learning, split_tasks
from dspy_evocue.rules import MINIMUM_TASKS


def examples(count, first=0):
    return [dspy.Example(question=f"q{n}").with_inputs("question") for n in range(first, first + count)]


def split(trainset, valset=None, *, trial=8, confirmation=8, rounds=3, seed=0):
    return split_tasks(
        trainset, valset, trial_tasks=trial, confirmation_tasks=confirmation, max_rounds=rounds, seed=seed
    )


@example(count=4, trial=1, confirmation=2, rounds=1)
@settings(max_examples=40)
@example(count=4, trial=1, confirmation=3, rounds=1)
@given(count=st.integers(4, 70), trial=st.integers(1, 12), confirmation=st.integers(1, 12), rounds=st.integers(1, 4))
def test_the_pools_are_disjoint_and_hold_every_task_once(count, trial, confirmation, rounds):
    pools = split(examples(count), trial=trial, confirmation=confirmation, rounds=rounds)
    ids = [task.task_id for task in (*pools.learning, *pools.confirmation)]
    assert len(ids) == len(set(ids)) == count
    assert len(pools.learning) >= MINIMUM_TASKS
    assert pools.confirmation
    if count >= max(trial, MINIMUM_TASKS) + confirmation:
        assert len(pools.learning) >= trial
        assert len(pools.confirmation) >= confirmation
    else:
        assert pools.notes


def test_rounds_use_new_tasks_while_there_are_some():
    pools = split(examples(100), trial=8, confirmation=4, rounds=3)
    learning = [draw_learning(pools, round_number=number, count=12) for number in (1, 2, 3)]
    confirming = [[pair.task for pair in draw_confirmation(pools, round_number=n, pairs=8)] for n in (1, 2, 3)]
    assert len({task.task_id for tasks in learning for task in tasks}) == 36
    assert len({task.task_id for tasks in confirming for task in tasks}) == 24


def test_a_task_confirms_twice_only_when_all_others_have():
    pools = split(examples(8), trial=5, confirmation=3)
    pairs = draw_confirmation(pools, round_number=1, pairs=7)
    assert [pair.number for pair in pairs] == list(range(1, 8))
    assert [pair.sample for pair in pairs] == [0, 0, 0, 1, 1, 1, 2]
    assert len({pair.task.task_id for pair in pairs[:3]}) == 3


def test_the_same_inputs_twice_are_one_task():
    pools = split([*examples(20), *examples(5)])
    assert len(pools.learning) + len(pools.confirmation) == 20
    assert "5 of 25 trainset examples have the same inputs" in pools.notes[0]


def test_a_valset_that_overlaps_confirms_with_the_rest():
    pools = split(examples(10), examples(10, first=8))
    assert len(pools.learning) == 10
    assert len(pools.confirmation) == 8
    assert "2 of 10 valset tasks are in the trainset too" in pools.notes[0]


def test_too_few_tasks_are_refused():
    with pytest.raises(ValueError, match="at least 3 different tasks to learn from and 1 other"):
        split(examples(3))
