import pickle
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_evocue.rules import EnteredState, FeatureTest, Rule, RuleEvidence, fit_rule, narrow_rule


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


def row(task, gain, **features):
    """A usable matched-prefix trial: half a point before, half a point plus the gain after."""
    return RuleEvidence(task, before=0.5, after=0.5 + gain, features=features)


def test_worked_example_five_of_seven_gain_and_the_empty_rule_wins():
    phases = ["early", "late", "early", "late", "early", "late", "late", "early"]
    trials = [
        RuleEvidence(
            f"t{number}",
            before=0.0,
            after=1.0 if number < 5 else 0.0,
            features={"phase": phase},
            behaviour_changed=number != 7,
        )
        for number, phase in enumerate(phases)
    ]
    fitted = fit_rule(trials, features=["phase"])
    assert fitted is not None
    assert fitted.rule == Rule()
    assert (fitted.tasks, fitted.better, fitted.worse, fitted.equal) == (7, 5, 0, 2)
    assert fitted.objective == pytest.approx(5 / 7)
    assert fitted.passes


def test_a_rule_is_found_where_the_edit_helps_in_one_phase_only():
    trials = [row(f"t{n}", +0.5 if n % 2 else -0.5, phase="late" if n % 2 else "early") for n in range(8)]
    fitted = fit_rule(trials, features=["phase"])
    assert fitted is not None
    assert fitted.rule == Rule.of(phase="late")
    assert fitted.objective == pytest.approx(4 * 0.5 / 8 - 1e-3)
    assert fitted.coverage == 0.5
    assert str(fitted).startswith("when phase is late: mean gain +0.500 (4 better, 0 worse, 0 equal of 4 tasks;")


def test_trials_of_one_task_count_as_one_task():
    trials = [row("a", 0.5), row("a", -0.5), row("b", 0.5), row("c", 0.0)]
    fitted = fit_rule(trials, features=[])
    assert fitted is not None
    assert (fitted.tasks, fitted.rows) == (3, 4)
    assert fitted.mean_gain == pytest.approx(0.5 / 3)


@pytest.mark.parametrize(
    "unusable",
    [
        RuleEvidence("x", before=None, after=0.0),
        RuleEvidence("x", before=1.0, after=None, status="failed_attempt"),
        RuleEvidence("x", before=1.0, after=0.0, status="unreached"),
        RuleEvidence("x", before=1.0, after=0.0, status="skipped"),
        RuleEvidence("x", before=1.0, after=0.0, status="unresolved"),
        RuleEvidence("x", before=1.0, after=0.0, behaviour_changed=False),
    ],
)
def test_rows_without_evidence_change_nothing(unusable):
    trials = [row(f"t{n}", 0.5) for n in range(3)]
    assert fit_rule([*trials, unusable], features=[]) == fit_rule(trials, features=[])


def test_a_scored_failed_attempt_counts_against_the_edit():
    trials = [row(f"t{n}", 0.5) for n in range(3)]
    failed = RuleEvidence("x", before=1.0, after=0.0, status="failed_attempt", behaviour_changed=False)
    fitted = fit_rule([*trials, failed], features=[])
    assert fitted is not None
    assert (fitted.tasks, fitted.worse) == (4, 1)


def test_task_start_evidence_justifies_only_the_empty_rule():
    trials = [
        RuleEvidence(f"t{n}", 0.0, 1.0 if n < 4 else 0.0, {"phase": "late" if n < 4 else "early"}, kind="task_start")
        for n in range(8)
    ]
    fitted = fit_rule(trials, features=["phase"], penalty=0.0)
    assert fitted is not None
    assert fitted.rule == Rule()
    assert fitted.objective == 0.5


def test_a_rule_that_covers_too_few_tasks_is_not_considered():
    trials = [row("a", 0.5, phase="late"), row("b", 0.5, phase="late"), row("c", -0.5, phase="early")]
    assert fit_rule(trials[:2], features=["phase"], minimum_tasks=3) is None
    fitted = fit_rule(trials, features=["phase"], minimum_tasks=3)
    assert fitted is not None
    assert fitted.rule == Rule()
    assert fit_rule([], features=["phase"]) is None


def test_a_longer_edit_needs_a_larger_gain():
    trials = [row(f"t{n}", 0.005) for n in range(4)]
    short, long = (fit_rule(trials, features=[], edit_length=length) for length in (1, 6))
    assert short is not None
    assert long is not None
    assert short.passes
    assert not long.passes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalty": -1.0}, "penalty must be"),
        ({"penalty": float("nan")}, "penalty must be"),
        ({"minimum_tasks": 0}, "minimum_tasks must be at least 1, got 0"),
        ({"edit_length": -1}, "edit_length must be at least 0, got -1"),
        ({"features": ["a", "a"]}, "features must be distinct"),
        ({"features": "phase"}, "features must be distinct"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        fit_rule([], **{"features": [], **settings})


def test_a_score_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="must be a finite score or None, got nan"):
        RuleEvidence("a", before=0.0, after=float("nan"))


FEATURES = ["f0", "f1", "f2"]
evidence = st.builds(
    RuleEvidence,
    task_id=st.sampled_from(["a", "b", "c", "d", "e"]),
    before=st.sampled_from([None, 0.0, 0.25, 1.0]),
    after=st.sampled_from([None, 0.0, 0.25, 1.0]),
    features=st.dictionaries(st.sampled_from(FEATURES), st.sampled_from(["x", "y", "z"])),
    status=st.sampled_from(["applied", "applied", "failed_attempt", "skipped"]),
    kind=st.sampled_from(["matched_prefix", "matched_prefix", "task_start"]),
    behaviour_changed=st.booleans(),
)


def objective_by_the_formula(rule, trials, penalty):
    """J with exact fractions, straight from the definition; None when the rule covers no task."""
    rows = [t for t in trials if t.is_usable]
    gains = {}
    for t in rows:
        if not rule.tests or (t.kind == "matched_prefix" and rule.holds(t.features)):
            gains.setdefault(t.task_id, []).append(Fraction(t.after) - Fraction(t.before))
    means = [sum(values) / len(values) for values in gains.values()]
    total = Fraction(len({t.task_id for t in rows}))
    return (sum(means) / total - Fraction(penalty) * len(rule.tests), len(means)) if means else None


@given(st.lists(evidence, max_size=14), st.sampled_from([0.0, 1e-3, 0.125]), st.integers(1, 3))
def test_fit_agrees_with_brute_force(trials, penalty, minimum_tasks):
    rules = [Rule()]
    rules += [Rule.of(**{f: v}) for f in FEATURES for v in "xyz"]
    rules += [Rule.of(**{f: v, g: w}) for f, g in combinations(FEATURES, 2) for v in "xyz" for w in "xyz"]
    scored = [(rule, objective_by_the_formula(rule, trials, penalty)) for rule in rules]
    ranked = sorted((-s[0], len(r.tests), -s[1], r) for r, s in scored if s is not None and s[1] >= minimum_tasks)
    fitted = fit_rule(trials, features=FEATURES, penalty=penalty, minimum_tasks=minimum_tasks)
    if not ranked:
        assert fitted is None
        return
    assert fitted is not None
    assert fitted.rule == ranked[0][3]
    assert fitted.objective == pytest.approx(float(-ranked[0][0]), abs=1e-12)


@given(st.lists(evidence, max_size=14), st.randoms())
def test_fit_does_not_depend_on_the_order_of_the_trials(trials, shuffler):
    shuffled = list(trials)
    shuffler.shuffle(shuffled)
    assert fit_rule(shuffled, features=FEATURES) == fit_rule(trials, features=FEATURES[::-1])


@given(st.lists(evidence, max_size=14), st.sampled_from([Rule(), Rule.of(a="1"), Rule.of(a="1", b="2")]))
def test_every_rule_that_is_looked_at_keeps_the_tests_under_which_the_edit_was_tried(trials, given_rule):
    names = sorted({name for trial in trials for name in trial.features} | {"a", "b"})
    fitted = fit_rule(trials, features=names, given=given_rule, minimum_tasks=1)
    assert fitted is None or set(given_rule.tests) <= set(fitted.rule.tests)


states = st.lists(
    st.builds(
        EnteredState,
        features=st.fixed_dictionaries({name: st.sampled_from("12") for name in "abc"}),
        changed=st.booleans(),
    ),
    max_size=8,
)


@given(states, st.sampled_from([Rule(), Rule.of(a="1"), Rule.of(a="1", b="2")]))
def test_narrowing_spares_as_many_idle_states_as_a_rule_can_and_no_other(entered, rule):
    narrowed = narrow_rule(rule, entered)
    assert set(rule.tests) <= set(narrowed.tests)
    covered = [state for state in entered if rule.holds(state.features)]
    effective = [state for state in covered if state.changed]
    assert all(narrowed.holds(state.features) for state in effective)
    if not effective:
        assert narrowed == rule
        return
    idle = [state.features for state in covered if not state.changed]
    tests = [FeatureTest(name, value) for name in "abc" for value in "12"]
    chosen = [more for size in range(3) for more in combinations(tests, size)]
    rules = [Rule(more) for more in chosen if len({test.feature for test in more}) == len(more)]
    better = [
        one
        for one in rules
        if set(rule.tests) <= set(one.tests)
        and all(one.holds(state.features) for state in effective)
        and sum(map(one.holds, idle)) < sum(map(narrowed.holds, idle))
    ]
    assert not better


def test_narrowing_adds_no_test_that_spares_nothing():
    entered = [EnteredState({"phase": "first"}, True), EnteredState({"phase": "first"}, False)]
    assert narrow_rule(Rule(), entered) == Rule()
