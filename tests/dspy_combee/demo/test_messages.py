"""The demo's data is what it claims to be: unguessable, near misses included, labelled by construction."""

from collections import Counter

import dspy
import pytest
from dspy.utils import DummyLM

from dspy_combee.demo import (
    ROUTING_RULES,
    keeps_rule,
    load_messages,
    routing_instruction,
    routing_metric,
    routing_program,
)

TRAIN, VAL, TEST = load_messages()
ROWS = TRAIN + VAL + TEST


def test_the_split_is_the_same_each_time_and_holds_every_rule():
    assert [len(rows) for rows in (TRAIN, VAL, TEST)] == [80, 32, 48]
    for rows, again, per_rule in zip((TRAIN, VAL, TEST), load_messages(), (5, 2, 3), strict=True):
        assert [row.toDict() for row in rows] == [row.toDict() for row in again]
        assert Counter(row.code for row in rows) == {rule.code: per_rule for rule in ROUTING_RULES}


def test_the_first_sixteen_of_each_split_hold_every_rule_once():
    for rows in (TRAIN, VAL, TEST):
        assert {row.code for row in rows[:16]} == {rule.code for rule in ROUTING_RULES}


def test_no_message_is_there_twice():
    texts = [row.message.casefold() for row in ROWS]
    assert len(set(texts)) == len(texts) >= 150


def test_the_program_sees_the_message_only():
    assert all(set(row.inputs().keys()) == {"message"} for row in ROWS)


def test_codes_look_alike_but_none_is_used_twice_or_given_away():
    codes = [rule.code for rule in ROUTING_RULES]
    assert len(set(codes)) == len(codes) >= 12
    seen = routing_program().signature.instructions + " ".join(row.message for row in ROWS)
    assert not any(code in seen for code in codes)


def test_every_rule_has_a_sibling_that_differs_in_the_detail_only():
    for rule, sibling in zip(ROUTING_RULES[::2], ROUTING_RULES[1::2], strict=True):
        assert rule.subject_words == sibling.subject_words
        assert not set(rule.detail_words) & set(sibling.detail_words)


def test_a_wrong_answer_is_told_the_one_rule_that_applies():
    for row in ROWS:
        feedback = routing_metric(row, dspy.Prediction(code="A-00")).feedback
        told = [rule.code for rule in ROUTING_RULES if rule.code in feedback]
        assert told == [row.code]
        rule = next(rule for rule in ROUTING_RULES if rule.code == row.code)
        assert rule.sentence in feedback
        assert len(feedback) > 2 * len(rule.sentence)  # most of it is advice that helps nobody


@pytest.mark.parametrize(
    ("answer", "score"),
    [("K-17", 1.0), ("The code is K-17.", 1.0), ("K-71", 0.0), ("K-17 or R-42", 0.0), ("", 0.0), (None, 0.0)],
)
def test_the_metric_wants_the_one_right_code(answer, score):
    gold = dspy.Example(message="The glass is broken.", code="K-17")
    assert routing_metric(gold, dspy.Prediction(code=answer)).score == score


def test_the_metric_survives_a_prediction_without_the_field():
    assert routing_metric(dspy.Example(message="?", code="K-17"), dspy.Prediction(other="K-17")).score == 0.0


def test_the_metric_is_the_same_in_every_process(capfd):
    import subprocess
    import sys

    script = "from dspy_combee.demo import *; import dspy; rows = load_messages()[0]; " \
        "print(routing_metric(rows[0], dspy.Prediction(code='')).feedback)"  # fmt: skip
    said = subprocess.check_output([sys.executable, "-c", script], env={"PYTHONHASHSEED": "7", "PYTHONPATH": "."})
    assert said.decode().strip() == routing_metric(TRAIN[0], dspy.Prediction(code="")).feedback


def test_gepa_and_evaluate_take_the_metric():
    answers = DummyLM([{"code": row.code} for row in TEST[:4]] + [{"code": "A-00"}])
    with dspy.context(lm=answers):
        result = dspy.Evaluate(devset=TEST[:5], metric=routing_metric, num_threads=1)(routing_program())
    assert result.score == 80.0
    dspy.GEPA(metric=routing_metric, max_metric_calls=1, reflection_lm=answers)  # checks the metric's arguments


def test_a_rule_counts_as_kept_only_with_its_code_and_both_parts_on_one_line():
    rule = ROUTING_RULES[0]
    assert keeps_rule(routing_instruction([rule]), rule)
    assert keeps_rule("Broken GLASS goes to K-17", rule)
    assert not keeps_rule("Broken things go to K-17", rule)
    assert not keeps_rule("K-17\nbroken glass", rule)
    assert not keeps_rule("Broken glass goes to R-42", rule)


def test_an_instruction_with_all_rules_keeps_exactly_these():
    text = routing_instruction(ROUTING_RULES[:5])
    assert [keeps_rule(text, rule) for rule in ROUTING_RULES] == [True] * 5 + [False] * 11
