"""Budgets, instructions on edges and features: how control moves, without any model."""

from dataclasses import replace

import pytest

from dspy_evocue.control.code_agent_graph import code_agent_graph
from dspy_evocue.control.draft import Draft
from dspy_evocue.control.errors import DraftStateError, RoutingError
from dspy_evocue.control.features import FEATURES, observable_features
from dspy_evocue.control.machine import (
    Limits,
    Performed,
    absorb,
    begin,
    choose_edge,
    follow,
    instructions_for,
    require_draft,
    spent_limit,
)
from dspy_evocue.control.skills import Skill, SkillOperation, returns_to
from dspy_evocue.control.state import OBSERVATION_CHARACTERS, ControlState, Goal, Turn

GRAPH = code_agent_graph()
VALID = Draft.pending("x = 1")
SKILL = Skill("s", "route", "prepare", (SkillOperation("reflect", "Think."),), returns_to("prepare"))


def walk(graph, script, features=None):
    """Follow a script of (outcome, draft), and return what a model is told at each node on the way."""
    state, told = begin(graph.wiring, {}), []
    for outcome, draft in script:
        node = graph.wiring.node(state.node)
        told.append((node.name, instructions_for(node, state)))
        state = absorb(node, state, Performed(outcome, draft), is_model_call=False)
        state = follow(graph.wiring, state, choose_edge(graph.wiring, state, features or {}, outcome=outcome))
    return [one for one in told if one[1]]


CYCLE = [("drafted", VALID), ("valid", VALID), ("ok", Draft()), ("continue", None)]


def test_a_call_instruction_acts_only_when_its_edge_is_taken():
    script = [("done", None), *CYCLE, *CYCLE, *CYCLE]
    assert walk(GRAPH.with_instruction("START", "prepare", "T"), script) == [("prepare", ("T",))]
    assert walk(GRAPH.with_instruction("recurring", "prepare", "T"), script) == [("prepare", ("T",))] * 2
    assert walk(GRAPH.with_instruction("*", "prepare", "T"), script) == [("prepare", ("T",))] * 3


def test_an_action_instruction_acts_until_the_next_action():
    graph = GRAPH.with_instruction("START", "prepare", "T", scope="next_action")
    told = walk(graph, [("done", None), *CYCLE, *CYCLE])
    assert [name for name, _ in told] == ["prepare", "pre_commit", "commit"]


def test_an_instruction_reaches_its_node_through_a_skill_on_its_edge():
    graph = GRAPH.with_instruction("recurring", "prepare", "T").with_skill(SKILL)
    told = walk(graph, [("done", None), *CYCLE, ("noted", None), ("done", None), *CYCLE[:1]])
    assert told == [("s.1:reflect", ("Think.",)), ("prepare", ("T",))]


def test_a_skill_instruction_acts_inside_the_skill_alone():
    graph = GRAPH.with_instruction("recurring", "prepare", "T", scope="skill").with_skill(SKILL)
    told = walk(graph, [("done", None), *CYCLE, ("noted", None), ("done", None), *CYCLE])
    assert told == [("s.1:reflect", ("T", "Think.")), ("s.success", ("T",))]


def test_every_operation_takes_a_step_and_entering_and_leaving_a_skill_is_free():
    limits = Limits(max_steps=2, max_actions=1, max_model_calls=1)
    prepare, commit = GRAPH.wiring.node("prepare"), GRAPH.wiring.node("commit")
    spent = ControlState(node="prepare", steps=2, actions=1, model_calls=1)
    assert spent_limit(prepare, spent, limits, is_model_call=True) == "max_steps"
    assert spent_limit(commit, replace(spent, steps=0), limits, is_model_call=False) == "max_actions"
    assert spent_limit(prepare, replace(spent, steps=0), limits, is_model_call=True) == "max_model_calls"
    assert spent_limit(prepare, replace(spent, steps=0), limits, is_model_call=False) is None
    leaving = GRAPH.with_skill(SKILL).wiring.node("s.success")
    assert spent_limit(leaving, spent, limits, is_model_call=False) is None
    assert absorb(leaving, spent, Performed("done"), is_model_call=False).steps == spent.steps


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "3"])
@pytest.mark.parametrize("name", ["max_steps", "max_actions", "max_model_calls"])
def test_a_limit_must_be_a_whole_number_of_at_least_one(name, wrong):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1"):
        Limits(**{name: wrong})


def test_an_operation_that_lacks_its_draft_is_never_started():
    with pytest.raises(DraftStateError, match=r"commit \(commit\) needs the draft to be pending-valid, got empty"):
        require_draft(GRAPH.wiring.node("commit"), ControlState(node="commit", source="pre_commit"))


def test_an_outcome_that_the_table_does_not_declare_is_refused():
    state = ControlState(node="commit", draft=VALID)
    with pytest.raises(RoutingError, match=r"commit must end in ok, failed .* got 'lost' with the draft empty"):
        absorb(GRAPH.wiring.node("commit"), state, Performed("lost", Draft()), is_model_call=False)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"phase": "first", "draft": "empty", "progress": "none", "repetition": "no", "goals": "unknown"}),
        ({"actions": 1, "history": (Turn("a", "x"),)}, {"phase": "middle", "progress": "ok"}),
        ({"actions": 2, "history": (Turn("a", "x", False),)}, {"phase": "late", "progress": "failed"}),
        ({"draft": VALID, "history": (Turn("x = 1 ", ""),)}, {"draft": "pending-valid", "repetition": "yes"}),
        ({"history": (Turn("a", ""), Turn("b", ""), Turn("a", ""))}, {"repetition": "yes"}),
        ({"goals": (Goal("g", True),)}, {"goals": "observed"}),
        ({"goals": (Goal("g", True), Goal("h", False))}, {"goals": "missing"}),
    ],
)
def test_features_say_what_the_state_shows(changes, expected):
    features = observable_features(ControlState(node="route", **changes), Limits(max_actions=3))
    assert set(features) == set(FEATURES)
    assert {name: features[name] for name in expected} == expected
    assert all(features[name] in values for name, values in FEATURES.items() if name != "source")


def test_a_long_observation_is_cut_in_the_middle_and_says_so():
    text = "a" * OBSERVATION_CHARACTERS + "b" * 10
    shown = ControlState(node="route", history=(Turn("print()", text),)).view()["observation"]
    assert "10 characters left out" in shown
    assert shown.endswith("b" * 10)
