import math

import pytest

from dspy_combee.report.units import calls_text, cost_text, count_text, gain_text, score_text, seconds_text, tokens_text
from dspy_combee.runtime.budget import Spend


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0042, "4 ms"),
        (0.5, "500 ms"),
        (12.34, "12.3 s"),
        (119.0, "119.0 s"),
        (150, "2 min 30 s"),
        (7_260, "2 h 1 min"),
    ],
)
def test_duration_has_the_unit_that_suits_it(seconds, words):
    assert seconds_text(seconds) == words


def test_what_is_not_known_is_not_shown_as_a_number():
    assert seconds_text(None) == score_text(None) == score_text(math.nan) == gain_text(None) == "–"


def test_gain_has_a_sign():
    assert (gain_text(0.25), gain_text(-0.25), gain_text(0)) == ("+0.250", "-0.250", "+0.000")


def test_unknown_price_is_said_and_never_counted_as_free():
    assert cost_text(Spend(lm_calls=2, cost_usd=0.5)) == "$0.5000"
    assert cost_text(Spend(lm_calls=2, calls_without_price=2)) == "price not known (2 calls)"
    assert cost_text(Spend(lm_calls=2, cost_usd=0.5, calls_without_price=1)).startswith("at least $0.5000 (1 call ")


def test_calls_and_tokens_say_what_they_lack():
    spend = Spend(
        lm_calls=1_200, cached_calls=3, failed_calls=2, input_tokens=10, output_tokens=5, calls_without_usage=1
    )
    assert calls_text(spend) == "1,200 calls, 2 failed, 3 more from the cache"
    assert tokens_text(spend) == "10 in, 5 out (not reported by 1 call)"
    assert count_text(1, "entry", "entries") == "1 entry"
    assert count_text(2, "entry", "entries") == "2 entries"
