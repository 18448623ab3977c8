import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dspy_combee.specifics import (
    contains_rule,
    keeps_specifics,
    lost_specifics,
    polarity_words,
    similarity,
    specific_tokens,
)

words = st.text(alphabet="abcdefgh XYZ0123456789-_.'\"", max_size=40)


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("refunds over 250 go to K-17", "250"),
        ("refunds over 250 go to K-17", "k-17"),
        ("answer GREEN when calm", "green"),
        ('say "not today" to them', "not today"),
        ("call send_mail first", "send_mail"),
        ("use maxTokens here", "maxtokens"),
        ("tag us-east-1 traffic", "us-east-1"),
        ("pay by 3.5% only", "3.5%"),
        ("forward it to Marta Lind", "marta lind"),
        ("costs $40 or more", "40"),
    ],
)
def test_specific_tokens_are_recognised(text, token):
    assert token in specific_tokens(text)


def test_plain_advice_has_no_specific_tokens():
    assert specific_tokens("read the question carefully and be polite") == frozenset()


@example("", "a Xa0")
@given(words, words)
def test_a_text_that_holds_its_parts_word_for_word_loses_nothing(one, other):
    assert lost_specifics(f"{one} ; {other}", (one, other)) == ()


@given(words)
def test_every_specific_token_is_missed_in_an_empty_text(text):
    assert set(lost_specifics("", (text,))) == specific_tokens(text)


@pytest.mark.parametrize(
    ("text", "part"),
    [("code 12345", "code 234"), ("K-171", "K-17"), ("GREENISH", "GREEN"), ("1.250", "250"), ("250,000", "250")],
)
def test_a_token_inside_a_longer_one_does_not_count(text, part):
    assert not keeps_specifics(text, (part,))


@given(words)
def test_a_rule_contains_itself(text):
    assert contains_rule(text, text)
    assert similarity(text, text) == 1.0


def test_exchanged_words_are_another_rule():
    assert not contains_rule("if GREEN answer RED", "if RED answer GREEN")


def test_a_negated_rule_contains_not_the_positive_one():
    assert not contains_rule("do not route refunds to K-17", "route refunds to K-17")
    assert not contains_rule("route refunds to K-17", "do not route refunds to K-17")


def test_bounds_and_order_are_polarity():
    assert polarity_words("only above 5, never before noon") == {"only", "above", "never", "before"}
