"""What can go wrong with the embedded model. Every message says what to do about it.

All of them are `dspy.utils.exceptions.LMError`, too, so code that tells an outage from a wrong answer takes them for an
outage; and none of those that DSPy calls again, since another attempt would fail the same way.
"""

from __future__ import annotations

from dspy.utils.exceptions import LMError

from dspy_combee.errors import LocalModelError


class LocalWeightsError(LocalModelError, LMError):
    """The model file cannot be fetched, stored or used."""


class LocalServerError(LocalModelError, LMError):
    """The embedded server cannot be started."""


class LocalServerEndedError(LocalServerError):
    """The embedded server ended while the program was still using it."""
