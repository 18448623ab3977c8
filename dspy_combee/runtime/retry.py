"""Which failures of a model call are worth another attempt, and when to make it.

DSPy's own retries (`num_retries`) happen inside one call; these happen around a step of a run, which may be several
calls. Nothing here imports DSPy or a provider's package: errors are recognised by the names of their classes.
"""

from __future__ import annotations

import enum
import logging
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dspy_combee.runtime.adaptive_limit import AdaptiveLimit

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class ErrorKind(enum.Enum):
    """What an exception says about the language model."""

    RATE_LIMIT = "rate limit"
    """The provider refuses calls because there are too many: wait, and call less."""
    TRANSIENT = "outage or timeout"
    """The call may succeed later: connection, time-out, overload, a server's fault."""
    PERMANENT = "permanent"
    """The same call will fail again: credentials, billing, a bad request, a prompt that is too long."""
    OTHER = "not an LM error"
    """Not about the model at all: the program's, the metric's or the parser's own error."""


_RATE_LIMIT_NAMES = frozenset({"LMRateLimitError", "RateLimitError"})
_TRANSIENT_NAMES = frozenset(
    {
        "LMTimeoutError",
        "LMServerError",
        "LMTransportError",
        "LMLockTimeoutError",
        "LMStreamAssemblyError",
        "TimeoutError",
        "ServerError",
        "TransportError",
        "LockTimeoutError",
        "StreamAssemblyError",
        "Timeout",
        "APITimeoutError",
        "APIConnectionError",
        "InternalServerError",
        "ServiceUnavailableError",
        "BadGatewayError",
    }
)
_PERMANENT_NAMES = frozenset(
    {
        "LMAuthError",
        "LMBillingError",
        "LMInvalidRequestError",
        "ContextWindowExceededError",
        "LMUnsupportedModelError",
        "LMUnsupportedFeatureError",
        "LMConfigurationError",
        "LMNotConfiguredError",
        "LMCollectionLimitError",
        "AuthError",
        "BillingError",
        "InvalidRequestError",
        "ContextLengthError",
        "UnsupportedModelError",
        "CapabilityError",
        "ConfigurationError",
        "AuthenticationError",
        "PermissionDeniedError",
        "NotFoundError",
        "BadRequestError",
        "UnprocessableEntityError",
        "ContentPolicyViolationError",
        "BudgetExceededError",
        "UnsupportedParamsError",
    }
)
# Not httpx or requests: DSPy wraps a model's network errors, so bare ones are a tool's.
_LM_PACKAGES = frozenset({"dspy", "litellm", "openai", "anthropic"})
_UNSPECIFIC_LM_NAMES = frozenset({"LMError", "LMProviderError", "LMUnexpectedError", "ProviderError", "LM15Error"})
_UNSPECIFIC_LM_NAMES |= {"APIError", "APIStatusError", "OpenAIError", "HTTPStatusError"}

_RATE_LIMIT_TEXT = re.compile(r"\b429\b|rate.?limit|too many requests|throttl", re.IGNORECASE)
_TRANSIENT_TEXT = re.compile(
    r"\b(?:408|500|502|503|504|529)\b|timed?.?out|overloaded|unavailable|connection (?:error|refused|reset|aborted)",
    re.IGNORECASE,
)
_PERMANENT_TEXT = re.compile(
    r"\b(?:400|401|402|403|404|422)\b|insufficient.quota|invalid.api.key|unauthori[sz]ed|context (?:length|window)",
    re.IGNORECASE,
)


def classify_error(error: BaseException | str) -> ErrorKind:
    """Say what an exception, or the text of one, means for the model it may have come from.

    An exception of a known class is judged by its class; an unspecific one (`LMUnexpectedError`, a bare `Exception` or
    `RuntimeError`) by its text; one that is neither by what caused it (`raise ... from`). A bare `ConnectionError` or
    `TimeoutError` is a tool's or a metric's own: DSPy wraps those of a model.
    """
    if isinstance(error, str):
        return _kind_of_text(error)
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        kind = _kind_of_one(cause)
        if kind is not ErrorKind.OTHER:
            return kind
        cause = cause.__cause__
    return ErrorKind.OTHER


def is_lm_failure(error: BaseException | str) -> bool:
    """Whether the error is the model's (of any kind) and not the program's: a score cannot be given for it."""
    return classify_error(error) is not ErrorKind.OTHER


def _kind_of_one(error: BaseException) -> ErrorKind:
    names = {cls.__name__ for cls in type(error).__mro__ if cls.__module__.partition(".")[0] in _LM_PACKAGES}
    if names & _RATE_LIMIT_NAMES:
        # Some providers answer 429 for an account without credit; waiting does not help there.
        return ErrorKind.PERMANENT if "insufficient_quota" in str(error) else ErrorKind.RATE_LIMIT
    if names & _PERMANENT_NAMES:
        return ErrorKind.PERMANENT
    if names & _TRANSIENT_NAMES:
        return ErrorKind.TRANSIENT
    if names & _UNSPECIFIC_LM_NAMES:
        return _kind_of_unspecific(error)
    if type(error) in (Exception, RuntimeError):
        kind = _kind_of_text(str(error))
        # "404" in a bare exception is more likely a tool's page than a model.
        return ErrorKind.OTHER if kind is ErrorKind.PERMANENT else kind
    return ErrorKind.OTHER


def _kind_of_unspecific(error: BaseException) -> ErrorKind:
    """Judge an error that certainly came from the model's side: not worth a retry unless something says so."""
    status = getattr(error, "status", None) or getattr(error, "status_code", None) or ""
    kind = _kind_of_text(f"{status} {error}")
    if kind is not ErrorKind.OTHER:
        return kind
    is_connection = isinstance(error.__cause__, (ConnectionError, TimeoutError))
    return ErrorKind.TRANSIENT if is_connection else ErrorKind.PERMANENT


def _kind_of_text(text: str) -> ErrorKind:
    if "insufficient_quota" in text:
        return ErrorKind.PERMANENT
    for pattern, kind in (
        (_RATE_LIMIT_TEXT, ErrorKind.RATE_LIMIT),
        (_TRANSIENT_TEXT, ErrorKind.TRANSIENT),
        (_PERMANENT_TEXT, ErrorKind.PERMANENT),
    ):
        if pattern.search(text):
            return kind
    return ErrorKind.OTHER


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a step is tried and how long to wait in between."""

    attempts: int = 3
    """Attempts in all, 1 or more; 1 means no retry."""
    base_seconds: float = 1.0
    """The longest wait before the second attempt; it doubles with every attempt."""
    max_seconds: float = 30.0
    """No wait is longer, whatever the provider suggests."""
    sleep: Callable[[float], None] = time.sleep
    """How to wait."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise ValueError(f"attempts must be an int of at least 1, got {self.attempts!r}")
        if not 0 <= self.base_seconds <= self.max_seconds:
            raise ValueError(
                f"base_seconds must be between 0 and max_seconds, got {self.base_seconds} and {self.max_seconds}"
            )

    def wait_seconds(self, attempt: int, rng: random.Random, *, retry_after: float | None = None) -> float:
        """Return how long to wait after the failed attempt of this number (from 1).

        Half of the wait is fixed and half is drawn, so that steps that failed together do not come back together. A
        provider's own hint is the least, `max_seconds` the most.
        """
        longest = min(self.base_seconds * 2.0 ** min(attempt - 1, 60), self.max_seconds)
        drawn = longest * (0.5 + 0.5 * rng.random())
        return min(max(drawn, retry_after or 0.0), self.max_seconds)


def call_with_retry(
    function: Callable[[], Result],
    policy: RetryPolicy,
    rng: random.Random,
    *,
    limit: AdaptiveLimit | None = None,
) -> Result:
    """Call the function until it returns, as often as the policy allows.

    Args:
        function: The step; it is called again only after a rate limit, an outage or a time-out of the model.
        policy: How often, and how long to wait.
        rng: Where the jitter is drawn from.
        limit: Told of every rate-limit error that is tried again, so that fewer steps run at once. The last error is
            left to whoever catches it.

    Raises:
        Exception: What the last attempt raised, or the first error that another attempt cannot cure.
    """
    for attempt in range(1, policy.attempts + 1):
        try:
            return function()
        except Exception as error:
            kind = classify_error(error)
            if attempt == policy.attempts or kind not in (ErrorKind.RATE_LIMIT, ErrorKind.TRANSIENT):
                raise
            if limit is not None and kind is ErrorKind.RATE_LIMIT:
                limit.observe_rate_limit()
            seconds = policy.wait_seconds(attempt, rng, retry_after=_retry_after(error))
            logger.debug("Attempt %d of %d failed (%s); next in %.1f s", attempt, policy.attempts, kind.value, seconds)
        policy.sleep(seconds)
    raise AssertionError("the last attempt returns or raises")


def _retry_after(error: BaseException) -> float | None:
    hint = getattr(error, "retry_after", None)
    return float(hint) if isinstance(hint, (int, float)) and hint > 0 else None
