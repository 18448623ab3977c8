"""Which compiled program later tasks inherit: the criteria on paired confirmation differences.

One criterion a name: "mean_gain" and "robust" are the published ones; "anytime" tests by betting, so that noise is
not inherited and a run may look after every pair. `decide` judges what is there, `should_stop` says when the rest is
not worth its price. This file is pure: the same differences give the same decision.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

from dspy_evocue.betting import log_e_value, lower_bound, upper_bound
from dspy_evocue.paired_differences import Interval, PairedCounts, bootstrap_interval, count_pairs, known_differences

DEFAULT_CRITERION = "anytime"
"""What EvoCUE uses unless told otherwise; chosen by `benchmarks/evocue_acceptance.py`: on a coin-flip metric, three
rounds with nothing to find inherit something in 16 of 20 runs by the mean gain, and in one by this."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a criterion says of the differences so far."""

    accepted: bool
    reason: str
    """Why, as the end of a sentence: "the mean gain is not positive"."""
    evidence: float | None = None
    """The e-value, for a criterion that has one."""
    interval: Interval | None = None
    """A range for the mean gain; None leaves it to a bootstrap."""


@runtime_checkable
class AcceptanceCriterion(Protocol):
    """How inheritance is decided. Deterministic, and free of state between calls."""

    @property
    def name(self) -> str:
        """What tables and reasons call it."""
        ...

    def judge(self, differences: Sequence[float]) -> Verdict:
        """Judge the paired differences (after - before, none missing, at least one), in the order they were run."""
        ...


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an edit is inherited, and the numbers that say so."""

    criterion: str
    accepted: bool
    reason: str
    """One sentence."""
    counts: PairedCounts
    interval: Interval | None
    """A range for the mean gain; None without pairs."""
    evidence: float | None
    """The e-value, where the criterion has one: at least 1 / alpha accepts."""

    @property
    def wins(self) -> int:
        """Pairs in which the edited program scored higher."""
        return self.counts.wins

    @property
    def losses(self) -> int:
        """Pairs in which it scored lower."""
        return self.counts.losses

    @property
    def ties(self) -> int:
        """Pairs with equal scores."""
        return self.counts.ties

    @property
    def mean(self) -> float | None:
        """The mean paired difference; None without pairs."""
        return self.counts.mean

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as plain JSON values."""
        counts, interval = self.counts, self.interval
        return {
            "criterion": self.criterion,
            "accepted": self.accepted,
            "reason": self.reason,
            "pairs": counts.pairs,
            "wins": counts.wins,
            "losses": counts.losses,
            "ties": counts.ties,
            "missing": counts.missing,
            "mean": counts.mean,
            "interval": None if interval is None else [interval.low, interval.high],
            "interval_level": None if interval is None else interval.level,
            "evidence": self.evidence,
        }


@dataclass(frozen=True, slots=True)
class MeanGain:
    """Accept a positive mean gain. On a coin-flip metric that is noise four times in ten."""

    name: str = "mean_gain"

    def judge(self, differences: Sequence[float]) -> Verdict:
        """Judge by the sign of the sum."""
        positive = math.fsum(differences) > 0
        return Verdict(positive, f"the mean gain is {'' if positive else 'not '}positive")


@dataclass(frozen=True, slots=True)
class Robust:
    """Accept a positive mean gain that at least two tasks show and that survives without its largest gain."""

    name: str = "robust"

    def judge(self, differences: Sequence[float]) -> Verdict:
        """Judge by the sum, the number of gains, and the sum without the largest."""
        if math.fsum(differences) <= 0:
            return Verdict(False, "the mean gain is not positive")
        if sum(difference > 0 for difference in differences) < 2:
            return Verdict(False, "fewer than two tasks improved")
        if math.fsum(sorted(differences)[:-1]) < 0:
            return Verdict(False, "without its largest gain the total is negative")
        return Verdict(True, "the mean gain is positive, on at least two tasks, and survives without the largest")


@dataclass(frozen=True, slots=True)
class Anytime:
    """Accept when a bet against "the mean gain is at most zero" has multiplied its stake by `1 / alpha`.

    If the edit does nothing good, the chance that it is accepted is at most `alpha`, however often one looks and
    whenever one stops; confirmation tasks must be drawn at random. `alpha` holds for one edit, so a run that confirms
    several shares it between them (`for_run`).
    """

    alpha: float = 0.1
    """The chance of accepting an edit whose true mean gain is zero or less."""
    low: float = 0.0
    """The lowest score the metric can give."""
    high: float = 1.0
    """The highest score the metric can give."""
    stakes: Literal["amounts", "signs"] = "amounts"
    """What is bet on. "amounts": the size of each gain, as the claim about the mean demands. "signs": only whether
    each pair is a gain or a loss; finds many small gains sooner, and the claim is then that gains outnumber losses
    (a positive mean is asked for besides). With scores of 0 and 1 both are the same."""
    name: str = "anytime"

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha must be between 0 and 1, got {self.alpha!r}")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"low must be a number below high, got low={self.low!r}, high={self.high!r}")
        if self.stakes not in ("amounts", "signs"):
            raise ValueError(f'stakes must be "amounts" or "signs", got {self.stakes!r}')

    def judge(self, differences: Sequence[float]) -> Verdict:
        """Judge by the wealth of the bet."""
        values = self._in_units(differences)
        staked = [float((value > 0) - (value < 0)) for value in values] if self.stakes == "signs" else values
        log_evidence = log_e_value(staked)
        enough = log_evidence >= -math.log(self.alpha) - 1e-12
        accepted = enough and math.fsum(values) > 0
        evidence = math.exp(min(log_evidence, 700.0))
        comparison = f"the evidence for a gain is {evidence:.3g}, {1 / self.alpha:.3g} is needed"
        return Verdict(
            accepted,
            f"{comparison}; the mean gain is not positive" if enough and not accepted else comparison,
            evidence,
        )

    def interval(self, differences: Sequence[float]) -> Interval:
        """Return the mean gains that the evidence does not rule out, valid at any look."""
        scale = self.high - self.low
        values = self._in_units(differences)
        return Interval(
            low=scale * lower_bound(values, alpha=self.alpha),
            high=scale * upper_bound(values, alpha=self.alpha),
            level=1 - 2 * self.alpha,
        )

    def _in_units(self, differences: Sequence[float]) -> list[float]:
        """Return the differences as shares of the largest that there can be."""
        scale = self.high - self.low
        for difference in differences:
            if abs(difference) > scale * (1 + 1e-9):
                raise ValueError(
                    f"scores must lie in [{self.low:g}, {self.high:g}] (Anytime(low=, high=)), "
                    f"got a difference of {difference:g}"
                )
        return [max(-1.0, min(1.0, difference / scale)) for difference in differences]


CRITERIA: dict[str, AcceptanceCriterion] = {
    criterion.name: criterion for criterion in (MeanGain(), Robust(), Anytime())
}
"""The criteria that have a name."""


def find_criterion(criterion: str | AcceptanceCriterion) -> AcceptanceCriterion:
    """Return the criterion of that name, or the object itself.

    Raises:
        ValueError: When no criterion has that name.
        TypeError: When the object has no `name` and `judge`.
    """
    if isinstance(criterion, str):
        if criterion not in CRITERIA:
            raise ValueError(f"acceptance must be one of {', '.join(CRITERIA)} or an object, got {criterion!r}")
        return CRITERIA[criterion]
    if not isinstance(criterion, AcceptanceCriterion):
        raise TypeError(f"an acceptance criterion must have `name` and `judge(differences)`, got {criterion!r}")
    return criterion


def for_run(criterion: str | AcceptanceCriterion, decisions: int) -> AcceptanceCriterion:
    """Return the criterion with which a run that makes at most so many decisions keeps its promise as a whole.

    The alpha of `Anytime` is divided by their number, so that a run in which nothing is worth inheriting inherits
    something with a chance of at most the alpha that the user gave. Other criteria promise nothing and stay as
    they are.
    """
    if decisions < 1:
        raise ValueError(f"decisions must be at least 1, got {decisions!r}")
    judge = find_criterion(criterion)
    return replace(judge, alpha=judge.alpha / decisions) if isinstance(judge, Anytime) else judge


def decide(criterion: str | AcceptanceCriterion, differences: Sequence[float | None]) -> Decision:
    """Decide on the paired differences so far; with "anytime" this may be asked after each pair.

    Args:
        criterion: "mean_gain", "robust", "anytime", or an object.
        differences: After - before, one a pair, in the order run; None where a score is missing.
    """
    judge = find_criterion(criterion)
    known = known_differences(differences)
    counts = count_pairs(differences)
    verdict = judge.judge(known) if known else Verdict(False, "no pair has both scores")
    interval = verdict.interval
    if known and interval is None:
        # Not part of the verdict, because `should_stop` asks for verdicts by the dozen.
        is_anytime = isinstance(judge, Anytime)
        interval = judge.interval(known) if is_anytime else bootstrap_interval(known, rng=random.Random(0))
    return Decision(
        criterion=judge.name,
        accepted=verdict.accepted,
        reason=f"{'Accepted' if verdict.accepted else 'Not accepted'} by {judge.name}: {verdict.reason} ({counts}).",
        counts=counts,
        interval=interval,
        evidence=verdict.evidence,
    )


def should_stop(
    criterion: str | AcceptanceCriterion,
    differences: Sequence[float | None],
    planned: int,
    *,
    largest_gain: float = 1.0,
    hope: float = 0.6,
    threshold: float = 0.05,
) -> bool:
    """Say whether the remaining pairs are not worth their price: the candidate will hardly be accepted any more.

    Each remaining pair is supposed, hopefully, to be the largest gain with chance `hope` and a tie otherwise; when
    acceptance at the end then has a chance below `threshold`, the rest is not run (stochastic curtailment, Lan,
    Simon and Halperin 1982). With `threshold=0` it stops only when even gains in all remaining pairs would not do.
    Stopping can only lose an acceptance, never add one.

    Args:
        criterion: As for `decide`.
        differences: As for `decide`; a missing pair has used up its turn.
        planned: How many pairs would be run in all.
        largest_gain: The largest difference that a pair can have.
        hope: How often a pair gains under an edit worth having.
        threshold: The chance below which to give up, at least 0.
    """
    if not 0 <= hope <= 1:
        raise ValueError(f"hope must be between 0 and 1, got {hope!r}")
    judge = find_criterion(criterion)
    known = known_differences(differences)
    remaining = planned - len(differences)
    if remaining <= 0:
        return False
    needed = _gains_needed(judge, known, remaining, largest_gain)
    if needed is None:
        return True
    chance = math.fsum(
        math.comb(remaining, gains) * hope**gains * (1 - hope) ** (remaining - gains)
        for gains in range(needed, remaining + 1)
    )
    return chance < threshold


def _gains_needed(
    judge: AcceptanceCriterion, known: Sequence[float], remaining: int, largest_gain: float
) -> int | None:
    """Return how many of the remaining pairs must be the largest gain; None when all of them would not do."""
    for gains in range(remaining + 1):
        completed = (*known, *(largest_gain,) * gains, *(0.0,) * (remaining - gains))
        if judge.judge(completed).accepted:
            return gains
    return None
