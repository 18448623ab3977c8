import logging

from hypothesis import given, settings
from hypothesis import strategies as st

from dspy_combee.batch_size import BatchSizeController
from dspy_combee.learners.batch_control import BatchControl, controller_within, fixed_size_within

observations = st.lists(st.tuples(st.integers(1, 64), st.none() | st.floats(0.1, 100)), max_size=12)


@given(st.integers(1, 500), st.none() | st.integers(1, 5000), st.integers(1, 64))
def test_the_controller_is_bounded_by_what_a_run_has(train_size, metric_calls, num_threads):
    bounded = controller_within(
        BatchSizeController(), train_size=train_size, metric_calls=metric_calls, num_threads=num_threads
    )
    assert bounded.cap <= train_size
    if metric_calls is not None:
        assert bounded.cap <= max(1, metric_calls // 6)
        assert len(bounded.candidates) == 1 or 2 * sum(bounded.candidates) <= metric_calls / 2


def test_the_users_own_threads_and_cap_win():
    own = BatchSizeController(cap=10, num_threads=3)
    bounded = controller_within(own, train_size=100, metric_calls=None, num_threads=64)
    assert (bounded.cap, bounded.num_threads) == (10, 3)


@given(st.integers(1, 200), st.integers(1, 200), st.none() | st.integers(1, 2000), st.integers(1, 50))
def test_a_fixed_size_is_cut_only_where_not_even_one_batch_fits(batch_size, train_size, metric_calls, val_size):
    size = fixed_size_within(batch_size, train_size=train_size, metric_calls=metric_calls, val_size=val_size)
    assert 1 <= size <= min(batch_size, train_size)
    if metric_calls is None or 2 * batch_size + 2 * val_size <= metric_calls:
        assert size == min(batch_size, train_size)
    elif size > 3:
        assert 2 * size + 2 * val_size <= metric_calls


@settings(max_examples=30)
@given(observations)
def test_replaying_what_was_seen_gives_the_same_next_size(seen):
    lived, resumed = (BatchControl(BatchSizeController(cap=64)) for _ in range(2))
    history = []
    for _, seconds in seen:
        size = lived.size()
        lived.observe(batch_size=size, seconds=seconds)
        history.append((size, seconds))
    resumed.replay(history)
    assert resumed.size() == lived.size()
    assert resumed.state == lived.state


def test_a_candidate_that_cannot_be_timed_is_given_up_after_two_tries():
    control = BatchControl(BatchSizeController(candidates=(4, 8)))
    for _ in range(2):
        assert control.size() == 4
        control.observe(batch_size=4, seconds=None)
    assert control.size() == 8


def test_a_fixed_size_is_never_changed():
    control = BatchControl(BatchSizeController(), fixed=7)
    control.observe(batch_size=7, seconds=1.0)
    assert (control.size(affordable=2), control.fit) == (7, None)


def test_the_choice_is_announced_once_with_its_reason(caplog):
    control = BatchControl(BatchSizeController(candidates=(4, 8, 16), num_threads=64))
    with caplog.at_level(logging.INFO):
        for seconds in (4.0, 4.0, 4.0, 4.0):
            control.observe(batch_size=control.size(), seconds=seconds)
    assert [r.getMessage().split(":")[0] for r in caplog.records] == [f"Batch size {control.size()} from now on"]
