import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.learners.playbook_update import PlaybookUpdate, join_updates
from dspy_combee.playbook import AddEntry, RemoveEntry, UpdateEntry, Vote

OPERATIONS = st.one_of(
    st.builds(
        AddEntry, text=st.sampled_from(["use K-1", "use K-2 when late", "be brief"]), record_ids=st.just(("r1",))
    ),
    st.builds(UpdateEntry, entry_id=st.just("e1"), text=st.sampled_from(["a", "b"])),
    st.builds(RemoveEntry, entry_id=st.sampled_from(["e1", "e2"])),
)
UPDATES = st.builds(
    PlaybookUpdate,
    component=st.just("self"),
    operations=st.lists(OPERATIONS, max_size=4).map(tuple),
    votes=st.lists(st.builds(Vote, st.just("e1"), st.sampled_from(["r1", "r2"]), st.just("helpful")), max_size=2).map(
        tuple
    ),
)


@given(st.lists(UPDATES, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_joining_does_not_depend_on_the_order_of_the_groups(updates, rng: random.Random):
    shuffled = list(updates)
    rng.shuffle(shuffled)
    assert join_updates(updates) == join_updates(shuffled)


@given(st.lists(UPDATES, min_size=1, max_size=5))
def test_joining_loses_no_lesson_and_counts_no_vote_twice(updates):
    joined = join_updates([*updates, *updates])
    assert {op.text for update in updates for op in update.operations if isinstance(op, AddEntry)} == {
        op.text for op in joined.operations if isinstance(op, AddEntry)
    }
    assert set(joined.votes) == {vote for update in updates for vote in update.votes}
    assert len(joined.votes) == len(set(joined.votes))


def test_updates_of_two_predictors_are_not_joined():
    with pytest.raises(ValueError, match=r"\['a', 'b'\]"):
        join_updates([PlaybookUpdate("a"), PlaybookUpdate("b")])
