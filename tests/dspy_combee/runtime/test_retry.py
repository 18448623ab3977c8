import random

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError, ContextWindowExceededError, LMTimeoutError, LMUnexpectedError
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.runtime.adaptive_limit import AdaptiveLimit
from dspy_combee.runtime.retry import ErrorKind, RetryPolicy, call_with_retry, classify_error, is_lm_failure
from dspy_combee.testing import scripted_lm

lm15 = dspy.lm15


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (lm15.RateLimitError("slow"), ErrorKind.RATE_LIMIT),
        (Exception("429"), ErrorKind.RATE_LIMIT),
        (lm15.TimeoutError("late"), ErrorKind.TRANSIENT),
        (lm15.ServerError("oops"), ErrorKind.TRANSIENT),
        (lm15.TransportError("reset"), ErrorKind.TRANSIENT),
        (ConnectionResetError("peer"), ErrorKind.TRANSIENT),
        (RuntimeError("503 Service Unavailable"), ErrorKind.TRANSIENT),
        (lm15.AuthError("key"), ErrorKind.PERMANENT),
        (lm15.InvalidRequestError("bad"), ErrorKind.PERMANENT),
        (lm15.ContextLengthError("long"), ErrorKind.PERMANENT),
        (lm15.BillingError("429 pay"), ErrorKind.PERMANENT),
        (ValueError("no idea"), ErrorKind.PERMANENT),
    ],
)
def test_error_of_a_model_call_is_known_by_its_class_or_text(reply, kind):
    with pytest.raises(Exception) as caught:
        scripted_lm([reply])("a")
    assert classify_error(caught.value) is kind


@pytest.mark.parametrize(
    "error",
    [
        ValueError("row 429 is bad"),
        KeyError("timeout"),
        TimeoutError("a tool's own"),
        RuntimeError("404"),
        AdapterParseError("ChatAdapter", dspy.Signature("a -> b"), "429"),
    ],
)
def test_error_of_the_program_is_not_the_models(error):
    assert classify_error(error) is ErrorKind.OTHER
    assert not is_lm_failure(error)


def test_error_that_wraps_a_models_error_counts_as_that():
    error = KeyError("wrapped")
    error.__cause__ = LMTimeoutError("late")
    assert classify_error(error) is ErrorKind.TRANSIENT


def test_litellm_and_openai_classes_are_known():
    import litellm

    details = {"message": "x", "llm_provider": "p", "model": "m"}
    assert classify_error(litellm.RateLimitError(**details)) is ErrorKind.RATE_LIMIT
    assert classify_error(litellm.Timeout(**details)) is ErrorKind.TRANSIENT
    assert classify_error(litellm.InternalServerError(**details)) is ErrorKind.TRANSIENT
    assert classify_error(litellm.AuthenticationError(**details)) is ErrorKind.PERMANENT
    assert classify_error(litellm.ContextWindowExceededError(**details)) is ErrorKind.PERMANENT


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("HTTP 429", ErrorKind.RATE_LIMIT),
        ("Too Many Requests", ErrorKind.RATE_LIMIT),
        ("429: insufficient_quota", ErrorKind.PERMANENT),
        ("Request timed out.", ErrorKind.TRANSIENT),
        ("invalid api key", ErrorKind.PERMANENT),
        ("1429 rows", ErrorKind.OTHER),
        ("", ErrorKind.OTHER),
    ],
)
def test_plain_text_is_judged(text, kind):
    assert classify_error(text) is kind


def test_rate_limited_step_is_tried_again_after_growing_waits():
    slept = []
    policy = RetryPolicy(attempts=4, base_seconds=1.0, max_seconds=3.0, sleep=slept.append)
    lm = scripted_lm([Exception("429"), lm15.ServerError("x"), Exception("429"), "done"])
    assert call_with_retry(lambda: lm("a"), policy, random.Random(0)) == ["done"]
    assert [low <= wait <= high for wait, low, high in zip(slept, (0.5, 1, 1.5), (1, 2, 3), strict=True)] == [True] * 3


@pytest.mark.parametrize(
    ("error", "calls"), [(ContextWindowExceededError(), 1), (ValueError("x"), 1), (LMTimeoutError(), 3)]
)
def test_only_what_time_can_cure_is_tried_again_and_the_last_error_comes_out(error, calls):
    made = []

    def fail():
        made.append(1)
        raise error

    with pytest.raises(type(error)):
        call_with_retry(fail, RetryPolicy(sleep=lambda _: None), random.Random(0))
    assert len(made) == calls


def test_providers_hint_is_respected_up_to_the_longest_wait():
    slept = []
    policy = RetryPolicy(attempts=2, max_seconds=30.0, sleep=slept.append)
    for hint in (20.0, 500.0):
        lm = scripted_lm([lm15.RateLimitError("slow", retry_after=hint), "done"])
        call_with_retry(lambda lm=lm: lm("a"), policy, random.Random(0))
    assert slept == [20.0, 30.0]


def test_limit_hears_of_the_rate_limit_errors_that_are_tried_again():
    limit = AdaptiveLimit(8, tolerated_errors=2)
    lm = scripted_lm([Exception("429"), LMUnexpectedError("503"), Exception("429"), "done"])
    policy = RetryPolicy(attempts=4, sleep=lambda _: None)
    call_with_retry(lambda: lm("a"), policy, random.Random(0), limit=limit)
    assert limit.current == 4


@given(attempt=st.integers(1, 5000), seed=st.integers())
def test_wait_stays_within_its_bounds_and_follows_the_seed(attempt, seed):
    policy = RetryPolicy(base_seconds=0.5, max_seconds=8.0)
    seconds = policy.wait_seconds(attempt, random.Random(seed))
    assert 0.25 <= seconds <= 8.0
    assert seconds == policy.wait_seconds(attempt, random.Random(seed))


@pytest.mark.parametrize("arguments", [{"attempts": 0}, {"attempts": 1.5}, {"base_seconds": -1}, {"max_seconds": 0.5}])
def test_bad_policy_is_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        RetryPolicy(**arguments)
