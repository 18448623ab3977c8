"""Counts, mean and intervals of paired differences: one number a pair, after - before.

A pair with a missing score has no difference: it is `None` here, it is counted, and it enters nothing else. This file
is pure; what follows from the numbers is decided in `acceptance.py`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2000
"""How many resamples a bootstrap interval rests on."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A range for the mean gain."""

    low: float
    high: float
    level: float
    """How often such an interval holds the true mean: 0.95 for 95 %."""

    def __str__(self) -> str:
        return f"{self.low:+.3f} to {self.high:+.3f}"


@dataclass(frozen=True, slots=True)
class PairedCounts:
    """What a list of paired differences comes to."""

    pairs: int
    """Pairs with a difference."""
    wins: int
    losses: int
    ties: int
    missing: int
    """Pairs without one, because a score was missing on either side."""
    mean: float | None
    """Mean of the differences; None without any."""

    def __str__(self) -> str:
        missing = f", {self.missing} missing" if self.missing else ""
        return f"{self.wins} better, {self.losses} worse, {self.ties} equal{missing}"


def known_differences(differences: Sequence[float | None]) -> tuple[float, ...]:
    """Return the differences that are there, in order.

    Raises:
        ValueError: When one is not finite.
        TypeError: When one is not a number.
    """
    known: list[float] = []
    for position, difference in enumerate(differences):
        if difference is None:
            continue
        try:
            value = float(difference)
        except (TypeError, ValueError) as error:
            raise TypeError(f"difference {position} must be a number or None, got {difference!r}") from error
        if not math.isfinite(value):
            raise ValueError(f"difference {position} must be finite (None for a missing one), got {difference!r}")
        known.append(value)
    return tuple(known)


def count_pairs(differences: Sequence[float | None]) -> PairedCounts:
    """Count wins, losses, ties and missing pairs, and take the mean."""
    known = known_differences(differences)
    wins = sum(difference > 0 for difference in known)
    losses = sum(difference < 0 for difference in known)
    return PairedCounts(
        pairs=len(known),
        wins=wins,
        losses=losses,
        ties=len(known) - wins - losses,
        missing=len(differences) - len(known),
        mean=math.fsum(known) / len(known) if known else None,
    )


def bootstrap_interval(
    differences: Sequence[float], *, rng: random.Random, level: float = 0.95, resamples: int = RESAMPLES
) -> Interval | None:
    """Return the percentile bootstrap interval of the mean, or None without differences.

    With few pairs it is too narrow, and when all pairs agree it is a point: it describes, it does not decide.

    Args:
        differences: One a pair, none missing.
        rng: Where the resamples are drawn from; the same state gives the same interval.
        level: Between 0 and 1.
        resamples: At least 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level!r}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples!r}")
    if not differences:
        return None
    # Sorted, so that the interval does not depend on the order in which pairs finished.
    ordered = sorted(differences)
    means = sorted(math.fsum(rng.choices(ordered, k=len(ordered))) / len(ordered) for _ in range(resamples))
    tail = (1 - level) / 2
    return Interval(
        low=means[math.floor(tail * (resamples - 1))], high=means[math.ceil((1 - tail) * (resamples - 1))], level=level
    )
