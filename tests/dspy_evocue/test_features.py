"""Features are few values of what the agent could see, under names that a saved rule can refer to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_evocue.errors import FeatureError, MissingFeatureError
from dspy_evocue.features import BUILT_IN, FeatureSet, RunState, reads_like_completion, reads_like_failure


def value(name, **state):
    return FeatureSet().evaluate(RunState(**{"node": "react", "source": "START", "visit": 1, **state}))[name]


@pytest.mark.parametrize(
    ("name", "state", "expected"),
    [
        ("source", {"source": "tool:look"}, "tool:look"),
        ("visit", {"visit": 1}, "first"),
        ("visit", {"visit": 2}, "recurring"),
        ("visit", {"visit": 5}, "late"),
        ("last_tool", {}, "none"),
        ("last_tool", {"tools_called": ("a", "b")}, "b"),
        ("last_tool_failed", {}, "none"),
        ("last_tool_failed", {"tools_called": ("a",), "last_failed": True}, "yes"),
        ("repeated_action", {"is_repeated": True}, "yes"),
        ("budget_used", {"visit": 1, "max_calls": 9}, "low"),
        ("budget_used", {"visit": 5, "max_calls": 9}, "middle"),
        ("budget_used", {"visit": 9, "max_calls": 9}, "high"),
        ("budget_used", {"predictor_calls": 11}, "high"),
        ("completion_evidence", {}, "none"),
        ("completion_evidence", {"completion_seen": True}, "seen"),
        ("completion_evidence", {"completion_seen": True, "tools_called": ("finish",)}, "called"),
    ],
)
def test_a_built_in_feature(name, state, expected):
    assert value(name, **state) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Error: no such file",
        "error during execution",
        {"error": "x"},
        '{"error": "x"}',
        ValueError("x"),
        "Execution error in look",
        "failed",
    ],
)
def test_a_failure_reads_like_one(text):
    assert reads_like_failure(text)
    assert not reads_like_completion(text)


@pytest.mark.parametrize("text", ["42 results", {"status": "ok"}, "no errors found in 3 files", None])
def test_an_ordinary_result_does_not_read_like_a_failure(text):
    assert not reads_like_failure(text)


def test_a_result_that_says_so_is_evidence_of_completion():
    assert reads_like_completion("The ticket was created.")
    assert not reads_like_completion("2 open tickets")


@given(st.integers(1, 50), st.integers(0, 50), st.booleans(), st.lists(st.text(min_size=1), max_size=4))
def test_every_feature_has_a_value_in_every_state(visit, calls, flag, tools):
    state = RunState("n", "START", visit, tools_called=tuple(tools), last_failed=flag, predictor_calls=calls)
    values = FeatureSet().evaluate(state)
    assert set(values) == set(BUILT_IN)
    assert all(isinstance(each, str) and each for each in values.values())


def mood(state):
    return {"first": "fresh"}.get(state.node, 7)


def test_a_feature_of_the_users_own_must_return_a_string_and_must_not_raise():
    features = FeatureSet((mood,))
    assert features.evaluate(RunState("first", "START", 1))["mood"] == "fresh"
    with pytest.raises(FeatureError, match="'mood' must return a string, got 7"):
        features.evaluate(RunState("second", "START", 1))

    def broken(state):
        raise KeyError("gone")

    with pytest.raises(FeatureError, match="'broken' raised KeyError"):
        FeatureSet((broken,)).evaluate(RunState("n", "START", 1))


def test_names_are_checked():
    with pytest.raises(MissingFeatureError, match="phase, which nothing computes"):
        FeatureSet().require(["visit", "phase"], wanted_by="edit e1")
    with pytest.raises(TypeError, match="must be a named function"):
        FeatureSet((lambda state: "x",))
    with pytest.raises(ValueError, match="'mood' twice"):
        FeatureSet((mood, mood))
