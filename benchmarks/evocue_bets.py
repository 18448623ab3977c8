"""Which bet should the criterion "anytime" make? Power of several, at one alpha and at one measured false rate.

Run `python benchmarks/evocue_bets.py` (ten seconds). Pairs are coin flips, as in `evocue_acceptance.py`; the wealth is
looked at after every pair, and a confirmation accepts as soon as it reaches `1 / alpha`.

The adaptive bets (PrPl-EB, aGRAPA) and the grid are those of I. Waudby-Smith and A. Ramdas, "Estimating means of
bounded random variables by betting", JRSS B 86(1), 2024.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Sequence

import numpy as np

from dspy_combee.seeding import branch_rng
from dspy_evocue.betting import BETS

ALPHA = 0.1 / 3
"""What each of three rounds gets of the default."""
SIZES = (8, 12, 16)
FALSE_RATES = (0.01, 0.033)
Wealth = Callable[[np.ndarray], np.ndarray]
"""Differences in [-1, 1], one row a confirmation and one column a pair -> logarithm of the wealth after each pair."""


def coin_pair(before: float, after: float) -> Callable[[random.Random], float]:
    """Return a pair of independent successes with these chances."""
    return lambda rng: float(rng.random() < after) - float(rng.random() < before)


EFFECTS = {
    "0.5 to 0.9": coin_pair(0.5, 0.9),
    "0.3 to 0.7": coin_pair(0.3, 0.7),
    "+0.4, no noise": coin_pair(0.0, 0.4),
}


def mixture(bets: Sequence[tuple[float, float]]) -> Wealth:
    """Return the wealth of fixed bets (share of the wealth, share of the first stake)."""

    def wealth(values: np.ndarray) -> np.ndarray:
        logs = [math.log(stake) + np.cumsum(np.log1p(bet * values), axis=1) for bet, stake in bets]
        return np.logaddexp.reduce(logs, axis=0)

    return wealth


def adaptive(next_bet: Callable[[int, np.ndarray, np.ndarray], np.ndarray], prior_mean: float) -> Wealth:
    """Return the wealth of a bet made from the mean and the variance so far, of scores moved to [0, 1]."""

    def wealth(values: np.ndarray) -> np.ndarray:
        scores = (values + 1) / 2
        logs = np.zeros_like(scores)
        total = np.full(len(scores), prior_mean)
        squares = np.full(len(scores), 0.25)
        log_wealth = np.zeros(len(scores))
        for turn in range(1, scores.shape[1] + 1):
            score = scores[:, turn - 1]
            log_wealth = log_wealth + np.log1p(next_bet(turn, total / turn, squares / turn) * (score - 0.5))
            logs[:, turn - 1] = log_wealth
            total = total + score
            squares = squares + (score - total / (turn + 1)) ** 2
        return logs

    return wealth


def prpl_eb(largest: float) -> Wealth:
    """Return the predictable plug-in empirical-Bernstein bet, at most this share of the wealth."""
    return adaptive(
        lambda turn, mean, variance: np.minimum(
            np.sqrt(2 * math.log(1 / ALPHA) / (variance * turn * math.log(1 + turn))), 2 * largest
        ),
        prior_mean=0.5,
    )


def agrapa(largest: float) -> Wealth:
    """Return the approximate growth-rate adaptive bet, at most this share of the wealth."""
    return adaptive(
        lambda turn, mean, variance: np.clip((mean - 0.5) / (variance + (mean - 0.5) ** 2), 0, 2 * largest),
        prior_mean=0.6,
    )


STRATEGIES: dict[str, Wealth] = {
    "default: 0.83, some on smaller bets": mixture(BETS),
    "Kelly grid 0.05 to 0.95": mixture([(number / 20, 1 / 19) for number in range(1, 20)]),
    "Kelly grid 0.5 to 0.9": mixture([(number / 10, 1 / 5) for number in range(5, 10)]),
    "0.6": mixture([(0.6, 1.0)]),
    "0.98": mixture([(0.98, 1.0)]),
    "PrPl-EB, at most 0.5": prpl_eb(0.5),
    "PrPl-EB, at most 0.9": prpl_eb(0.9),
    "aGRAPA, at most 0.9": agrapa(0.9),
}


def drawn(pair: Callable[[random.Random], float], size: int, seeds: int, name: str) -> np.ndarray:
    """Return the differences of many confirmations of this size."""
    rng = branch_rng(0, "bets", name, size)
    return np.array([[pair(rng) for _ in range(size)] for _ in range(seeds)])


def power_at(rate: float, null: np.ndarray, effect: np.ndarray) -> float:
    """Return the share of effects above the threshold that this share of nulls exceeds; ties are decided by lot."""
    peaks, found = (np.round(wealth.max(axis=1), 9) for wealth in (null, effect))
    threshold = np.sort(peaks)[::-1][int(rate * len(peaks))]
    lot = (rate - np.mean(peaks > threshold)) / np.mean(peaks == threshold)
    return float(np.mean(found > threshold) + lot * np.mean(found == threshold))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description="Bets for the criterion anytime")
    parser.add_argument("--seeds", type=int, default=20000)
    seeds = parser.parse_args().seeds
    for size in SIZES:
        null = drawn(coin_pair(0.5, 0.5), size, seeds, "nothing")
        effects = {name: drawn(pair, size, seeds, name) for name, pair in EFFECTS.items()}
        print(f"\n### {size} pairs at most\n")
        columns = ["nothing", *EFFECTS, *(f"0.5 to 0.9 at a false rate of {rate:.1%}" for rate in FALSE_RATES)]
        print(f"| bet, at alpha {ALPHA:.3f} | " + " | ".join(columns) + " |")
        print("|---|" + "---|" * len(columns))
        for name, wealth in STRATEGIES.items():
            logs = {effect: wealth(values) for effect, values in {"nothing": null, **effects}.items()}
            accepted = [np.mean((one >= -math.log(ALPHA) - 1e-12).any(axis=1)) for one in logs.values()]
            level = [power_at(rate, logs["nothing"], logs["0.5 to 0.9"]) for rate in FALSE_RATES]
            print(f"| {name} | " + " | ".join(f"{share:.3f}" for share in [*accepted, *level]) + " |")


if __name__ == "__main__":
    main()
