import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.learners.gepa_curate import parse_lessons, parse_operations
from dspy_combee.lessons import Drop, Group, Lesson, Merge


@pytest.mark.parametrize(
    "line",
    [
        "[r1] refunds: K-17",
        "- [r1] refunds: K-17",
        "1. [r1] refunds: K-17",
        "**[r1]** refunds: K-17",
        "[R1]: refunds: K-17",
        "[record r1] - refunds: K-17",
        "  * [r1]   refunds: K-17  ",
    ],
)
def test_a_rule_is_read_however_its_line_is_dressed(line):
    assert parse_lessons(line, ["r1", "r2"]) == (Lesson("refunds: K-17", ("r1",)),)


@pytest.mark.parametrize("ids", ["r1, r2", "r1; r2", "r1 r2", "r1 and r2", "r1 & r2"])
def test_several_ids_are_read_however_they_are_joined(ids):
    assert parse_lessons(f"[{ids}] x: 1", ["r1", "r2"])[0].record_ids == ("r1", "r2")


def test_one_record_is_the_source_of_whatever_it_taught():
    assert parse_lessons("[r9] x: 1\n- y: 2", ["r3"]) == (Lesson("x: 1", ("r3",)), Lesson("y: 2", ("r3",)))


@given(st.text(max_size=400))
def test_any_reply_gives_lessons_of_one_line_that_cite_known_records(reply):
    for lesson in parse_lessons(reply, ["r1", "r2"]):
        assert lesson.text == " ".join(lesson.text.split()) != ""
        assert set(lesson.record_ids) <= {"r1", "r2"}


def test_operations_are_read_and_everything_else_is_ignored():
    reply = "Here you go:\n- MERGE 2, 5: both\ndrop 4, 6\n**GROUP 1 and 3: money**\nKEEP 7\nMERGE : x"
    assert parse_operations(reply) == (
        Merge((2, 5), "both"),
        Drop(4),
        Drop(6),
        Group((1, 3), "money**"),
    )


@given(st.text(max_size=300))
def test_any_reply_gives_operations(reply):
    assert isinstance(parse_operations(reply), tuple)
