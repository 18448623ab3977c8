"""Switch off the progress bars of libraries that draw them unasked.

GEPA's and DSPy's bars have no off switch. Where the user wants none, what a bar writes to the standard streams is
dropped; everything else that is written there passes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_replaced: dict[str, tuple[int, Any]] = {}
"""By stream name: how many blocks want it without bars, and the stream that comes back after the last one."""


class _WithoutBars:
    """A text stream that passes on all but the frames of progress bars, which start with a carriage return."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._is_after_frame = False

    def write(self, text: str) -> int:
        """Write the text unless it is a frame of a bar, or the line break that ends one."""
        if text.startswith("\r") and not text.startswith("\r\n"):
            self._is_after_frame = True
            return len(text)
        if self._is_after_frame and text == "\n":
            self._is_after_frame = False
            return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def quiet_progress(*, keep_main_bar: bool = False) -> Iterator[None]:
    """Drop progress bars inside the block; safe to use from several threads at once.

    Args:
        keep_main_bar: Leave standard error alone, where GEPA draws the one bar of the whole run; DSPy draws one for
            each small evaluation on standard output.
    """
    names = ("stdout",) if keep_main_bar else ("stdout", "stderr")
    for name in names:
        _enter(name)
    try:
        yield
    finally:
        for name in names:
            _leave(name)


def _enter(name: str) -> None:
    with _lock:
        users, original = _replaced.get(name, (0, getattr(sys, name)))
        if users == 0:
            setattr(sys, name, _WithoutBars(original))
        _replaced[name] = users + 1, original


def _leave(name: str) -> None:
    with _lock:
        users, original = _replaced.pop(name)
        if users > 1:
            _replaced[name] = users - 1, original
        else:
            setattr(sys, name, original)
