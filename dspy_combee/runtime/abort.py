"""End a run from inside a rollout, and refuse further model calls once it has ended."""

from __future__ import annotations

from typing import NoReturn


class Aborted(BaseException):
    """Ends a run from inside a rollout: `dspy.Evaluate` would score an `Exception` 0.0 and go on."""


class AbortSwitch:
    """Remembers why a run had to end, for the thread that reports it. Safe to use from several threads."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        """What ended the run; None while it goes on and after an interrupt."""
        self.was_interrupted = False
        self.is_closed = False
        """Whether no further model call may start."""

    def close(self, error: Exception) -> None:
        """Let no further call start because of this error; the first one counts."""
        self.error = self.error or error
        self.is_closed = True

    def now(self, error: Exception) -> NoReturn:
        """End the run at once because of this error.

        Raises:
            Aborted: always.
        """
        self.close(error)
        raise Aborted(str(error))

    def interrupt(self) -> None:
        """Let no further call start: the run was interrupted."""
        self.was_interrupted = True
        self.is_closed = True

    def refuse_when_closed(self) -> None:
        """Refuse to go on after the end.

        Raises:
            Aborted: the run has ended.
        """
        if self.is_closed:
            raise Aborted("the run has ended")
