"""How many items may run at once while a model's provider refuses calls.

The limit halves after several rate-limit errors and comes back one step at a time. It never decides whether a call is
tried again.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

_holding: contextvars.ContextVar[tuple[AdaptiveLimit, ...]] = contextvars.ContextVar("combee_limits", default=())


class AdaptiveLimit:
    """A semaphore whose size follows the provider's patience; share one among all executors that use one model."""

    def __init__(
        self,
        limit: int,
        *,
        tolerated_errors: int = 3,
        window_seconds: float = 60.0,
        settle_seconds: float = 5.0,
        recovery_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the settings.

        Args:
            limit: How many items may run at once at first and at most, 1 or more (the number of threads).
            tolerated_errors: The rate-limit errors within the window that halve the limit.
            window_seconds: How long an error counts.
            settle_seconds: How long after a halving errors do not count: they are those of calls made before it.
            recovery_seconds: Time without a rate-limit error after which one more item may run at once.
            clock: Where the time comes from.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit must be an int of at least 1, got {limit!r}")
        if tolerated_errors < 1:
            raise ValueError(f"tolerated_errors must be at least 1, got {tolerated_errors}")
        if min(window_seconds, settle_seconds, recovery_seconds) < 0:
            raise ValueError(
                "window_seconds, settle_seconds and recovery_seconds must not be negative, "
                f"got {window_seconds}, {settle_seconds} and {recovery_seconds}"
            )
        self._limit = limit
        self._current = limit
        self._running = 0
        self._tolerated_errors = tolerated_errors
        self._window_seconds = window_seconds
        self._settle_seconds = settle_seconds
        self._recovery_seconds = recovery_seconds
        self._clock = clock
        self._errors: deque[float] = deque()
        self._settled_at = float("-inf")
        self._calm_since = float("-inf")
        self._was_logged = False
        self._changed = threading.Condition()

    @property
    def current(self) -> int:
        """How many items may run at once now."""
        with self._changed:
            self._recover()
            return self._current

    @property
    def is_lowered(self) -> bool:
        """Whether fewer items than at first may run at once now, because the provider refuses calls."""
        return self.current < self._limit

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Wait until one more item may run, and count as running for the block.

        A slot within a slot of the same limit waits for nothing: it is part of an item that runs already.
        """
        held = _holding.get()
        if self in held:
            yield
            return
        with self._changed:
            while not self._may_start():
                # Recovery is noticed by looking at the clock, hence the look from time to time.
                self._changed.wait(timeout=1.0)
            self._running += 1
        token = _holding.set((*held, self))
        try:
            yield
        finally:
            _holding.reset(token)
            with self._changed:
                self._running -= 1
                self._changed.notify()  # one place is free, so one is woken: waking all costs the square of the items

    def observe_rate_limit(self) -> None:
        """Take note of one rate-limit error; halve the limit when there were too many."""
        with self._changed:
            now = self._clock()
            self._recover()
            self._calm_since = now
            if now < self._settled_at or self._current == 1:
                return
            self._errors.append(now)
            while self._errors[0] < now - self._window_seconds:
                self._errors.popleft()
            if len(self._errors) >= self._tolerated_errors:
                self._halve(now)

    def _may_start(self) -> bool:
        self._recover()
        return self._running < self._current

    def _halve(self, now: float) -> None:
        self._current = max(1, self._current // 2)
        self._settled_at = now + self._settle_seconds
        count = len(self._errors)
        self._errors.clear()
        level = logging.DEBUG if self._was_logged else logging.WARNING
        self._was_logged = True
        logger.log(
            level,
            "The model's provider refused %d calls within %g seconds (rate limit): going on with %d at once instead "
            "of %d. Set num_threads=%d to start there.",
            count,
            self._window_seconds,
            self._current,
            self._limit,
            self._current,
        )

    def _recover(self) -> None:
        if self._current == self._limit:
            return
        calm_seconds = self._clock() - self._calm_since
        if calm_seconds >= self._recovery_seconds:
            steps = int(calm_seconds // self._recovery_seconds) if self._recovery_seconds else self._limit
            self._current = min(self._limit, self._current + steps)
            self._calm_since += steps * self._recovery_seconds
            self._changed.notify_all()
