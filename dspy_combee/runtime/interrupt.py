"""Hear of Ctrl-C before Python's own handler raises, so that workers can be told to start nothing more."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

LOOK_UP_SECONDS = 0.5
"""A signal that arrives just before a wait in the main thread begins would not end it: no wait there is longer."""


@contextmanager
def notice_interrupt(on_interrupt: Callable[[], None]) -> Iterator[None]:
    """Call a function as soon as SIGINT arrives inside the block, then the handler that was there.

    The main thread may have to wait for its workers before its `KeyboardInterrupt` is seen by anybody. Outside of the
    main thread, and where SIGINT is ignored or handled outside of Python, nothing is done.

    Args:
        on_interrupt: Called in the main thread, between any two steps of it: it may only set flags.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        on_interrupt()
        previous(number, frame)

    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is handler:
            signal.signal(signal.SIGINT, previous)
