import pickle

import pytest

from dspy_evocue.rules import FeatureTest, Rule


def test_the_empty_rule_always_holds():
    assert Rule().holds({})
    assert str(Rule()) == "always"
    assert bool(Rule())


def test_a_rule_holds_when_every_test_holds():
    rule = Rule.of(phase="late", draft="invalid")
    assert rule.holds({"phase": "late", "draft": "invalid", "other": "x"})
    assert not rule.holds({"phase": "late", "draft": "valid"})


def test_a_missing_feature_makes_the_test_false():
    assert not Rule.of(phase="late").holds({"draft": "invalid"})


def test_rules_written_in_another_order_are_equal():
    one = Rule((FeatureTest("a", "1"), FeatureTest("b", "2")))
    other = Rule((FeatureTest("b", "2"), FeatureTest("a", "1")))
    assert one == other
    assert hash(one) == hash(other)
    assert str(one) == "a is 1 and b is 2"


def test_a_rule_refuses_three_tests():
    with pytest.raises(ValueError, match="at most 2 tests, got 3"):
        Rule.of(a="1", b="2", c="3")


def test_a_rule_refuses_one_feature_twice():
    with pytest.raises(ValueError, match="each feature once, got 'a' twice"):
        Rule((FeatureTest("a", "1"), FeatureTest("a", "2")))


def test_a_test_refuses_a_nameless_feature_and_a_value_that_is_no_text():
    with pytest.raises(ValueError, match="non-empty string"):
        FeatureTest("", "x")
    with pytest.raises(TypeError, match="must be a string, got 3"):
        FeatureTest("step", 3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("rule", [Rule(), Rule.of(phase="late"), Rule.of(a="1", b="2")])
def test_a_rule_survives_json_and_pickle(rule):
    assert Rule.from_dict(rule.to_dict()) == rule
    assert pickle.loads(pickle.dumps(rule)) == rule


def test_a_broken_record_is_refused_with_what_came():
    with pytest.raises(ValueError, match="a rule must read"):
        Rule.from_dict({"tests": [{"feature": "a"}]})
