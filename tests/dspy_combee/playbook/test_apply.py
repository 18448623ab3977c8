import random

from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.playbook import AddEntry, MergeEntries, Playbook, RemoveEntry, UpdateEntry, Vote

IDS = st.sampled_from(["e1", "e2", "e3", "e4", "e99"])
TEXTS = st.sampled_from(["round to 2 decimals", "cite the page", "use code K-17", "", "  ", "a\nb"])
SECTIONS = st.sampled_from(["Output", "output", "common_mistakes", "Common Mistakes", ""])
RECORDS = st.lists(st.sampled_from(["r1", "r2", "r10"]), max_size=2).map(tuple)
OPERATIONS = st.one_of(
    st.builds(AddEntry, text=TEXTS, section=SECTIONS, record_ids=RECORDS),
    st.builds(UpdateEntry, entry_id=IDS, text=TEXTS, section=st.none() | SECTIONS, record_ids=RECORDS),
    st.builds(MergeEntries, entry_ids=st.lists(IDS, max_size=3).map(tuple), text=TEXTS, record_ids=RECORDS),
    st.builds(RemoveEntry, entry_id=IDS),
    st.builds(Vote, entry_id=IDS, record_id=st.sampled_from(["r1", "r2"]), tag=st.sampled_from(["helpful", "harmful"])),
)


def four_entries() -> Playbook:
    return Playbook().apply([AddEntry(text, "Rules", (f"r{i}",)) for i, text in enumerate(["a", "b", "c", "d"])])


@given(st.lists(OPERATIONS, max_size=8), st.randoms(use_true_random=False))
def test_the_arrival_order_of_parallel_updates_does_not_matter(operations, rng: random.Random):
    shuffled = list(operations)
    rng.shuffle(shuffled)
    book = four_entries()
    first, second = book.apply(operations), book.apply(shuffled)
    assert first == second
    assert first.refused == second.refused


@given(st.lists(OPERATIONS, max_size=8))
def test_no_vote_is_lost_or_invented_by_merges(operations):
    book = four_entries().apply([Vote(f"e{i}", f"v{j}", "helpful") for i in range(1, 5) for j in range(i)])
    kept = [operation for operation in operations if isinstance(operation, (MergeEntries, AddEntry, UpdateEntry))]
    assert sum(entry.helpful for entry in book.apply(kept).entries) == 1 + 2 + 3 + 4


@given(st.lists(st.lists(OPERATIONS, max_size=5), max_size=4))
def test_an_id_is_never_given_to_another_entry(commits):
    book, seen = Playbook(), {}
    for operations in commits:
        book = book.apply(operations)
        for entry in book.entries:
            assert seen.setdefault(entry.id, entry.created) == entry.created


def test_a_removed_id_is_not_used_again_even_after_a_resume(tmp_path):
    book = four_entries().apply([RemoveEntry("e4")])
    book.save(tmp_path / "book.json")
    resumed = Playbook.load(tmp_path / "book.json").apply([AddEntry("new")])
    assert resumed.entries[-1].id == "e5"
    assert Playbook.parse(book.render()).apply([AddEntry("new")]).entries[-1].id == "e5"


def test_overlapping_merges_count_an_entry_once():
    book = four_entries().apply([Vote("e2", "v1", "helpful"), Vote("e2", "v2", "helpful")])
    merged = book.apply([MergeEntries(("e1", "e2"), "ab", record_ids=("r7", "r8")), MergeEntries(("e2", "e3"), "bc")])
    assert merged.get("e1").helpful == 2
    assert merged.get("e1").text == "ab"
    assert {entry.text for entry in merged.entries} == {"ab", "bc", "d"}


def test_votes_are_one_a_run_however_often_they_arrive():
    votes = [Vote("e1", "r1", "helpful")] * 3 + [Vote("e1", "r2", "harmful")]
    entry = four_entries().apply(votes).get("e1")
    assert (entry.helpful, entry.harmful) == (1, 1)


def test_a_run_that_votes_both_ways_is_neutral():
    entry = four_entries().apply([Vote("e1", "r1", "helpful"), Vote("e1", "r1", "harmful")]).get("e1")
    assert (entry.helpful, entry.harmful, entry.neutral) == (0, 0, 1)


def test_a_rival_text_for_one_entry_is_kept_beside_the_chosen_one():
    book = four_entries().apply(
        [
            UpdateEntry("e1", "a, for cars", record_ids=("r1",)),
            UpdateEntry("e1", "a, for bikes", record_ids=("r2", "r3")),
        ]
    )
    assert book.get("e1").text == "a, for bikes"
    assert "a, for cars" in {entry.text for entry in book.entries}


def test_an_entry_that_one_group_updates_is_not_removed_by_another():
    book = four_entries().apply([RemoveEntry("e1"), UpdateEntry("e1", "better")])
    assert book.get("e1").text == "better"
    assert [type(refused.operation) for refused in book.refused] == [RemoveEntry]


def test_operations_on_unknown_entries_are_refused_with_the_reason():
    book = four_entries().apply([UpdateEntry("e9", "x"), MergeEntries(("e1", "e9"), "x"), AddEntry("  ")])
    assert [entry.text for entry in book.entries] == ["a", "b", "c", "d"]
    assert {refused.reason for refused in book.refused} == {
        "no entry 'e9'",
        "a merge needs two known entries",
        "its text is empty",
    }


def test_the_same_lesson_from_two_groups_is_one_entry_with_both_sources():
    book = Playbook().apply([AddEntry("x", "S", ("r2",)), AddEntry("x", "s", ("r10", "r1"))])
    assert [(entry.text, entry.record_ids) for entry in book.entries] == [("x", ("r1", "r2", "r10"))]


def test_a_section_named_with_an_underscore_joins_its_section():
    book = Playbook().apply([AddEntry("a", "Formulas & Calculations")])
    book = book.apply([AddEntry("b", "formulas_and_calculations"), AddEntry("c", "other_things")])
    assert {entry.text: entry.section for entry in book.entries} == {
        "a": "Formulas & Calculations",
        "b": "Formulas & Calculations",
        "c": "other_things",
    }
