import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_evocue.paired_differences import bootstrap_interval, count_pairs, known_differences

gains = st.lists(st.sampled_from([-1.0, -0.25, 0.0, 0.5, 1.0]), min_size=1, max_size=20)


def test_a_missing_pair_is_counted_and_enters_nothing_else():
    counts = count_pairs([1.0, None, -0.5, 0.0, None])
    assert (counts.pairs, counts.wins, counts.losses, counts.ties, counts.missing) == (3, 1, 1, 1, 2)
    assert counts.mean == pytest.approx(0.5 / 3)
    assert str(counts) == "1 better, 1 worse, 1 equal, 2 missing"


def test_no_pairs_have_no_mean():
    assert count_pairs([]).mean is None
    assert count_pairs([None]).missing == 1


def test_a_difference_that_is_no_finite_number_is_refused():
    with pytest.raises(ValueError, match=r"difference 1 must be finite .* got nan"):
        known_differences([0.0, float("nan")])
    with pytest.raises(TypeError, match="difference 0 must be a number or None, got 'x'"):
        known_differences(["x"])  # pyright: ignore[reportArgumentType]


@given(gains, st.randoms())
def test_the_bootstrap_interval_lies_in_the_range_and_ignores_order(differences, shuffler):
    shuffled = list(differences)
    shuffler.shuffle(shuffled)
    interval = bootstrap_interval(differences, rng=random.Random(1), resamples=50)
    assert interval == bootstrap_interval(shuffled, rng=random.Random(1), resamples=50)
    assert interval is not None
    assert min(differences) <= interval.low <= interval.high <= max(differences)


def test_the_bootstrap_interval_holds_the_mean_about_as_often_as_it_says():
    draws = random.Random(5)
    held = 0
    for _ in range(200):
        sample = [draws.choice([-1.0, 0.0, 1.0, 1.0]) for _ in range(60)]
        interval = bootstrap_interval(sample, rng=draws, level=0.9, resamples=200)
        assert interval is not None
        held += interval.low <= 0.25 <= interval.high
    assert 165 <= held <= 195


def test_the_bootstrap_refuses_what_makes_no_interval():
    assert bootstrap_interval([], rng=random.Random(0)) is None
    with pytest.raises(ValueError, match="level must be between 0 and 1, got 95"):
        bootstrap_interval([0.0], rng=random.Random(0), level=95)
    with pytest.raises(ValueError, match="resamples must be at least 1, got 0"):
        bootstrap_interval([0.0], rng=random.Random(0), resamples=0)
