"""The dynamic batch-size controller: profile, fit, take the plateau (Combee, section 3.3).

One iteration is timed at each candidate size; `T(b) = A * b ** -alpha`, bent where the profile bends
(`dspy_combee.delay_curve`), is fitted to the delay of an epoch in log-log space; the pick is the largest batch whose
next example still saves `tau`: `(alpha * A / tau) ** (1 / (alpha + 1))`. Pure: states are frozen, nothing here runs or
waits.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, replace

from dspy_combee.delay_curve import SMALLEST_FALL, DelayCurve, fit_delay_curve, plain_power_law

DEFAULT_CANDIDATES = (4, 8, 16, 32, 64)
MINIMUM_R_SQUARED = 0.6
"""A fit that explains less of the log delay than this is not used."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One timed iteration."""

    batch_size: int
    seconds: float
    """Wall time of the iteration: rollouts of parent and child, reflection, aggregation."""


@dataclass(frozen=True, slots=True)
class ControllerState:
    """What has been seen so far. Build it with `BatchSizeController.start` and `observe`."""

    observations: tuple[Observation, ...] = ()
    skipped: tuple[int, ...] = ()
    """Candidates that gave no usable timing and are not tried again."""


@dataclass(frozen=True, slots=True)
class DelayFit:
    """The fitted delay curve and the pick that follows from it."""

    batch_size: int
    """The pick; never below the smallest profiled size."""
    amplitude: float
    """`A`: the fitted delay at batch size 1, in seconds a train example of an epoch; NaN without a fit."""
    alpha: float
    """The fitted exponent: 1 means perfect scaling, 0 none; NaN without a fit."""
    r_squared: float
    """How much of the variance of the log delay the fit explains; NaN without a fit."""
    plateau: float
    """`b*` before it is rounded and capped; NaN without a fit."""
    is_fallback: bool
    """Whether the smallest profiled batch stands in for a poor or degenerate fit."""
    reason: str
    """In words: how the pick came about."""
    curve: DelayCurve | None = None
    """The whole curve; None without a fit."""
    profile: tuple[Observation, ...] = ()
    """What the fit stands on: the median iteration of each profiled size, by size."""


@dataclass(frozen=True, slots=True)
class BatchSizeController:
    """Choose the batch size at the knee of the delay curve.

    Args:
        candidates: The sizes to profile, ascending, one iteration each. Those above `cap` are left out.
        tau: What one more example in the batch must save to be worth it, as a fraction of the epoch's delay at the
            smallest profiled size as fitted. Relative, so that it does not depend on the speed of the model.
        cap: The largest size ever picked (train set, budget); None means no cap.
        num_threads: How many rollouts run at once. The fit is not extrapolated past the larger of this and the
            largest profiled size: beyond it rollouts queue and the curve bends.

    Raises:
        ValueError: an argument is out of range, or no candidate is at most `cap`.
    """

    candidates: tuple[int, ...] = DEFAULT_CANDIDATES
    tau: float = 1e-3
    cap: int | None = None
    num_threads: int | None = None

    def __post_init__(self) -> None:
        candidates = tuple(self.candidates)
        if not candidates or candidates[0] < 1 or any(a >= b for a, b in itertools.pairwise(candidates)):
            raise ValueError(f"candidates must be ascending sizes of at least 1, got {candidates}")
        if not (math.isfinite(self.tau) and self.tau > 0):
            raise ValueError(f"tau must be a positive number, got {self.tau}")
        if self.cap is not None and self.cap < 1:
            raise ValueError(f"cap must be at least 1 or None, got {self.cap}")
        if self.num_threads is not None and self.num_threads < 1:
            raise ValueError(f"num_threads must be at least 1 or None, got {self.num_threads}")
        within = tuple(size for size in candidates if self.cap is None or size <= self.cap)
        object.__setattr__(self, "candidates", within or (self.cap,))

    def start(self) -> ControllerState:
        """Return the state before the first iteration."""
        return ControllerState()

    def observe(self, state: ControllerState, *, batch_size: int, seconds: float) -> ControllerState:
        """Return the state after an iteration of `batch_size` examples that took `seconds` of wall time.

        Raises:
            ValueError: `batch_size` is below 1, or `seconds` is not a positive number.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"seconds must be a positive number, got {seconds}")
        return replace(state, observations=(*state.observations, Observation(batch_size, seconds)))

    def skip(self, state: ControllerState, *, batch_size: int) -> ControllerState:
        """Return the state after a candidate gave no usable timing (skipped or failed iterations, a warm cache)."""
        return replace(state, skipped=(*state.skipped, batch_size))

    def is_profiling(self, state: ControllerState) -> bool:
        """Whether a candidate is still waiting to be timed."""
        return self._next_candidate(state) is not None

    def pick(self, state: ControllerState) -> int:
        """Return the size of the next batch: the next candidate while profiling, the plateau afterwards."""
        candidate = self._next_candidate(state)
        return self.fit(state).batch_size if candidate is None else candidate

    def fit(self, state: ControllerState) -> DelayFit:
        """Fit the delay curve to the profiled candidates and say what follows."""
        profile = self._profile(state)
        delays = {one.batch_size: one.seconds / one.batch_size for one in profile}
        if len(delays) < 3:
            return self._fallback(profile, f"{len(delays)} sizes could be timed, a fit needs 3")
        curve = fit_delay_curve(delays)
        straight = plain_power_law(delays) if curve.shape == "flat" else curve
        if straight.alpha < SMALLEST_FALL:
            why = f"larger batches were not faster (alpha = {straight.alpha:.2f})"
            return self._fallback(profile, why, straight.r_squared)
        if curve.shape == "flat" or curve.r_squared < MINIMUM_R_SQUARED:
            why = f"the fit explains too little (R^2 = {straight.r_squared:.2f})"
            return self._fallback(profile, why, straight.r_squared)
        # The fitted delay, not the timed one: a single slow iteration would move the pick twice.
        plateau = curve.plateau(self.tau * curve.delay_at(min(delays)))
        batch_size, reason = self._bounded(plateau, curve, list(delays))
        return DelayFit(
            batch_size,
            curve.amplitude,
            curve.alpha,
            curve.r_squared,
            plateau,
            is_fallback=False,
            reason=reason,
            curve=curve,
            profile=profile,
        )

    def _next_candidate(self, state: ControllerState) -> int | None:
        seen = {observation.batch_size for observation in state.observations} | set(state.skipped)
        return next((size for size in self.candidates if size not in seen), None)

    def _profile(self, state: ControllerState) -> tuple[Observation, ...]:
        """Return the median iteration of each candidate that was timed, by size."""
        return tuple(
            Observation(size, statistics.median(seen))
            for size in self.candidates
            if (seen := [o.seconds for o in state.observations if o.batch_size == size])
        )

    def _bounded(self, plateau: float, curve: DelayCurve, sizes: list[int]) -> tuple[int, str]:
        is_kink = curve.shape == "kink" and plateau == curve.kink
        name = "the largest batch that still shortened the epoch" if is_kink else "the plateau of the fit"
        bounds = {name: plateau}
        if self.num_threads is not None:
            bounds["the range that the threads and the profile cover"] = max(self.num_threads, sizes[-1])
        if self.cap is not None:
            bounds["the cap"] = self.cap
        reason = min(bounds, key=lambda name: bounds[name])
        return max(sizes[0], math.floor(min(bounds[reason], 1e9) + 1e-6)), reason

    def _fallback(self, profile: tuple[Observation, ...], why: str, r_squared: float = math.nan) -> DelayFit:
        size = profile[0].batch_size if profile else self.candidates[0]
        reason = f"{why}: falling back to the smallest profiled batch, {size}"
        nothing = math.nan
        return DelayFit(size, nothing, nothing, r_squared, nothing, is_fallback=True, reason=reason, profile=profile)
