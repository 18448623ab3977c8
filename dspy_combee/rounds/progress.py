"""The progress bar of a run in rounds: one step an example (or a trace) that was learned from."""

from __future__ import annotations

from typing import Any

from dspy_combee.runtime.bars import share_progress_bars


def progress_bar(total: int | None, *, name: str, shown: bool) -> Any:
    """Return a `tqdm` bar, to be used in a `with` block; `total` is None where nobody knows it."""
    from tqdm import tqdm

    share_progress_bars()
    return tqdm(total=total, desc=name, unit="example", disable=not shown)
