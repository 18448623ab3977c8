"""Which tasks a candidate is tried on, what is compiled together, and what a proposal comes to."""

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_evocue.call_sites import CallSite
from dspy_evocue.control.skill_edit import SkillEdit
from dspy_evocue.edits import InstructionEdit
from dspy_evocue.proposal_checks import ProposedEdit
from dspy_evocue.rounds.candidate_trials import Candidate, TriedCandidate, choose_places
from dspy_evocue.rounds.compile_edits import compile_edits
from dspy_evocue.rounds.proposed_edits import edit_length, edit_of, edit_problems, operations_text
from dspy_evocue.rules import RuleEvidence, fit_rule


@given(st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)), st.integers(1, 12))
def test_places_are_distinct_and_never_more_than_asked_for(reached, cited, solved, count):
    reached = sorted(reached)
    places = choose_places(
        reached,
        cited=[place for place in reached if place in cited],
        solved=[place for place in reached if place in solved],
        spare=[place for place in range(21) if place not in reached],
        count=count,
    )
    assert len(places) == len(set(places)) == min(count, 21)
    assert set(reached) <= set(places) or set(places) <= set(reached)


def test_cited_tasks_come_first_and_some_solved_ones_are_always_tried():
    places = choose_places(range(12), cited=[7, 9], solved=[0, 1, 2], spare=[], count=8)
    assert places == [7, 9, 3, 4, 5, 6, 0, 1]


def tried(text, at=("recurring", "react"), gain=1.0):
    edit = InstructionEdit(at=CallSite(*at), text=text)
    evidence = [RuleEvidence(f"t{n}", 0.0, gain if n % 2 else 1.0) for n in range(4)]
    fitted = fit_rule(evidence, features=())
    return TriedCandidate(Candidate(ProposedEdit(text, edit.sites), edit), (), 8, fitted)


def test_of_two_edits_at_one_site_the_better_one_is_compiled():
    weak, strong = tried("weak", gain=0.2), tried("strong")
    compiled = compile_edits([strong, weak])
    assert [edit.text for edit in compiled.edits] == ["strong"]
    assert compiled.replaced == (weak,)


def test_edits_at_different_sites_are_compiled_together_the_best_last():
    weak, strong = tried("weak", at=("START", "react"), gain=0.2), tried("strong")
    assert [edit.text for edit in compile_edits([strong, weak]).edits] == ["weak", "strong"]


def test_what_does_not_pass_is_not_compiled():
    harmful = tried("harmful", gain=-3.0)
    assert not harmful.passes
    assert compile_edits([harmful]).members == ()


def test_a_proposed_skill_becomes_a_skill_edit():
    skill = {"operations": [{"operation": "validate", "instruction": "x"}, {"operation": "revise"}]}
    edit = edit_of(
        ProposedEdit("check it", (CallSite("START", "ask"),), skill=skill), dspy.Predict("question -> answer")
    )
    assert isinstance(edit, SkillEdit)
    assert edit_length(edit) == 2
    assert edit_length(InstructionEdit(at=CallSite("START", "ask"), text="x")) == 1


@pytest.mark.parametrize(
    "skill", [{}, {"operations": "revise"}, {"operations": [{}]}, {"operations": [{"operation": "cook"}]}]
)
def test_a_skill_that_cannot_be_read_or_is_not_sound_is_a_problem_in_words(skill):
    (problem,) = edit_problems(
        ProposedEdit("x", (CallSite("START", "ask"),), skill=skill), dspy.Predict("question -> answer")
    )
    assert problem.endswith(".")


def test_the_proposer_is_told_what_an_operation_reads_and_writes():
    text = operations_text(dspy.Predict("question -> answer"))
    assert "- revise:" in text
    assert "Reads" in text
    assert "Writes" in text
