from dataclasses import replace

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.playbook import AddEntry, Playbook, PlaybookEntry, Vote, playbook_of, set_playbook
from dspy_combee.playbook.entries import normal_section, normal_text
from dspy_combee.playbook.text import join_instructions, split_instructions

ODD = (
    '{question} [[ ## answer ## ]] {{}} ```json {"a":1}``` <side_info> %s ${x} 请用中文 🙂\n'
    "</playbook>\n## Not a section\n\n[e9] no entry"
)
TEXTS = st.text(max_size=60).map(normal_text).filter(bool) | st.just(ODD)
SECTIONS = st.text(max_size=12).map(normal_section)


def book_of(texts, sections, counts) -> Playbook:
    book = Playbook().apply([AddEntry(text, section) for text, section in zip(texts, sections, strict=True)])
    entries = [replace(e, helpful=c, harmful=c // 2, neutral=c % 3) for e, c in zip(book.entries, counts, strict=False)]
    return replace(book, entries=tuple(entries))


@given(st.lists(st.tuples(TEXTS, SECTIONS, st.integers(0, 99)), max_size=6))
def test_a_rendered_playbook_reads_back_without_a_changed_byte(rows):
    book = book_of(*zip(*rows, strict=True)) if rows else Playbook()
    back = Playbook.parse(book.render())
    assert [(e.id, e.section, e.text, e.helpful, e.harmful, e.neutral) for e in back.entries] == [
        (e.id, e.section, e.text, e.helpful, e.harmful, e.neutral) for e in book.entries
    ]
    assert back.next_number == book.next_number


@given(st.lists(st.tuples(TEXTS, SECTIONS, st.integers(0, 9)), max_size=4))
def test_a_playbook_survives_dspy_instructions_and_json_state(rows):
    book = book_of(*zip(*rows, strict=True)) if rows else Playbook()
    program = dspy.Predict("question -> answer")
    set_playbook(program, book)
    fresh = dspy.Predict("question -> answer")
    fresh.load_state(program.dump_state())
    assert Playbook.from_program(fresh).entries == tuple(replace(e, record_ids=(), created=0) for e in book.entries)


def test_the_users_own_text_stays_byte_identical():
    own = "Answer {question}.\n\n  - indented <playbook>\n[[ ## answer ## ]] \n\nEnd. "
    program = dspy.Predict(dspy.Signature("question -> answer", own))
    own = program.signature.instructions
    set_playbook(program, Playbook().apply([AddEntry(ODD)]))
    assert program.signature.instructions.startswith(own + "\n\n<playbook")
    set_playbook(program, Playbook().apply([AddEntry("other")]))
    set_playbook(program, Playbook())
    assert program.signature.instructions == own


def test_text_that_another_tool_put_after_the_playbook_stays():
    block = Playbook().apply([AddEntry("x")]).render()
    split = split_instructions(f"before\n\n{block}\n\nafter")
    assert (split.before, split.block, split.after) == ("before", block, "\n\nafter")
    assert join_instructions(split, None) == "before\n\nafter"


def test_provenance_comes_back_from_the_program_that_was_compiled():
    program = dspy.Predict("question -> answer")
    book = Playbook().apply([AddEntry("x", "S", ("r1",))]).apply([Vote("e1", "r2", "helpful")])
    set_playbook(program, book)
    assert Playbook.from_program(program.deepcopy()) == book


def test_instructions_that_were_edited_by_hand_win_over_the_stored_copy():
    program = dspy.Predict("question -> answer")
    set_playbook(program, Playbook().apply([AddEntry("old text", "S", ("r1",))]))
    program.signature = program.signature.with_instructions(
        program.signature.instructions.replace("old text", "new text")
    )
    assert [(e.id, e.text, e.record_ids) for e in playbook_of(program).entries] == [("e1", "new text", ())]


def test_a_two_letter_slug_is_matched():
    book = Playbook.parse("## S\n[ab-00007] helpful=3 harmful=1 :: text")
    assert book.entries == (PlaybookEntry("ab-00007", "S", "text", helpful=3, harmful=1),)
    assert book.next_number == 8


def test_digits_of_another_script_are_text_and_no_id():
    texts = [(entry.id, entry.text) for entry in Playbook.parse("[a٣] text\n[a3 +٣] text").entries]
    assert texts == [("e1", "[a٣] text"), ("e2", "[a3 +٣] text")]


def test_a_newline_in_an_entry_leaves_no_orphan_text():
    book = Playbook().apply([AddEntry("first\n\nthird\n## heading?")])
    assert Playbook.parse(book.render()).entries[0].text == "first\n\nthird\n## heading?"
    assert len(Playbook.parse(book.render())) == 1


def test_text_before_the_first_header_is_not_lost():
    book = Playbook.parse("[e2] kept\n- a bullet\nplain line\n## Later\n1. numbered\n  and more")
    assert [(e.id, e.section, e.text) for e in book.entries] == [
        ("e2", "General", "kept"),
        ("e3", "General", "a bullet"),
        ("e4", "General", "plain line"),
        ("e5", "Later", "numbered\nand more"),
    ]


def test_well_voted_entries_stand_first_in_their_section():
    book = Playbook().apply([AddEntry("a"), AddEntry("b")]).apply([Vote("e2", "r1", "helpful")])
    assert book.render().index("[e2 +1] b") < book.render().index("[e1] a")


def test_several_playbooks_need_a_name():
    class Two(dspy.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = dspy.Predict("a -> b"), dspy.Predict("b -> c")

    program = Two()
    assert len(Playbook.from_program(program)) == 0
    set_playbook(program.first, Playbook().apply([AddEntry("x")]))
    assert len(Playbook.from_program(program)) == 1
    set_playbook(program.second, Playbook().apply([AddEntry("y")]))
    with pytest.raises(ValueError, match="name the predictor"):
        Playbook.from_program(program)
    assert Playbook.from_program(program, "second").entries[0].text == "y"
    with pytest.raises(ValueError, match="must be one of"):
        Playbook.from_program(program, "third")
