"""Let the progress bars of several threads live side by side.

DSPy empties `tqdm`'s set of open bars whenever an evaluation starts, without `tqdm`'s lock. A bar that another thread
is opening or closing at that moment is then taken out of a set that no longer holds it, and the evaluation fails.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

_lock = threading.Lock()


class _OpenBars(WeakSet[Any]):
    """The open bars: taking one out twice is no error, and walking them is not disturbed by others."""

    def remove(self, item: Any) -> None:
        self.discard(item)

    def __iter__(self) -> Iterator[Any]:
        references = self.data.copy()  # pyright: ignore[reportAttributeAccessIssue]
        return iter([bar for bar in (reference() for reference in references) if bar is not None])


def share_progress_bars() -> None:
    """Make `tqdm`'s set of open bars bear changes by several threads, for the rest of the process."""
    from tqdm import tqdm

    with _lock:
        bars: Any = getattr(tqdm, "_instances", None)
        if isinstance(bars, WeakSet) and not isinstance(bars, _OpenBars):
            tqdm._instances = _OpenBars(bars)  # pyright: ignore[reportAttributeAccessIssue]
