import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.batch_size import BatchSizeController
from dspy_combee.delay_curve import fit_delay_curve, plain_power_law

SIZES = (4, 8, 16, 32, 64)


@given(amplitude=st.floats(1e-3, 1e3), alpha=st.floats(0.2, 1.2), tau=st.floats(1e-6, 1e-1))
def test_power_law_is_recovered_and_its_plateau_is_the_published_form(amplitude, alpha, tau):
    curve = fit_delay_curve({size: amplitude * size**-alpha for size in SIZES})
    assert curve.shape == "power"
    assert curve.alpha == pytest.approx(alpha)
    assert curve.amplitude == pytest.approx(amplitude)
    assert curve.r_squared == pytest.approx(1)
    assert curve.plateau(tau) == pytest.approx((alpha * amplitude / tau) ** (1 / (alpha + 1)))


@pytest.mark.parametrize("kink", [8, 16, 24, 32, 48])
def test_scaling_that_ends_is_cut_at_its_end(kink):
    curve = fit_delay_curve({size: 10 * min(size, kink) ** -0.85 for size in SIZES})
    assert curve.shape == "kink"
    assert curve.plateau(1e-6) == pytest.approx(kink)


@pytest.mark.parametrize("floor", [0.3, 1.0])
def test_floor_under_the_delay_does_not_move_the_plateau(floor):
    delays = {size: floor + 10 / size for size in SIZES}
    curve = fit_delay_curve(delays)
    tau = 1e-3 * delays[4]
    true_plateau = math.sqrt(10 / tau)
    without_a_floor = plain_power_law(delays).alpha
    assert curve.shape == "floor"
    assert curve.plateau(tau) == pytest.approx(true_plateau, rel=0.05)
    assert without_a_floor < 0.9


def test_delay_that_does_not_fall_is_flat_and_has_no_plateau():
    for exponent in (0.0, 0.4):
        curve = fit_delay_curve({size: 3.0 * size**exponent for size in SIZES})
        assert curve.shape == "flat"
        assert curve.plateau(1e-9) == 0
        assert curve.delay_at(7) == pytest.approx(curve.floor)


@pytest.mark.parametrize("factor", [0.001, 0.1, 60, 3600])
def test_pick_does_not_depend_on_the_speed_of_the_model(factor):
    seconds = (8.1, 9.3, 10.2, 14.0, 21.5)
    controller = BatchSizeController(candidates=SIZES)
    slow, fast = controller.start(), controller.start()
    for size, taken in zip(SIZES, seconds, strict=True):
        slow = controller.observe(slow, batch_size=size, seconds=taken * factor)
        fast = controller.observe(fast, batch_size=size, seconds=taken)
    assert controller.pick(slow) == controller.pick(fast)


@given(st.lists(st.floats(1e-9, 1e9), min_size=5, max_size=5))
def test_any_timings_give_a_pick_within_the_cap(seconds):
    controller = BatchSizeController(candidates=SIZES, cap=90, num_threads=64)
    state = controller.start()
    for size, taken in zip(SIZES, seconds, strict=True):
        state = controller.observe(state, batch_size=size, seconds=taken)
    fit = controller.fit(state)
    assert 1 <= fit.batch_size <= 90
    assert [one.batch_size for one in fit.profile] == list(SIZES)
    assert fit.is_fallback == (fit.curve is None)


def test_noise_of_a_tenth_moves_the_median_pick_little():
    picks = []
    for seed in range(30):
        rng = random.Random(seed)
        controller = BatchSizeController(candidates=SIZES)
        state = controller.start()
        for size in SIZES:
            seconds = size * 10 * size**-0.85 * math.exp(rng.gauss(0, 0.1))
            state = controller.observe(state, batch_size=size, seconds=seconds)
        picks.append(controller.pick(state))
    assert 60 <= sorted(picks)[15] <= 85
