"""The family of executors, by the names that `execution=` takes."""

from __future__ import annotations

from dspy_combee.runtime.execution.base import Executor

NAMES = ("threads",)


def make_executor(execution: str, num_threads: int | None) -> Executor:
    """Return the executor of that name.

    Args:
        execution: One of `NAMES`.
        num_threads: How many items run at once at most; None for `dspy.settings.num_threads` as it is now.

    Raises:
        TypeError: `num_threads` is no int.
        ValueError: the name is unknown, or `num_threads` is below 1.
    """
    if execution not in NAMES:
        raise ValueError(f"execution must be one of {', '.join(NAMES)}, got {execution!r}")
    from dspy_combee.runtime.execution.threads import ThreadExecutor, default_num_workers

    return ThreadExecutor(default_num_workers() if num_threads is None else num_threads)
