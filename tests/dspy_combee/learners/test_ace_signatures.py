import json

import pydantic
import pytest
from dspy.adapters.utils import parse_value

from dspy_combee.learners.ace_signatures import (
    CuratedChange,
    CuratedLesson,
    KeyInsights,
    LessonMerges,
    Votes,
    read_changes,
)


def read(kind, text):
    return [tuple(item.model_dump().values()) for item in parse_value(text, kind).root]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"entry_id": "[e1]", "tag": "HELPFUL"}]', [("e1", "helpful")]),
        ('{"e1": "helpful", "e2": "harmful"}', [("e1", "helpful"), ("e2", "harmful")]),
        ('["e1: harmful", "nonsense", {"id": "e2", "tag": "great"}]', [("e1", "harmful")]),
        ("None", []),
        ("[]", []),
        ('{"votes": [{"id": "e3", "tag": "neutral"}]}', [("e3", "neutral")]),
        ("There are none to vote on.", []),
    ],
)
def test_votes_are_read_in_whatever_wrapping_they_come(text, expected):
    assert read(Votes, text) == expected


def test_changes_are_read_with_other_spellings_and_bad_ones_dropped():
    items = [{"type": "delete", "id": "e1"}, {"op": "edit", "content": "x", "records": "r1, r2"}, {"operation": "FLY"}]
    assert [(o.operation, o.text, o.entry_ids, o.record_ids) for o in read_changes(items)] == [
        ("REMOVE", "", ["e1"], []),
        ("UPDATE", "x", [], ["r1", "r2"]),
    ]


@pytest.mark.parametrize("kind", [CuratedLesson, CuratedChange])
def test_no_schema_states_a_default(kind):
    assert '"default"' not in json.dumps(kind.model_json_schema())


def test_merges_and_insights_are_read_leniently():
    assert read(LessonMerges, '[{"numbers": "1 and 3", "text": "t"}, {"numbers": [2]}]') == [([1, 3], "t")]
    assert read(KeyInsights, '["a", {"component": "c", "lesson": "b"}]') == [("", "a"), ("c", "b")]


def test_prose_instead_of_a_list_is_an_error_and_not_an_empty_list():
    with pytest.raises(pydantic.ValidationError, match="must be a JSON list"):
        parse_value("I would merge the rules about refunds.", LessonMerges)
