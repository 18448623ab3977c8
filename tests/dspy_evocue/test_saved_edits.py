"""Edits are saved with the program that carries them, also as a part of another one, and read back where they fit."""

import subprocess
import sys
from pathlib import Path

import dspy
import pytest

from dspy_combee.testing import scripted_lm
from dspy_evocue import CallSite, InstructionEdit, attach, load
from dspy_evocue.control.skill_edit import SkillEdit
from dspy_evocue.control.skills import SkillOperation
from dspy_evocue.errors import ArtifactError
from dspy_evocue.testing import chat_reply


class Pair(dspy.Module):
    def __init__(self):
        super().__init__()
        self.plan = dspy.Predict("question -> plan")
        self.solve = dspy.Predict("question, plan -> answer")

    def forward(self, question):
        return self.solve(question=question, plan=self.plan(question=question).plan)


def prompts_of(program):
    lm = scripted_lm(lambda prompt, number: chat_reply(plan="p", answer="a", summary="s"))
    with dspy.context(lm=lm):
        program(question="q")
    return lm.engine.prompts


class Outer(dspy.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.many = [dspy.Predict("question -> summary"), inner]
        self.last = dspy.Predict("question -> summary")

    def forward(self, question):
        self.last(question=question)
        return self.inner(question=question)


INNER_EDIT = InstructionEdit(at=CallSite("*", "plan"), text="Inner lesson.")
OUTER_EDIT = InstructionEdit(at=CallSite("*", "last"), text="Outer lesson.")


@pytest.mark.parametrize("is_outer_edited", [False, True])
def test_edits_of_a_program_inside_are_saved_and_loaded_with_the_outer_one(tmp_path, is_outer_edited):
    outer = Outer(attach(Pair(), INNER_EDIT))
    outer = attach(outer, OUTER_EDIT) if is_outer_edited else outer
    outer.save(tmp_path / "outer.json")
    loaded = load(Outer(Pair()), tmp_path / "outer.json")
    assert loaded.inner.evocue.edits == (INNER_EDIT,)
    assert loaded.many[1] is loaded.inner
    prompts = prompts_of(loaded)
    assert ["Inner lesson." in prompt for prompt in prompts] == [False, True, False]
    assert ["Outer lesson." in prompt for prompt in prompts] == [is_outer_edited, False, False]


def test_dspys_own_load_replaces_the_edits_of_a_program_inside(tmp_path):
    Outer(attach(Pair(), INNER_EDIT)).save(tmp_path / "outer.json")
    other = InstructionEdit(at=CallSite("*", "solve"), text="Another lesson.")
    outer = Outer(attach(Pair(), other))
    outer.load(tmp_path / "outer.json")
    assert outer.inner.evocue.edits == (INNER_EDIT,)


def test_a_predictor_with_edits_inside_another_program_keeps_them(tmp_path):
    edit = InstructionEdit(at=CallSite("*", "self"), text="Inner lesson.")
    Outer(attach(dspy.Predict("question -> answer"), edit)).save(tmp_path / "outer.json")
    loaded = load(Outer(dspy.Predict("question -> answer")), tmp_path / "outer.json")
    assert loaded.inner.evocue.edits == (edit,)
    assert "evocue" not in vars(loaded.inner.evocue.plain())


def test_a_file_with_edits_for_a_program_that_is_not_there_is_refused(tmp_path):
    Outer(attach(Pair(), INNER_EDIT)).save(tmp_path / "outer.json")
    with pytest.raises(ArtifactError, match="edits for inner inside the program, which has plan, solve"):
        load(Pair(), tmp_path / "outer.json")


def test_the_explanation_names_the_program_inside_that_carries_an_edit():
    outer = attach(Outer(attach(Pair(), INNER_EDIT)), OUTER_EDIT)
    assert [line.partition(":")[0] for line in outer.evocue.explain().split("\n")] == [
        OUTER_EDIT.edit_id,
        f"{INNER_EDIT.edit_id} in inner",
    ]


def test_an_older_state_of_an_edited_program_leaves_its_edits_and_those_inside(tmp_path):
    Outer(Pair()).save(tmp_path / "plain.json")
    outer = attach(Outer(attach(Pair(), INNER_EDIT)), OUTER_EDIT)
    outer.load(tmp_path / "plain.json")
    assert (outer.evocue.edits, outer.inner.evocue.edits) == ((OUTER_EDIT,), (INNER_EDIT,))


def test_a_saved_skill_loads_in_a_process_that_has_not_imported_skills(tmp_path):
    skill = SkillEdit(CallSite("*", "plan"), (SkillOperation("revise", "Shorter."),))
    attach(Pair(), skill).save(tmp_path / "skill.json")
    code = (
        "import sys, dspy, dspy_evocue\n"
        "class Pair(dspy.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.plan = dspy.Predict('question -> plan')\n"
        "        self.solve = dspy.Predict('question, plan -> answer')\n"
        f"print(dspy_evocue.load(Pair(), {str(tmp_path / 'skill.json')!r}).evocue.edits[0].edit_id)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == skill.edit_id, done.stderr
