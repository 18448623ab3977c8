"""How the delay of an epoch falls with the batch size: a curve fitted to a few profiled sizes. Pure.

Combee, section 3.3, fits the power law `A * b ** -alpha`. Two things bend it in practice: a part of the delay that
does not shrink with the batch (a *floor*, for example rollouts that queue for threads), and an end of all scaling (a
*kink*: past it larger batches are no faster). A bent curve is used only where it describes the profile so much better
that its third parameter is worth it; the falling part is a power law in every shape.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Shape = Literal["power", "floor", "kink", "flat"]

PARAMETER_PENALTY = 2.0
"""What one more parameter must gain in the log likelihood (times two) to be believed."""
TIMING_NOISE = 0.05
"""Relative noise that any timing has; differences far below it prefer no shape over another."""
LARGEST_ALPHA = 1.3
"""A steeper curve would be faster than perfect scaling; behind a floor it only describes noise."""
SMALLEST_FALL = 0.05
"""Exponents below this are no fall at all."""
FLOORS_TRIED = 40


@dataclass(frozen=True, slots=True)
class DelayCurve:
    """Seconds a train example of an epoch, by batch size."""

    shape: Shape
    """What a delay is: "power": `A * b ** -alpha`; "floor": that plus `floor`; "kink": that or `floor`, whichever is
    more; "flat": `floor`."""
    amplitude: float
    """`A`, in seconds."""
    alpha: float
    floor: float = 0.0
    """In seconds."""
    r_squared: float = math.nan
    """How much of the variance of the log delay the curve explains."""

    def delay_at(self, batch_size: float) -> float:
        """Return the seconds a train example at a batch size."""
        falling = self.amplitude * batch_size**-self.alpha
        return {
            "power": falling,
            "floor": self.floor + falling,
            "kink": max(self.floor, falling),
            "flat": self.floor,
        }[self.shape]

    def plateau(self, tau_seconds: float) -> float:
        """Return the batch size at which one more example saves `tau_seconds`, at most the kink; 0 when none does."""
        if self.shape == "flat":
            return 0.0
        # A floor has no slope, so the published form holds for every shape.
        plateau = (self.alpha * self.amplitude / tau_seconds) ** (1 / (self.alpha + 1))
        return min(plateau, self.kink) if self.shape == "kink" else plateau

    @property
    def kink(self) -> float:
        """The batch size from which on the floor holds; meaningful for the shape "kink" only."""
        return (self.amplitude / self.floor) ** (1 / self.alpha)


def fit_delay_curve(delays: Mapping[int, float]) -> DelayCurve:
    """Return the curve that describes the delays best for the parameters it takes.

    Args:
        delays: Seconds a train example by batch size, all positive, at least three sizes.
    """
    power = _power_law(delays)
    candidates = [_flat(delays), *_floored(delays), *_kinked(delays)]
    if power.alpha > 0:
        candidates.insert(1, power)
    best = min(candidates, key=lambda curve: _badness(curve, delays))
    return _with_r_squared(best, delays)


def plain_power_law(delays: Mapping[int, float]) -> DelayCurve:
    """Return the power law through the delays, without a bend; its exponent is negative when they rise."""
    return _with_r_squared(_power_law(delays), delays)


def _power_law(delays: Mapping[int, float]) -> DelayCurve:
    slope, intercept = statistics.linear_regression(
        [math.log(size) for size in delays], [math.log(delay) for delay in delays.values()]
    )
    return DelayCurve("power", math.exp(intercept), -slope)


def _flat(delays: Mapping[int, float]) -> DelayCurve:
    return DelayCurve("flat", 0.0, 0.0, _geometric_mean(list(delays.values())))


def _floored(delays: Mapping[int, float]) -> list[DelayCurve]:
    """Return the best curve with a floor, if there is one: a grid over the floor, a power law above it."""
    lowest = min(delays.values())
    curves: list[DelayCurve] = []
    for part in range(1, FLOORS_TRIED):
        floor = lowest * part / FLOORS_TRIED
        above = _power_law({size: delay - floor for size, delay in delays.items()})
        if SMALLEST_FALL < above.alpha <= LARGEST_ALPHA:
            curves.append(DelayCurve("floor", above.amplitude, above.alpha, floor))
    return [min(curves, key=lambda curve: _squared_error(curve, delays))] if curves else []


def _kinked(delays: Mapping[int, float]) -> list[DelayCurve]:
    """Return the best curve with a kink, if there is one: a power law through the first sizes, level for the rest."""
    sizes = sorted(delays)
    curves: list[DelayCurve] = []
    for split in range(2, len(sizes)):
        falling = _power_law({size: delays[size] for size in sizes[:split]})
        if falling.alpha > SMALLEST_FALL:
            level = _geometric_mean([delays[size] for size in sizes[split:]])
            curves.append(DelayCurve("kink", falling.amplitude, falling.alpha, level))
    return [min(curves, key=lambda curve: _squared_error(curve, delays))] if curves else []


def _badness(curve: DelayCurve, delays: Mapping[int, float]) -> float:
    parameters = {"flat": 1, "power": 2, "floor": 3, "kink": 3}[curve.shape]
    mean_error = _squared_error(curve, delays) / len(delays)
    return len(delays) * math.log(mean_error + TIMING_NOISE**2) + PARAMETER_PENALTY * parameters


def _squared_error(curve: DelayCurve, delays: Mapping[int, float]) -> float:
    return sum(math.log(delay / curve.delay_at(size)) ** 2 for size, delay in delays.items())


def _with_r_squared(curve: DelayCurve, delays: Mapping[int, float]) -> DelayCurve:
    level = _flat(delays)
    total = _squared_error(level, delays)
    explained = 1.0 if total == 0 else 1 - _squared_error(curve, delays) / total
    return DelayCurve(curve.shape, curve.amplitude, curve.alpha, curve.floor, explained)


def _geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))
