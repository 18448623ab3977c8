import json

import dspy
import pytest

from dspy_combee.errors import ReflectionError
from dspy_combee.learners.ace_curate import PlaybookCurate
from dspy_combee.learners.base import Reflection
from dspy_combee.learners.playbook_update import PlaybookUpdate
from dspy_combee.playbook import AddEntry, MergeEntries, Playbook, RemoveEntry, UpdateEntry, Vote
from dspy_combee.testing import scripted_lm

BOOK = Playbook().apply(
    [AddEntry("Refunds over 50 dollars: code R-1.", "Codes"), AddEntry("Never answer in capitals.", "Style")]
)
REFLECTIONS = [
    Reflection("Reflection: damaged goods are D-4", ("r1",), details={"votes": [["e1", "neutral"]]}),
    Reflection("Reflection: late goods are L-9", ("r2",), details={"votes": [["e2", "neutral"]]}),
]


def curated(lessons=(), changes=(), *, reflections=REFLECTIONS, book=BOOK, **lm):
    engine = scripted_lm([json.dumps({"lessons": lessons, "changes": changes})] * 2, **lm)
    with dspy.context(lm=engine):
        return PlaybookCurate("self", "task", book)(reflections)


def lesson(text, record_id="", **fields):
    return {"rule": text, "record_id": record_id, **fields}


def merged(lessons, merges="[]", refuted="none"):
    updates = [PlaybookUpdate("self", (AddEntry(text, "S", records),)) for text, records in lessons]
    lm = scripted_lm([f"[[ ## merges ## ]]\n{merges}\n\n[[ ## refuted ## ]]\n{refuted}"])
    reflections = [Reflection(u.render(), (), update=u) for u in updates]
    with dspy.context(lm=lm):
        update = PlaybookCurate("self", "task", BOOK)(reflections)
    return update, lm.engine


def test_one_bad_item_is_dropped_and_not_the_whole_reply():
    update = curated(
        [lesson("Damaged goods: D-4.", "r1", section="Codes"), {"operation": "FLY"}, 7, "x"],
        [{"operation": "FLY"}, {"type": "edit", "id": "e2", "content": "Never answer in capitals or in verse."}],
    )
    assert update.operations == (
        AddEntry("Damaged goods: D-4.", "Codes", ("r1",)),
        UpdateEntry("e2", "Never answer in capitals or in verse."),
    )


def test_a_reply_of_which_nothing_makes_sense_is_an_error():
    with pytest.raises(ReflectionError, match="none of the 2 lessons"):
        curated([{"operation": "FLY"}, 7])


def test_a_lesson_that_only_repeats_its_case_is_none_and_no_error():
    case = {"votes": [], "case": "my parcel is late", "feedback": "Wrong."}
    update = curated([lesson("My parcel is late", "r1")], reflections=[Reflection("a", ("r1",), details=case)])
    assert update.operations == ()


def test_no_lessons_is_an_answer():
    assert curated().operations == ()


def test_only_entries_that_were_voted_on_are_shown_and_may_be_changed():
    unseen = {"operation": "UPDATE", "entry_ids": ["e2"], "text": "Never answer in capitals or in verse."}
    seen = {**unseen, "entry_ids": ["e1"], "text": "Refunds over 50 dollars, gifts too: code R-1."}
    engine = scripted_lm([json.dumps({"lessons": [], "changes": [unseen, seen]})])
    with dspy.context(lm=engine):
        update = PlaybookCurate("self", "task", BOOK)(REFLECTIONS[:1])
    assert "[e1] Refunds over 50" in engine.engine.prompts[0]
    assert "capitals" not in engine.engine.prompts[0]
    assert UpdateEntry("e1", seen["text"], None, ("r1",)) in update.operations
    assert AddEntry(unseen["text"], "General", ("r1",)) in update.operations


def test_without_votes_only_lessons_are_asked_for():
    engine = scripted_lm([json.dumps({"lessons": [lesson("Damaged goods: D-4.")]})])
    with dspy.context(lm=engine):
        update = PlaybookCurate("self", "task", BOOK)([Reflection("Reflection: damaged goods are D-4", ("r1",))])
    assert update.operations == (AddEntry("Damaged goods: D-4.", "General", ("r1",)),)
    assert "playbook" not in engine.engine.prompts[0]


def test_an_invented_citation_is_dropped_and_a_missing_one_found_by_its_particulars():
    update = curated([lesson("Damaged goods: D-4.", "r77"), lesson("Be careful.")])
    assert {op.text: op.record_ids for op in update.operations} == {"Damaged goods: D-4.": ("r1",), "Be careful.": ()}


def test_a_single_record_is_cited_by_whatever_came_of_it():
    update = curated([lesson("Be careful.")], reflections=REFLECTIONS[:1])
    assert update.operations[0].record_ids == ("r1",)


def test_a_lesson_is_cut_down_to_its_rule():
    told = {"votes": [], "case": "my parcel came broken C-1", "feedback": "Read twice. Damaged goods: D-4."}
    also = {**told, "case": "my parcel is late L-1", "feedback": "Read twice. Late goods: L-9."}
    copied = "C-1 is not right. Read twice. Damaged goods: D-4."
    update = curated(
        [lesson(copied, "r1"), lesson("my parcel is late", "r2")],
        reflections=[Reflection("a", ("r1",), details=told), Reflection("b", ("r2",), details=also)],
    )
    assert update.operations == (AddEntry("Damaged goods: D-4.", "General", ("r1",)),)


def test_an_update_that_loses_a_particular_is_added_beside_the_entry():
    update = curated(
        changes=[
            {"operation": "UPDATE", "entry_ids": ["e1"], "text": "Refunds have a code.", "record_ids": ["r1"]},
            {"operation": "UPDATE", "entry_ids": "e1", "text": "Refunds over 50 dollars, gifts too: code R-1."},
        ]
    )
    assert {type(operation) for operation in update.operations} == {AddEntry, UpdateEntry}
    assert len(BOOK.apply(update.operations)) == 3


def test_an_update_that_drops_a_negation_does_not_replace_it():
    (operation,) = curated(
        changes=[{"operation": "UPDATE", "entry_ids": ["e2"], "text": "Answer in capitals."}]
    ).operations
    assert operation == AddEntry("Answer in capitals.", "Style", ())


def test_a_merge_needs_all_particulars_of_its_parts():
    lossy = {"operation": "MERGE", "entry_ids": ["e1", "e2"], "text": "Refunds have codes, never capitals."}
    assert curated(changes=[lossy]).operations == ()
    whole = {**lossy, "text": "Refunds over 50 dollars: code R-1; never in capitals."}
    assert isinstance(curated(changes=[whole]).operations[0], MergeEntries)


def test_a_removal_needs_votes_against_the_entry():
    removal = {"operation": "REMOVE", "entry_ids": ["e1"], "record_ids": ["r1"]}
    assert curated(changes=[removal]).operations == ()
    against = [Reflection("x", ("r1",), details={"votes": [["e1", "harmful"], ["e77", "harmful"]]})]
    update = curated(changes=[removal], reflections=against)
    assert isinstance(update.operations[0], RemoveEntry)
    assert update.votes == (Vote("e1", "r1", "harmful"),)


def test_a_reply_that_was_cut_off_is_an_error():
    with pytest.raises(ReflectionError, match="token limit"):
        curated([lesson("x")], finish_reason="length")


def test_a_text_that_is_no_lesson_is_left_out_whole():
    update = curated([lesson("x" * 3_000), lesson("<think>hm"), lesson("Damaged goods: D-4.", "r1")])
    assert [operation.text for operation in update.operations] == ["Damaged goods: D-4."]


def test_an_addition_among_the_changes_is_a_new_entry():
    (operation,) = curated(changes=[{"operation": "ADD", "text": "Damaged goods: D-4."}]).operations
    assert operation == AddEntry("Damaged goods: D-4.", "General", ("r1",))


def test_votes_are_carried_even_when_nothing_is_to_change():
    voted = [Reflection("x", ("r1",), details={"votes": [["e1", "helpful"]]})]
    update = curated(reflections=voted)
    assert update.operations == ()
    assert [(entry.text, entry.record_ids) for entry in update.entries] == [("e1 was helpful", ("r1",))]


def test_the_last_call_merges_what_it_names_and_keeps_the_rest():
    lessons = [("Damaged goods: D-4.", ("r1",)), ("Broken goods: D-4 too.", ("r2",)), ("Late goods: L-9.", ("r3",))]
    update, engine = merged(lessons, '[{"numbers": [1, 2], "text": "Damaged or broken goods: D-4 too."}]')
    assert {op.text: op.record_ids for op in update.operations} == {
        "Damaged or broken goods: D-4 too.": ("r1", "r2"),
        "Late goods: L-9.": ("r3",),
    }
    assert engine.calls == 1


def test_a_last_call_that_would_lose_something_loses_nothing():
    lessons = [("Damaged goods: D-4.", ("r1",)), ("Late goods: L-9.", ("r2",))]
    update, _ = merged(lessons, '[{"numbers": [1, 2], "text": "Goods have codes."}]', refuted="1, 2")
    assert [op.text for op in update.operations] == ["Damaged goods: D-4.", "Late goods: L-9."]


def test_contradictions_are_shown_with_their_evidence_and_the_weaker_side_may_go():
    lessons = [("Late goods from France get L-9.", ("r1", "r2")), ("Late goods from France get L-8.", ("r3",))]
    update, engine = merged(lessons, refuted="2")
    assert "1 (2 records: r1, r2) <-> 2 (1 record: r3)" in engine.prompts[0]
    assert [op.text for op in update.operations] == ["Late goods from France get L-9."]
    update, _ = merged(lessons, refuted="1")
    assert len(update.operations) == 2


def test_what_two_groups_said_alike_is_folded_without_a_call():
    update, engine = merged([("Late goods: L-9.", ("r1",)), ("Late goods: L-9.", ("r2",))])
    assert update.operations == (AddEntry("Late goods: L-9.", "S", ("r1", "r2")),)
    assert engine.calls == 0
