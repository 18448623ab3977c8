"""Hear of the rate-limit errors of model calls that a program, or a run's own boundary, turns into data.

An executor sees only the errors that its items raise; a failed rollout is an outcome and raises nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from dspy_combee.runtime.adaptive_limit import AdaptiveLimit
from dspy_combee.runtime.retry import ErrorKind, classify_error


@contextmanager
def telling_rate_limits(limit: AdaptiveLimit) -> Iterator[None]:
    """Tell the limit of every call of the block that a provider refused; DSPy's own retries come before that."""
    with dspy.context(callbacks=[_RateLimitWatch(limit), *dspy.settings.callbacks]):
        yield


class _RateLimitWatch(BaseCallback):
    def __init__(self, limit: AdaptiveLimit) -> None:
        super().__init__()
        self._limit = limit

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Take note of a call that was refused."""
        if exception is not None and classify_error(exception) is ErrorKind.RATE_LIMIT:
            self._limit.observe_rate_limit()
