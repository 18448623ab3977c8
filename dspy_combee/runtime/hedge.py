"""Do not let one slow call hold a wave: when it takes far longer than its siblings did, ask a second time.

The first answer wins; the slow call is left to end by itself in a daemon thread. A hedge costs at most one more call
an item, and only for stragglers.
"""

from __future__ import annotations

import contextvars
import queue
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class HedgePolicy:
    """When a call counts as a straggler."""

    factor: float = 5.0
    """How many times the median of the finished siblings it has to take. Above 4, calls that merely queue for one
    server one after the other are not taken for stragglers."""
    finished_fraction: float = 0.5
    """Which part of the wave has to be finished before that median says anything."""
    minimum_seconds: float = 0.05
    """Calls shorter than this are never hedged."""
    poll_seconds: float = 0.05
    """How often a waiting call is looked at."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.factor <= 1:
            raise ValueError(f"factor must be above 1, got {self.factor}")
        if not 0 < self.finished_fraction <= 1:
            raise ValueError(f"finished_fraction must be above 0 and at most 1, got {self.finished_fraction}")


@dataclass(slots=True)
class Wave(Generic[Result]):
    """The calls that are compared with each other. Shared by the threads that run them."""

    size: int
    policy: HedgePolicy
    clock: Callable[[], float] = time.monotonic
    _durations: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, function: Callable[[int], Result]) -> Result:
        """Return what `function(0)` returns or, when that one straggles, what `function(1)` returns first.

        An error of one of the two counts only when the other fails as well.
        """
        began = self.clock()
        answers: queue.SimpleQueue[tuple[Result | None, BaseException | None]] = queue.SimpleQueue()
        _start(function, 0, answers)
        running, hedged = 1, False
        while True:
            try:
                value, error = answers.get(timeout=self.policy.poll_seconds)
            except queue.Empty:
                if not hedged and self._is_straggler(self.clock() - began):
                    _start(function, 1, answers)
                    running, hedged = running + 1, True
                continue
            running -= 1
            if error is None:
                self._finish(self.clock() - began)
                return value  # type: ignore[return-value]  # a call without an error has its value
            if running == 0 or not isinstance(error, Exception):
                self._finish(self.clock() - began)
                raise error

    def _is_straggler(self, seconds: float) -> bool:
        with self._lock:
            if len(self._durations) < max(1, self.size * self.policy.finished_fraction):
                return False
            typical = statistics.median(self._durations)
        return seconds > max(self.policy.minimum_seconds, self.policy.factor * typical)

    def _finish(self, seconds: float) -> None:
        with self._lock:
            self._durations.append(seconds)


def _start(function: Callable[[int], Result], attempt: int, answers: queue.SimpleQueue) -> None:
    context = contextvars.copy_context()

    def answer() -> None:
        try:
            answers.put((context.run(function, attempt), None))
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting caller
            answers.put((None, error))

    threading.Thread(target=answer, name="combee-hedged-call", daemon=True).start()
