import os
import subprocess
import sys

import dspy
import pytest

from dspy_combee.playbook import AddEntry, Playbook, PlaybookEntry, RemoveEntry, set_playbook
from dspy_combee.playbook.text import split_instructions


def test_saved_and_loaded_is_the_same(tmp_path):
    book = Playbook().apply([AddEntry("x 请 🙂\nline", "S", ("r1", "r2"))])
    book.save(tmp_path / "book.json")
    assert Playbook.load(tmp_path / "book.json") == book
    assert os.listdir(tmp_path) == ["book.json"]


def test_something_else_is_refused_with_words():
    with pytest.raises(ValueError, match="a playbook needs entries"):
        Playbook.from_dict({"instructions": "x"})
    for wrong in ({"id": "seventeen"}, {"id": 17}, {"text": None}, {"helpful": "often"}, {"record_ids": None}):
        entry = {"id": "e1", "section": "S", "text": "a", "record_ids": [], **wrong}
        with pytest.raises(ValueError, match="a playbook needs entries"):
            Playbook.from_dict({"entries": [entry], "sections": [], "next_number": 1, "version": 0})
    with pytest.raises(ValueError, match="unique"):
        Playbook(entries=(PlaybookEntry("e1", "S", "a"), PlaybookEntry("e1", "S", "b")))


def test_what_was_written_by_hand_is_read_as_the_prompt_will_show_it():
    entry = {"id": "e1", "section": "# Codes\n", "text": "a\tb\r\n## c", "helpful": "3", "record_ids": ["r1"], "new": 1}
    book = Playbook.from_dict({"entries": [entry], "sections": ["Codes"], "next_number": 1, "version": 0})
    assert book.entries == (PlaybookEntry("e1", "Codes", "a    b\n## c", helpful=3, record_ids=("r1",)),)
    assert Playbook.parse(book.render()).entries[0].text == book.entries[0].text


def test_an_emptied_playbook_goes_on_counting_after_the_program_was_saved(tmp_path):
    program = dspy.Predict("question -> answer")
    own = program.signature.instructions
    book = Playbook().apply([AddEntry("a"), AddEntry("b")])
    set_playbook(program, book.apply([RemoveEntry("e1"), RemoveEntry("e2")]))
    program.save(tmp_path / "program.json")
    loaded = dspy.Predict("question -> answer")
    loaded.load(tmp_path / "program.json")
    emptied = Playbook.from_program(loaded)
    assert emptied.entries == ()
    assert [entry.id for entry in emptied.apply([AddEntry("c")]).entries] == ["e3"]
    assert split_instructions(loaded.signature.instructions).own_text == own


def test_a_compiled_program_loads_where_only_dspy_is_installed(tmp_path):
    program = dspy.Predict("question -> answer")
    set_playbook(program, Playbook().apply([AddEntry("lesson 42")]))
    program.save(tmp_path / "program.json")
    program.save(tmp_path / "whole", save_program=True)
    code = (
        "import sys, dspy; sys.modules['dspy_combee'] = None\n"
        "p = dspy.Predict('question -> answer'); p.load('program.json'); print(p.signature.instructions)\n"
        "print(dspy.load('whole', allow_pickle=True).signature.instructions)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.count("lesson 42") == 2
