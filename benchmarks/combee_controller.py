"""Figure 3: the batch size that the controller picks, against the true knee of synthetic delay curves.

    python benchmarks/combee_controller.py [--quick]

The true knee is where one more example in the batch saves `tau` times the delay at the smallest profiled size, read off
the true curve; where the curve saves less from the start, it is the smallest profiled size. The error of a pick is the
factor between the two, in either direction. Baselines: always the largest candidate, always the smallest, and the plain
power law without a bend (least squares in log-log space, as published).
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from dspy_combee.batch_size import DEFAULT_CANDIDATES, BatchSizeController
from dspy_combee.delay_curve import plain_power_law as fitted_power_law
from dspy_combee.seeding import branch_rng

TAU = 1e-3
FARTHEST = 1_000
Delays = Mapping[int, float]
"""Seconds a train example by profiled size."""


@dataclass(frozen=True)
class Curve:
    """A true delay curve."""

    name: str
    delay: Callable[[float], float]
    """From batch size to seconds a train example of an epoch."""

    @cached_property
    def knee(self) -> float:
        """The largest batch whose last example still saves tau times the delay at the smallest profiled size."""
        smallest = DEFAULT_CANDIDATES[0]
        least = TAU * self.delay(smallest)
        sizes = [smallest + step / 10 for step in range(10 * (FARTHEST - smallest))]
        worth = [size for size in sizes if (self.delay(size - 0.01) - self.delay(size)) / 0.01 >= least]
        return max(worth, default=smallest)


def power(alpha: float) -> Curve:
    """Return a power law."""
    return Curve(f"power law, alpha {alpha:g}", lambda size: 10 * size**-alpha)


def saturating(threads: int) -> Curve:
    """Return a power law that ends at the number of threads."""
    return Curve(f"saturating at {threads} threads", lambda size: 10 * min(size, threads) ** -0.85)


def floored(floor: float, alpha: float) -> Curve:
    """Return a power law above a part of the delay that no batch size shortens."""
    return Curve(f"floor {floor:g}, alpha {alpha:g}", lambda size: floor + 10 * size**-alpha)


def rollouts(threads: int) -> Curve:
    """Return the delay of rollouts that queue for threads (1 s each, parent and child) and two calls of 3 s a round."""

    def delay(size: float) -> float:
        return 2 * max(size, threads) / threads / size + 6 / size

    return Curve(f"rollouts on {threads} threads", delay)


CURVES = {
    "power law": [power(alpha) for alpha in (0.3, 0.5, 0.7, 0.85, 1.0)],
    "saturating": [saturating(threads) for threads in (8, 16, 24, 32, 48)],
    "with a floor": [floored(0.1, 1), floored(0.3, 1), floored(1, 1), floored(0.3, 0.7), floored(1, 0.7)],
    "queueing rollouts": [rollouts(threads) for threads in (8, 16, 32)],
    "flat": [Curve("flat", lambda size: 5.0)],
}


def profile(curve: Curve, noise: float, seed: int) -> Delays:
    """Return one timing a candidate, with log-normal noise."""
    return {
        size: curve.delay(size) * math.exp(branch_rng(seed, curve.name, size).gauss(0, noise))
        for size in DEFAULT_CANDIDATES
    }


def controller_pick(delays: Delays) -> float:
    """Return the controller's pick after these timings."""
    controller = BatchSizeController(tau=TAU)
    state = controller.start()
    for size, delay in delays.items():
        state = controller.observe(state, batch_size=size, seconds=delay * size)
    return controller.pick(state)


def plain_power_law(delays: Delays) -> float:
    """Return the published plateau of a straight line in log-log space; the smallest size when it does not fall."""
    straight = fitted_power_law(delays)
    if straight.alpha <= 0:
        return min(delays)
    return max(1.0, straight.plateau(TAU * delays[min(delays)]))


PICKERS: dict[str, Callable[[Delays], float]] = {
    "controller": controller_pick,
    "plain power law": plain_power_law,
    "largest": max,
    "smallest": min,
}


def error(pick: float, knee: float) -> float:
    """Return the factor between pick and knee as a logarithm."""
    return abs(math.log(pick / knee))


def picks_table(noise: float, seeds: int) -> None:
    """Print what the controller picks for every curve."""
    print(f"\nPicks with timing noise of {noise:.0%} ({seeds} seeds: 10th percentile, median, 90th).\n")
    print("| curve | true knee | 10 % | median | 90 % | error |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for curve in (curve for family in CURVES.values() for curve in family):
        picks = sorted(controller_pick(profile(curve, noise, seed)) for seed in range(seeds))
        mean = math.exp(statistics.fmean(error(pick, curve.knee) for pick in picks))
        low, middle, high = picks[seeds // 10], picks[seeds // 2], picks[-1 - seeds // 10]
        print(f"| {curve.name} | {curve.knee:.0f} | {low} | {middle} | {high} | {mean:.2f}x |")


def error_table(noises: tuple[float, ...], seeds: int) -> None:
    """Print the mean error of each way to pick, by family of curves and noise."""
    print(f"\nMean error (factor between pick and true knee) over {seeds} seeds a curve; 1.00x is perfect.\n")
    print(f"| curves | noise | {' | '.join(PICKERS)} |")
    print(f"| --- | ---: | {' | '.join('---:' for _ in PICKERS)} |")
    every = [curve for family in CURVES.values() for curve in family]
    for name, family in {**CURVES, "**all**": every}.items():
        for noise in noises:
            cells = []
            for picker in PICKERS.values():
                errors = [
                    error(picker(profile(curve, noise, seed)), curve.knee)
                    for curve in family
                    for seed in range(seeds if noise else 1)
                ]
                cells.append(f"{math.exp(statistics.fmean(errors)):.2f}x")
            print(f"| {name} | {noise:.0%} | {' | '.join(cells)} |")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer seeds, for a look: a few seconds")
    quick = parser.parse_args().quick
    seeds = 5 if quick else 60
    error_table((0.0, 0.1, 0.25), seeds)
    picks_table(0.1, seeds)


if __name__ == "__main__":
    main()
