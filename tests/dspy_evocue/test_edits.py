"""Edits as records: what they accept, how they are named, and that they survive JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_evocue import CallSite, InstructionEdit, Rule
from dspy_evocue.edits import edit_from_dict, latest_applicable

HERE = CallSite("recurring", "react")


@given(
    st.text(min_size=1).filter(str.strip),
    st.sampled_from(["call", "next_action", "skill"]),
    st.dictionaries(st.sampled_from(["visit", "source"]), st.text(), max_size=2),
)
def test_an_edit_survives_json_with_the_same_id(text, scope, tests):
    edit = InstructionEdit(at=HERE, text=text, scope=scope, when=Rule.of(**tests))
    read = edit_from_dict(json.loads(json.dumps(edit.to_dict())))
    assert read == edit
    assert read.edit_id == edit.edit_id


def test_several_sites_may_be_named_at_once():
    edit = InstructionEdit(at=[HERE, CallSite("START", "plan")], text="x")
    assert edit.is_entered("tool:a", "react")
    assert edit.is_entered("START", "plan")
    assert not edit.is_entered("START", "react")
    assert edit_from_dict(edit.to_dict()) == edit


def test_the_latest_applicable_edit_wins():
    first, second, third = (InstructionEdit(at=HERE, text=text) for text in "abc")
    assert latest_applicable([second, first], (first, second, third)) is second
    assert latest_applicable([], (first,)) is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"at": "react", "text": "x"}, TypeError, "must be at a CallSite"),
        ({"at": (), "text": "x"}, TypeError, "must be at a CallSite"),
        ({"at": HERE, "text": "  "}, ValueError, "must not be empty"),
        ({"at": HERE, "text": "x", "scope": "forever"}, ValueError, "must be one of call, next_action, skill"),
        ({"at": HERE, "text": "x", "when": "always"}, TypeError, "when must be a Rule"),
    ],
)
def test_a_wrong_edit_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        InstructionEdit(**arguments)


@pytest.mark.parametrize(
    "values", [{}, {"kind": "magic"}, {"kind": "instruction"}, {"kind": "instruction", "text": "x"}]
)
def test_a_saved_edit_that_is_none_is_refused(values):
    with pytest.raises(ValueError, match="must"):
        edit_from_dict(values)
