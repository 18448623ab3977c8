import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.learners.base import Reflection
from dspy_combee.learners.gepa_curate import LessonCurate, parse_operations
from dspy_combee.lessons import Drop, Group, Lesson, LessonUpdate, Merge
from dspy_combee.testing import scripted_lm
from dspy_combee.typed_lessons import read_lessons


def item(record_id, rule):
    return {"record_id": record_id, "rule": rule}


@pytest.mark.parametrize("record_id", ["r1", "[r1]", "R1", "record r1", " r1 "])
def test_an_id_is_read_however_it_is_dressed(record_id):
    assert read_lessons([item(record_id, "refunds: K-17")], ["r1", "r2"]) == (Lesson("refunds: K-17", ("r1",)),)


@pytest.mark.parametrize("ids", ["r1, r2", "r1; r2", "r1 r2", "r1 and r2", "r1 & r2"])
def test_several_ids_are_read_however_they_are_joined(ids):
    assert read_lessons([item(ids, "x: 1")], ["r1", "r2"])[0].record_ids == ("r1", "r2")


def test_one_record_is_the_source_of_whatever_it_taught():
    lessons = read_lessons([item("r9", "x: 1"), item("", "y: 2")], ["r3"])
    assert lessons == (Lesson("x: 1", ("r3",)), Lesson("y: 2", ("r3",)))


@pytest.mark.parametrize("bad", [None, "text", 7, {}, item("r1", None), item("r1", " "), item("r1", "***"), ["r1"]])
def test_one_item_of_another_shape_is_dropped_and_not_the_whole_reply(bad):
    assert read_lessons([bad, item("r1", "x: 1")], ["r1", "r2"]) == (Lesson("x: 1", ("r1",)),)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["record_id", "rule", "x"]), inner),
    max_leaves=12,
)


@given(JSON)
def test_any_list_gives_lessons_of_one_line_that_cite_known_records(items):
    for lesson in read_lessons(items, ["r1", "r2"]):
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


def lessons_in_conflict():
    return [
        Lesson("Returns over $50 get code A1.", ("r1", "r2", "r3")),
        Lesson("Returns over $50 get code B2.", ("r4",)),
        Lesson("Lost parcels are claimed in 5 days.", ("r5",)),
    ]


def revise(reply, lessons):
    lm = scripted_lm(lambda prompt, _: f"[[ ## operations ## ]]\n{reply}\n\n[[ ## completed ## ]]")
    upper = [Reflection("x", lesson.record_ids, update=LessonUpdate((lesson,))) for lesson in lessons]
    with dspy.context(lm=lm):
        return LessonCurate()(upper).entries, lm.engine.prompts[0]


def test_the_last_call_sees_a_contradiction_with_the_evidence_of_both_sides():
    entries, prompt = revise("DROP 2", lessons_in_conflict())
    assert "1 (3 records: r1, r2, r3) <-> 2 (1 record: r4)" in prompt
    assert [entry.text for entry in entries] == [lessons_in_conflict()[0].text, lessons_in_conflict()[2].text]


@pytest.mark.parametrize("reply", ["DROP 1", "DROP 3", "DROP 1, 2", "NONE"])
def test_the_side_with_more_evidence_stays_and_so_does_what_is_in_no_pair(reply):
    entries, _ = revise(reply, lessons_in_conflict())
    assert len(entries) == 3


def test_without_a_contradiction_nothing_is_said_of_one():
    _, prompt = revise("NONE", lessons_in_conflict()[1:])
    assert "contradict" not in prompt
