"""Testing by betting: evidence about a mean of bounded numbers that may be looked at after every one of them.

A gambler starts with a stake of 1 and bets, before each number is seen, that it will exceed the supposed mean. If the
mean is at most that, the wealth is a non-negative supermartingale: it reaches `1 / alpha` with probability at most
`alpha`, however often one looks and whenever one stops (Ville's inequality). The wealth is the *e-value*. See
I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86(1), 2024.

The share of the wealth that is bet is fixed ahead, as a mixture: nearly all of the stake goes to 0.83, which is about
the best bet for an effect that shows in a dozen pairs (the likelihood ratio of success rates 0.9 and 0.5 bets 0.8); the
rest keeps small effects detectable in long series. Grids and adaptive bets of that paper find no more at the same rate
of false acceptance, see `benchmarks/evocue_bets.py`. As no
bet depends on earlier numbers, the e-value does not depend on the order in which the pairs finished. With scores of 0
or 1 it amounts to: four wins at alpha = 0.1, five at 0.05, six at 0.033, and three more for each loss. Pairs without a
difference say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

BETS = ((0.83, 0.97), (0.5, 0.01), (0.25, 0.01), (0.1, 0.01))
"""(share of the wealth that is bet, share of the first stake that is bet so)."""


def log_e_value(values: Sequence[float], *, mean: float = 0.0) -> float:
    """Return the logarithm of the evidence against "the mean is at most `mean`".

    Args:
        values: Numbers in [-1, 1].
        mean: The supposed mean, above -1 and below 1.
    """
    # A step is at least -1 and a bet below 1, so the wealth stays positive.
    steps = [(value - mean) / (1 + mean) for value in values]
    logs = [math.log(weight) + math.fsum(math.log1p(bet * step) for step in steps) for bet, weight in BETS]
    largest = max(logs)
    return largest + math.log(math.fsum(math.exp(log - largest) for log in logs))


def lower_bound(values: Sequence[float], *, alpha: float) -> float:
    """Return the smallest mean in [-1, 1] that the evidence does not rule out at `alpha`, valid at any look."""
    threshold = -math.log(alpha)
    low, high = -1.0, 1.0
    # The evidence falls as the supposed mean rises, so the bound is found by halving; 40 steps reach 1e-12.
    for _ in range(40):
        middle = (low + high) / 2
        if log_e_value(values, mean=middle) >= threshold:
            low = middle
        else:
            high = middle
    return low


def upper_bound(values: Sequence[float], *, alpha: float) -> float:
    """Return the largest mean in [-1, 1] that the evidence does not rule out at `alpha`, valid at any look."""
    return -lower_bound([-value for value in values], alpha=alpha)
