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
_users = 0
_originals: tuple[Any, Any] | None = None


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
def quiet_progress(*, enabled: bool = True) -> Iterator[None]:
    """Drop progress bars inside the block; safe to use from several threads at once.

    Args:
        enabled: False leaves everything as it is.
    """
    if not enabled:
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _users, _originals
    with _lock:
        if _users == 0:
            _originals = sys.stdout, sys.stderr
            sys.stdout, sys.stderr = _WithoutBars(sys.stdout), _WithoutBars(sys.stderr)
        _users += 1


def _leave() -> None:
    global _users, _originals
    with _lock:
        _users -= 1
        if _users == 0 and _originals is not None:
            sys.stdout, sys.stderr = _originals
            _originals = None
