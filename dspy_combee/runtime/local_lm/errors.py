"""What can go wrong with the embedded model. Every message says what to do about it."""

from __future__ import annotations

from dspy.utils.exceptions import LMError


class LocalModelError(LMError, RuntimeError):
    """The embedded model cannot be fetched, started or reached.

    It is a `dspy.utils.exceptions.LMError`, so code that tells an outage from a wrong answer treats it as an outage,
    and none of the errors that DSPy retries.
    """


class LocalServerEndedError(LocalModelError):
    """The embedded server ended while the program was still using it."""
