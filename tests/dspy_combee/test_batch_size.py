import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dspy_combee.batch_size import BatchSizeController

SIZES = (4, 8, 16, 32, 64)


def profiled(controller, delay, repeats=1):
    """Return the state after timing each candidate; `delay` gives the seconds of an epoch's one example."""
    state = controller.start()
    while controller.is_profiling(state):
        size = controller.pick(state)
        for _ in range(repeats):
            state = controller.observe(state, batch_size=size, seconds=delay(size) * size)
    return state


def power_law(amplitude, alpha):
    return lambda size: amplitude * size**-alpha


def test_candidates_are_profiled_in_order_once_each():
    controller, state, picked = BatchSizeController(), BatchSizeController().start(), []
    while controller.is_profiling(state):
        picked.append(controller.pick(state))
        state = controller.observe(state, batch_size=picked[-1], seconds=1.0)
    assert tuple(picked) == SIZES


@given(st.floats(0.3, 1.5), st.floats(0.01, 1000), st.floats(1e-3, 0.05))
def test_plateau_of_a_power_law_is_recovered(alpha, amplitude, tau):
    controller = BatchSizeController(tau=tau, num_threads=1_000_000)
    fit = controller.fit(profiled(controller, power_law(amplitude, alpha)))
    tau_seconds = tau * amplitude * 4**-alpha
    assert fit.alpha == pytest.approx(alpha, rel=1e-6)
    assert fit.plateau == pytest.approx((alpha * amplitude / tau_seconds) ** (1 / (alpha + 1)), rel=1e-6)
    assert not fit.is_fallback
    assert fit.batch_size == math.floor(fit.plateau) or fit.batch_size == math.floor(fit.plateau + 1e-6)


@given(st.floats(0.3, 1.5), st.floats(1.01, 1000.0))
def test_pick_does_not_depend_on_the_speed_of_the_model(alpha, factor):
    controller = BatchSizeController(num_threads=1000)
    slow = controller.fit(profiled(controller, power_law(factor, alpha)))
    fast = controller.fit(profiled(controller, power_law(1.0, alpha)))
    assert abs(slow.batch_size - fast.batch_size) <= 1


@given(st.floats(0.2, 1.5), st.floats(1e-4, 0.5), st.floats(1e-4, 0.5))
def test_a_larger_tau_never_picks_a_larger_batch(alpha, one, other):
    small, large = sorted((one, other))
    picks = [
        BatchSizeController(tau=tau, num_threads=10_000).fit(profiled(BatchSizeController(), power_law(1, alpha)))
        for tau in (small, large)
    ]
    assert picks[1].batch_size <= picks[0].batch_size


@given(st.integers(4, 500), st.integers(1, 500), st.floats(0.05, 1.5))
def test_pick_stays_within_cap_threads_and_profile(cap, num_threads, alpha):
    controller = BatchSizeController(cap=cap, num_threads=num_threads, tau=1e-6)
    fit = controller.fit(profiled(controller, power_law(1, alpha)))
    assert 1 <= fit.batch_size <= min(cap, max(num_threads, controller.candidates[-1]))


def test_saturating_curve_stops_at_the_observed_knee():
    controller = BatchSizeController(num_threads=64)
    fit = controller.fit(profiled(controller, lambda size: max(1 / size, 1 / 16)))
    assert fit.batch_size == 16
    assert "still shortened" in fit.reason


@given(st.integers(0, 50))
def test_noise_of_ten_percent_stays_near_the_knee(seed):
    rng = random.Random(seed)
    controller = BatchSizeController(tau=0.01, num_threads=200)
    fit = controller.fit(profiled(controller, lambda size: size**-0.8 * rng.uniform(0.95, 1.05), repeats=3))
    true = (0.8 / (0.01 * 4**-0.8)) ** (1 / 1.8)
    assert abs(math.log(fit.batch_size / true)) < math.log(1.6)


@pytest.mark.parametrize(
    ("delay", "reason"),
    [
        (lambda size: 1.0, "were not faster"),
        (lambda size: float(size), "were not faster"),
        (lambda size: {4: 1.0, 8: 0.1, 16: 0.95, 32: 0.2, 64: 0.09}[size], "explains too little"),
    ],
)
def test_degenerate_curves_fall_back_to_the_smallest_profiled_batch_and_say_so(delay, reason):
    controller = BatchSizeController()
    fit = controller.fit(profiled(controller, delay))
    assert (fit.batch_size, fit.is_fallback) == (4, True)
    assert reason in fit.reason
    assert "falling back to the smallest profiled batch, 4" in fit.reason


@given(st.integers(0, 2))
def test_fewer_than_three_timed_sizes_fall_back(timed):
    controller = BatchSizeController()
    state = controller.start()
    for index, size in enumerate(SIZES):
        if index < timed:
            state = controller.observe(state, batch_size=size, seconds=size**0.2)
        else:
            state = controller.skip(state, batch_size=size)
    assert not controller.is_profiling(state)
    assert controller.pick(state) == 4
    assert "a fit needs 3" in controller.fit(state).reason


@given(st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=5))
def test_any_timings_give_a_pick_within_bounds(seconds):
    controller = BatchSizeController(cap=50, num_threads=8)
    state = controller.start()
    for size, spent in zip(controller.candidates, seconds, strict=False):
        state = controller.observe(state, batch_size=size, seconds=spent)
    assert 1 <= controller.pick(state) <= 50


def test_observing_leaves_the_old_state_alone():
    controller = BatchSizeController()
    state = controller.start()
    controller.observe(state, batch_size=4, seconds=1.0)
    assert state == controller.start()


def test_cap_below_all_candidates_is_the_one_candidate():
    assert BatchSizeController(cap=3).candidates == (3,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"candidates": ()}, "candidates must be ascending"),
        ({"candidates": (8, 4)}, "candidates must be ascending"),
        ({"candidates": (0, 4)}, "candidates must be ascending"),
        ({"tau": 0}, "tau must be a positive number, got 0"),
        ({"tau": math.nan}, "tau must be a positive number"),
        ({"cap": 0}, "cap must be at least 1 or None, got 0"),
        ({"num_threads": 0}, "num_threads must be at least 1 or None, got 0"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        BatchSizeController(**arguments)


@pytest.mark.parametrize(("size", "seconds"), [(0, 1.0), (4, 0.0), (4, math.nan), (4, math.inf)])
def test_impossible_observations_are_refused(size, seconds):
    controller = BatchSizeController()
    with pytest.raises(ValueError, match="must be"):
        controller.observe(controller.start(), batch_size=size, seconds=seconds)


@given(st.floats(0.3, 1.2))
def test_more_threads_never_pick_a_smaller_batch(alpha):
    assume(alpha != 1)
    picks = [
        BatchSizeController(num_threads=threads).fit(profiled(BatchSizeController(), power_law(1, alpha))).batch_size
        for threads in (8, 64, 512)
    ]
    assert picks == sorted(picks)
