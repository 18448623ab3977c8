import math
import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_evocue.betting import BETS, log_e_value, lower_bound, upper_bound

unit = st.floats(-1, 1, allow_nan=False)
values = st.lists(unit, max_size=30)


def test_the_stakes_add_up_to_one():
    assert math.fsum(weight for _, weight in BETS) == pytest.approx(1)
    assert all(0 < bet < 1 for bet, _ in BETS)


@pytest.mark.parametrize("mean", [-0.5, 0.0, 0.3])
def test_the_wealth_is_a_fair_game_at_the_supposed_mean(mean):
    # Numbers of -1 and 1 with that mean: the expectation over all sequences of four must be exactly 1.
    chance = {1.0: (1 + mean) / 2, -1.0: (1 - mean) / 2}
    expectation = math.fsum(
        math.prod(chance[value] for value in sequence) * math.exp(log_e_value(sequence, mean=mean))
        for sequence in product(chance, repeat=4)
    )
    assert expectation == pytest.approx(1)


def test_looking_after_every_pair_rarely_accepts_a_coin_flip():
    draws = random.Random(11)
    crossed = 0
    for _ in range(400):
        flips: list[float] = []
        for _ in range(40):
            flips.append(draws.choice([-1.0, 0.0, 1.0]))
            if log_e_value(flips) >= math.log(20):
                crossed += 1
                break
    # At most 5 % in expectation; 400 runs leave room to 8 %.
    assert 0 < crossed <= 32


@given(values, st.randoms())
def test_the_evidence_ignores_order_and_pairs_without_a_difference(numbers, shuffler):
    shuffled = [*numbers, 0.0, 0.0]
    shuffler.shuffle(shuffled)
    assert log_e_value(shuffled) == pytest.approx(log_e_value(numbers), abs=1e-9)


@given(values, st.floats(-0.9, 0.9), st.floats(0.0, 0.09))
def test_the_evidence_falls_as_the_supposed_mean_rises(numbers, mean, more):
    assert log_e_value(numbers, mean=mean + more) <= log_e_value(numbers, mean=mean) + 1e-9


@given(st.lists(unit, min_size=1, max_size=30))
def test_the_bounds_enclose_the_mean_of_what_was_seen(numbers):
    mean = math.fsum(numbers) / len(numbers)
    assert lower_bound(numbers, alpha=0.05) <= mean + 1e-9
    assert upper_bound(numbers, alpha=0.05) >= mean - 1e-9


def test_the_bounds_close_in_on_the_mean():
    few, many = ([1.0, 1.0, 1.0, -1.0] * times for times in (5, 100))
    assert lower_bound(few, alpha=0.05) < lower_bound(many, alpha=0.05) < 0.5
    assert upper_bound(few, alpha=0.05) > upper_bound(many, alpha=0.05) > 0.5
