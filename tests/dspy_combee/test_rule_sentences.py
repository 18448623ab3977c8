from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.rule_sentences import repeated_advice, rule_sentences, sentences
from dspy_combee.specifics import specific_tokens

ADVICE = "Take your time and read the whole message."


def feedback(rule: str) -> str:
    return f"C-34 is not right. {ADVICE} {rule}"


def test_advice_is_what_feedbacks_repeat_without_being_specific():
    texts = [feedback("If it is glass, the code is K-17."), feedback("If it is wood, the code is R-42.")]
    assert repeated_advice(texts) == {ADVICE.casefold()}


def test_a_rule_that_several_records_teach_is_no_advice():
    assert repeated_advice([feedback("If it is glass, the code is K-17.")] * 3) == {ADVICE.casefold()}


def test_a_copied_feedback_is_cut_down_to_its_rule():
    rule = "If it is glass, the code is K-17."
    assert rule_sentences(feedback(rule), advice=frozenset({ADVICE.casefold()}), case="code = C-34") == rule


def test_a_condition_in_a_sentence_of_its_own_stays_with_its_rule():
    text = "The parcel is late. Then the code is D-08."
    assert rule_sentences(text, advice=frozenset({ADVICE.casefold()}), case="code = C-34") == text


def test_a_lesson_of_nothing_but_advice_is_left_as_it_is():
    assert rule_sentences(ADVICE, advice=frozenset({ADVICE.casefold()})) == ADVICE


@given(st.text(max_size=200), st.text(max_size=50))
def test_no_specific_token_that_the_case_lacks_is_lost(text, case):
    kept = rule_sentences(text, case=case)
    if text.strip():
        assert kept.strip()
    for sentence in sentences(text):
        beyond = specific_tokens(sentence) - specific_tokens(case)
        if beyond and ":" not in text and "(" not in text and "rule" not in text.lower():
            assert sentence in kept


@given(st.text(max_size=200))
def test_sentences_lose_no_word(text):
    assert " ".join(sentences(text)).split() == text.split()
