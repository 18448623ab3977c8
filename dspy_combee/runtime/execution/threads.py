"""Run one function over many items in threads of this process.

The pool lives for one run, so a run inside a run cannot wait for its own workers. Whether a failed item is tried
again is decided elsewhere (`runtime.retry`); nothing here is ever started twice.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, cast

from dspy_combee.runtime.adaptive_limit import AdaptiveLimit
from dspy_combee.runtime.execution.base import Item, Outcome, Result
from dspy_combee.runtime.interrupt import LOOK_UP_SECONDS
from dspy_combee.runtime.python_syntax import share_parser
from dspy_combee.runtime.retry import ErrorKind, classify_error

logger = logging.getLogger(__name__)


class ThreadExecutor:
    """The `Executor` that runs items in threads, each in a fresh copy of the caller's context.

    `dspy.context(...)`, the trace, callbacks and their ancestry hold inside as they are in the caller; DSPy's usage
    tracker is shared with it, so what the items used is counted where the run was started. `on_done` is called in the
    caller's thread. With one worker everything runs in the caller's thread, with the same promises.

    After an interrupt the calls in flight are waited for, because they are paid for; a second interrupt leaves them. An
    `on_done` that an interrupt strikes is called again for the same outcome.
    """

    def __init__(
        self,
        num_workers: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        limit: AdaptiveLimit | None = None,
    ) -> None:
        """Store the settings; threads are started by `run` only.

        Args:
            num_workers: How many items run at once at most, 1 or more.
            clock: Where the seconds of the outcomes come from.
            limit: A limit shared with other executors; it lowers the number of items at once while the model's
                provider refuses calls, and is told of every outcome that is a rate-limit error.
        """
        if isinstance(num_workers, bool) or not isinstance(num_workers, int):
            raise TypeError(f"num_workers must be an int, got {num_workers!r}")
        if num_workers < 1:
            raise ValueError(f"num_workers must be at least 1, got {num_workers}")
        self._num_workers = num_workers
        self._clock = clock
        self._limit = limit

    @property
    def num_workers(self) -> int:
        """How many items run at once at most."""
        return self._num_workers

    def run(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        on_done: Callable[[Outcome[Result]], None] | None = None,
    ) -> list[Outcome[Result]]:
        """Return one outcome an item, in the order of the items; `on_done` is called as each one finishes.

        Raises:
            BaseException: What an item raised, when it is no `Exception`; `KeyboardInterrupt`; or what `on_done`
                raised. In each case no further item is started, and `on_done` has seen everything that finished.
        """
        # Also with one worker: the caller may be one of several threads.
        share_parser()
        run = _Run(function, items, contextvars.copy_context(), self._clock, self._limit)
        collector = _Collector(run, on_done or _ignore)
        workers = min(self._num_workers, len(run.items))
        if workers <= 1:
            run.work(collector.take)
        else:
            collector.collect(workers)
        return cast("list[Outcome[Result]]", collector.outcomes)


def default_num_workers() -> int:
    """Return DSPy's own setting for the number of threads."""
    import dspy

    return dspy.settings.num_threads


def _ignore(outcome: Outcome[Any]) -> None:
    pass


@dataclass(slots=True)
class _Run(Generic[Item, Result]):
    """The work of one run, shared by its workers."""

    function: Callable[[Item], Result]
    items: Sequence[Item]
    context: contextvars.Context
    clock: Callable[[], float]
    limit: AdaptiveLimit | None
    is_stopped: bool = False
    _started: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, report: Callable[[Outcome[Result]], None]) -> None:
        """Run items until none is left or the run is stopped; stop the run when one raises a `BaseException`."""
        try:
            while (outcome := self._run_next()) is not None:
                report(outcome)
        except BaseException:
            self.is_stopped = True
            raise

    def _run_next(self) -> Outcome[Result] | None:
        # A copy for each item, not for each worker: what one item sets in its context no other item may see.
        return self.context.copy().run(self._run_next_here)

    def _run_next_here(self) -> Outcome[Result] | None:
        with self.limit.slot() if self.limit is not None else nullcontext():
            index = self._take_index()
            return None if index is None else self._run_item(index)

    def _take_index(self) -> int | None:
        with self._lock:
            if self.is_stopped or self._started == len(self.items):
                return None
            self._started += 1
            return self._started - 1

    def _run_item(self, index: int) -> Outcome[Result]:
        began = self.clock()
        try:
            value = self.function(self.items[index])
        except Exception as error:  # noqa: BLE001 - an item's error is its outcome
            if self.limit is not None and classify_error(error) is ErrorKind.RATE_LIMIT:
                self.limit.observe_rate_limit()
            return Outcome(index, None, error, self.clock() - began)
        return Outcome(index, value, None, self.clock() - began)


class _Collector(Generic[Result]):
    """Gathers the outcomes of a run in the caller's thread.

    An interrupt may strike between any two steps there, so whatever a worker says stays in `_news` until it has been
    taken completely, and taking it again does no harm.
    """

    def __init__(self, run: _Run[Any, Result], on_done: Callable[[Outcome[Result]], None]) -> None:
        self.outcomes: list[Outcome[Result] | None] = [None] * len(run.items)
        self._run = run
        self._on_done = on_done
        self._news: deque[Outcome[Result] | _WorkerEnd] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._may_begin = threading.Event()
        self._ended: set[int] = set()
        self._failure: BaseException | None = None

    def take(self, outcome: Outcome[Result]) -> None:
        """Store one outcome and pass it on."""
        self.outcomes[outcome.index] = outcome
        self._on_done(outcome)

    def collect(self, workers: int) -> None:
        """Run the items in this many threads until none works any more."""
        self._start(workers)
        try:
            self._drain(workers)
        except BaseException as error:
            self._run.is_stopped = True
            if isinstance(error, KeyboardInterrupt):
                logger.warning("Interrupted: waiting for the calls in flight. Interrupt again to leave them.")
            self._drain(workers)
            raise
        if self._failure is not None:
            raise self._failure

    def _start(self, workers: int) -> None:
        # No worker begins before all are started: after an interrupt in here nobody knows which ones are.
        try:
            for number in range(workers):
                # Daemons, so that a call that is left after a second interrupt cannot keep the process alive.
                threading.Thread(target=self._work, args=(number,), name=f"combee-{number}", daemon=True).start()
        except BaseException:
            self._run.is_stopped = True
            raise
        finally:
            self._may_begin.set()

    def _work(self, number: int) -> None:
        failure: BaseException | None = None
        self._may_begin.wait()
        try:
            self._run.work(self._tell)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failure = error
        self._tell(_WorkerEnd(number, failure))

    def _tell(self, news: Outcome[Result] | _WorkerEnd) -> None:
        self._news.append(news)
        self._wake.put(None)

    def _drain(self, workers: int) -> None:
        while True:
            while self._news:
                self._take_news()
            if len(self._ended) == workers:
                return
            with suppress(queue.Empty):
                self._wake.get(timeout=LOOK_UP_SECONDS)

    def _take_news(self) -> None:
        news = self._news[0]
        if isinstance(news, _WorkerEnd):
            self._ended.add(news.worker)
            self._failure = self._failure or news.failure
        else:
            try:
                self.take(news)
            except Exception:
                self._news.popleft()  # `on_done` failed: it is not asked again
                raise
        self._news.popleft()


@dataclass(frozen=True, slots=True)
class _WorkerEnd:
    """The last thing that a worker says."""

    worker: int
    failure: BaseException | None
