"""Do not let one slow call hold a wave: when it takes far longer than it should, ask a second time.

How long a call should take is learned from its siblings in the wave; one that has none, such as the only call of the
last level, is measured by the pace of an earlier wave. The first answer wins; the slow call is left to end by itself
in a daemon thread.
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

from dspy_combee.runtime.interrupt import LOOK_UP_SECONDS

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class HedgePolicy:
    """When a call counts as a straggler."""

    factor: float = 5.0
    """How many times the usual time it has to take: the median of the finished siblings, or an earlier wave's pace.
    Above 4, calls that merely queue for one server one after the other are not taken for stragglers."""
    finished_fraction: float = 0.5
    """Which part of the wave has to be finished before that median says anything."""
    minimum_seconds: float = 1.0
    """Calls shorter than this are never hedged: on a busy machine the caller itself may stall for so long."""
    poll_seconds: float = 0.05
    """How long a waiting call is left alone at the least before it is looked at again."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.factor <= 1:
            raise ValueError(f"factor must be above 1, got {self.factor}")
        if not 0 < self.finished_fraction <= 1:
            raise ValueError(f"finished_fraction must be above 0 and at most 1, got {self.finished_fraction}")
        if not self.minimum_seconds >= 0:
            raise ValueError(f"minimum_seconds must be at least 0, got {self.minimum_seconds}")
        if not self.poll_seconds > 0:
            raise ValueError(f"poll_seconds must be above 0, got {self.poll_seconds}")


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the calls of an earlier wave took, and how much each of them read."""

    seconds: float
    """The median of their wall times."""
    chars: float
    """The median of the characters that they read."""

    def times(self, chars: float) -> float:
        """Return how many times as much as a call of that wave one that reads so many characters may take, 1 or more.

        In proportion to what it reads: a part of a call's time is the same for all, and reading is faster than
        writing, so this is patient rather than exact.
        """
        return max(1.0, chars / max(1.0, self.chars))

    def seconds_for(self, chars: float) -> float:
        """Return how long a call that reads so many characters may take."""
        return self.seconds * self.times(chars)


def always() -> bool:
    """Allow every second request."""
    return True


@dataclass(slots=True)
class Wave(Generic[Result]):
    """The calls that are compared with each other. Shared by the threads that run them."""

    size: int
    policy: HedgePolicy
    clock: Callable[[], float] = time.monotonic
    _durations: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(
        self,
        function: Callable[[int], Result],
        *,
        usual_seconds: float | None = None,
        is_allowed: Callable[[], bool] = always,
    ) -> Result:
        """Return what `function(0)` returns or, when that one straggles, what `function(1)` returns first.

        An error of one of the two, or a refusal to start it (a spent budget, the end of the run), counts only when
        the other fails as well; an interrupt counts at once.

        Args:
            function: Makes the call; 0 is the first request, 1 the second.
            usual_seconds: What stands in for the median of the siblings while too few have finished; None: nothing.
            is_allowed: Asked each time a straggler could be asked again, in the caller's thread.
        """
        began = self.clock()
        answers: queue.SimpleQueue[tuple[Result | None, BaseException | None]] = queue.SimpleQueue()
        _start(function, 0, answers)
        running, hedged = 1, False
        while True:
            seconds = self.clock() - began
            patience = LOOK_UP_SECONDS if hedged else self._patience(seconds, usual_seconds)
            if patience <= 0:
                if is_allowed():
                    _start(function, 1, answers)
                    running, hedged = running + 1, True
                patience = LOOK_UP_SECONDS
            try:
                value, error = answers.get(timeout=max(self.policy.poll_seconds, min(patience, LOOK_UP_SECONDS)))
            except queue.Empty:
                continue
            running -= 1
            if error is None:
                self._finish(self.clock() - began)
                return value  # type: ignore[return-value]  # a call without an error has its value
            if running == 0 or isinstance(error, KeyboardInterrupt | SystemExit):
                raise error

    def _patience(self, seconds: float, usual_seconds: float | None) -> float:
        """Return for how many seconds more a call that has taken so many is not to be looked at."""
        with self._lock:
            if len(self._durations) >= max(1, self.size * self.policy.finished_fraction):
                usual_seconds = statistics.median(self._durations)
        if usual_seconds is None:
            # As long again: siblings that finish meanwhile have taken half of what makes a straggler, or more.
            return max(self.policy.poll_seconds, seconds)
        return max(self.policy.minimum_seconds, self.policy.factor * usual_seconds) - seconds

    def _finish(self, seconds: float) -> None:
        # Calls that failed are not among them: a refusal comes in no time and says nothing about an answer.
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
