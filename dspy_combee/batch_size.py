"""The dynamic batch-size controller: profile, fit, take the plateau (Combee, section 3.3).

One iteration is timed at each candidate size; `T(b) = A * b ** -alpha` is fitted to the delay of an epoch in log-log
space; the pick is the largest batch whose next example still saves `tau`: `(alpha * A / tau) ** (1 / (alpha + 1))`.
Pure: states are frozen, nothing here runs or waits.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, replace

DEFAULT_CANDIDATES = (4, 8, 16, 32, 64)
MINIMUM_R_SQUARED = 0.8
"""A fit that explains less of the log delay than this is not used."""
WORTHWHILE_DROP = 0.05
"""A larger batch that shortens the epoch by less than this fraction is past the knee."""


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
    """The pick."""
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


@dataclass(frozen=True, slots=True)
class BatchSizeController:
    """Choose the batch size at the knee of the delay curve.

    Args:
        candidates: The sizes to profile, ascending, one iteration each. Those above `cap` are left out.
        tau: What one more example in the batch must save to be worth it, as a fraction of the epoch's delay at the
            smallest profiled size. Relative, so that it does not depend on the speed of the model.
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
        delays = self._epoch_delays(state)
        if len(delays) < 3:
            return self._fallback(delays, f"{len(delays)} sizes could be timed, a fit needs 3")
        sizes = sorted(delays)
        knee = _observed_knee(sizes, delays)
        logs = [math.log(size) for size in sizes], [math.log(delays[size]) for size in sizes]
        slope, intercept = statistics.linear_regression(*logs)
        alpha, amplitude = -slope, math.exp(intercept)
        r_squared = _r_squared(*logs, slope, intercept)
        if alpha <= 0:
            return self._fallback(delays, f"larger batches were not faster (alpha = {alpha:.2f})", r_squared)
        if r_squared < MINIMUM_R_SQUARED and knee is None:
            return self._fallback(delays, f"the fit explains too little (R^2 = {r_squared:.2f})", r_squared)
        tau_seconds = self.tau * delays[sizes[0]]
        plateau = (alpha * amplitude / tau_seconds) ** (1 / (alpha + 1))
        batch_size, reason = self._bounded(plateau, sizes, knee)
        return DelayFit(batch_size, amplitude, alpha, r_squared, plateau, is_fallback=False, reason=reason)

    def _next_candidate(self, state: ControllerState) -> int | None:
        seen = {observation.batch_size for observation in state.observations} | set(state.skipped)
        return next((size for size in self.candidates if size not in seen), None)

    def _epoch_delays(self, state: ControllerState) -> dict[int, float]:
        """Return seconds a train example of an epoch by size: the median iteration divided by its batch size."""
        return {
            size: statistics.median(seen) / size
            for size in self.candidates
            if (seen := [o.seconds for o in state.observations if o.batch_size == size])
        }

    def _bounded(self, plateau: float, sizes: list[int], knee: int | None) -> tuple[int, str]:
        bounds = {"the plateau of the fit": plateau}
        if knee is not None:
            bounds["the largest profiled batch that still shortened the epoch"] = knee
        if self.num_threads is not None:
            bounds["the range that the threads and the profile cover"] = max(self.num_threads, sizes[-1])
        if self.cap is not None:
            bounds["the cap"] = self.cap
        reason = min(bounds, key=lambda name: bounds[name])
        return max(1, math.floor(min(bounds[reason], 1e9))), reason

    def _fallback(self, delays: dict[int, float], why: str, r_squared: float = math.nan) -> DelayFit:
        size = min(delays, default=self.candidates[0])
        reason = f"{why}: falling back to the smallest profiled batch, {size}"
        return DelayFit(size, math.nan, math.nan, r_squared, math.nan, is_fallback=True, reason=reason)


def _observed_knee(sizes: list[int], delays: dict[int, float]) -> int | None:
    """Return the size after which no profiled batch was faster by a worthwhile fraction; None if the last one was."""
    best = sizes[0]
    for size in sizes[1:]:
        if delays[size] < delays[best] * (1 - WORTHWHILE_DROP):
            best = size
    return None if best == sizes[-1] else best


def _r_squared(xs: list[float], ys: list[float], slope: float, intercept: float) -> float:
    mean = statistics.fmean(ys)
    total = sum((y - mean) ** 2 for y in ys)
    residual = sum((y - (intercept + slope * x)) ** 2 for x, y in zip(xs, ys, strict=True))
    return 1.0 if total == 0 else 1 - residual / total
