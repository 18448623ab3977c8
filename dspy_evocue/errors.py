"""The exceptions of `dspy_evocue`, one class for each boundary where an edit, a run or a file can fail.

Wrong arguments stay `ValueError` and `TypeError`, raised before any model call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dspy_combee.errors import MetricError


class EvoCUEError(Exception):
    """Base of every error that `dspy_evocue` raises on its own account."""


class CallSiteNotFoundError(EvoCUEError):
    """An edit names a predictor that the program does not have, or that cannot be edited."""

    def __init__(self, site: str, known: Sequence[str]) -> None:
        """Name the site and what could have been named instead."""
        self.site = site
        self.known = tuple(known)
        super().__init__(site, self.known)

    def __str__(self) -> str:
        """Say which predictors there are."""
        return f"no predictor {self.site!r} in this program; it has {', '.join(self.known) or 'none'}"


class MissingFeatureError(EvoCUEError):
    """A rule tests a feature that nothing computes: the edit would be silently off."""


class FeatureError(EvoCUEError):
    """A feature function raised, or returned something that is not a string."""


class ArtifactError(EvoCUEError):
    """A saved program cannot be read as one, or does not fit the program that it is loaded into."""


class RecordingError(EvoCUEError):
    """A recording does not belong to this program or this example, so nothing can be restored from it."""


class StoppedByMetricError(EvoCUEError, MetricError):
    """The metric returned something that is not a score, which stopped many runs at once; nothing paid for is lost."""

    def __init__(self, error: MetricError, finished: tuple[Any, ...]) -> None:
        """Say what the metric did, and keep the finished records or recordings, in the order of their requests."""
        self.error = error
        self.finished = finished
        super().__init__(error, finished)

    def __str__(self) -> str:
        """Say what the metric did, and how much is kept."""
        return f"{self.error} (what was finished before, {len(self.finished)} in all, is in the exception's finished)"


class EnvironmentFault(EvoCUEError):
    """The environment failed to reset, snapshot or restore the tools' world."""


class Divergence(BaseException):
    """A replayed run did something else than its recording, so the checkpoint cannot be reached.

    It derives from `BaseException` because it has to get through code that takes an `Exception` for the failure of one
    step: `dspy.ReAct` turns a tool's error into an observation and a predictor's `ValueError` into an early end. The
    trial that replays catches it and becomes unresolved.
    """

    def __init__(self, where: str, expected: str, got: str) -> None:
        """Name the event, what the recording holds there, and what came instead."""
        self.where = where
        self.expected = expected
        self.got = got
        super().__init__(where, expected, got)

    def __str__(self) -> str:
        """Say what differed, and where."""
        return f"{self.where}: the recording has {self.expected}, the replay {self.got}"


class EnvironmentDivergence(Divergence):
    """The environment failed in the middle of a run, where an ordinary exception could be taken for a tool's error."""

    def __init__(self, what: str, error: Exception) -> None:
        """Name what it was to do, and what it raised."""
        self.what = what
        self.error = error
        super().__init__("the environment", what, f"raised {type(error).__name__}: {error}")

    def __str__(self) -> str:
        """Say what it could not do."""
        return f"the environment's {self.what} raised {type(self.error).__name__}: {self.error}"
