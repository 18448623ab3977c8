import pytest

from dspy_evocue.call_sites import CallSite
from dspy_evocue.proposal_checks import ProposalLimits, ProposedEdit, SiteUse, check_proposal, parse_site

SITES = (SiteUse("START", "react", 4, 4), SiteUse("tool:search", "react", 12, 4), SiteUse("react", "extract", 4, 4))
LIMITS = ProposalLimits(sites=SITES, task_ids=frozenset({"t1", "t2"}))


def edit(text="Press the brake first.", at=("recurring -> react",), **settings):
    return ProposedEdit(text, tuple(map(parse_site, at)), **settings)


def problems(candidate, limits=LIMITS):
    return " ".join(check_proposal(candidate, limits).problems)


def test_a_sound_edit_hears_which_entries_it_reaches():
    checked = check_proposal(edit(at=("START -> react", "tool:* -> react")), LIMITS)
    assert checked.problems == ()
    assert not checked.worth_revising
    assert checked.feedback(1) == (
        "1. It is read on START -> react: 4 entries in 4 episodes; tool:search -> react: 12 entries in 4 episodes."
    )


def test_an_edit_on_the_first_entry_only_hears_what_it_misses():
    checked = check_proposal(edit(at=("START -> react",)), LIMITS)
    assert checked.problems == ()
    assert checked.worth_revising
    assert "the same predictor is entered again on tool:search -> react: 12 entries" in checked.feedback(2)


def test_an_entry_that_is_never_used_is_a_problem_that_lists_the_others():
    assert problems(edit(at=("START -> planner",))) == (
        "START -> planner was never entered; the entries of this program are "
        "START -> react; tool:search -> react; react -> extract."
    )


@pytest.mark.parametrize(
    ("candidate", "problem"),
    [
        (edit(text="  "), "Its text is empty."),
        (edit(text="x" * 2001), "at most 2000 characters, it has 2001"),
        (edit(text="<think> hm"), "unfinished thoughts"),
        (edit(text="As in t1, press it."), "Its text names t1; it must make sense for other tasks too."),
        (edit(at=()), "It names no entry."),
        (edit(skill={"operations": []}), "instructions only, no skills"),
    ],
)
def test_an_edit_that_cannot_be_tried_says_why(candidate, problem):
    assert problem in problems(candidate)


def test_a_task_id_inside_another_word_is_no_task():
    assert problems(edit(text="Use list1 and t12.")) == ""


def test_what_was_tried_before_is_not_tried_again():
    tried = ProposalLimits(sites=SITES, tried={edit(text="press  the BRAKE first.").key})
    assert "was tried before" in problems(edit(), tried)
    assert problems(edit(scope="next_action"), tried) == ""


def test_a_skill_may_be_proposed_where_skills_are_possible():
    limits = ProposalLimits(sites=SITES, allow_skills=True)
    assert problems(edit(text="", skill={"operations": ["revise"]}), limits) == ""


def test_sites_are_read_as_they_are_written():
    assert parse_site(" tool:search->`react` ") == CallSite("tool:search", "react")
    for wrong in ("react", "-> react", "START ->"):
        with pytest.raises(ValueError, match='an entry must read "source -> target"'):
            parse_site(wrong)


def test_a_text_that_only_repeats_a_listed_task_is_no_instruction():
    limits = ProposalLimits(sites=SITES, task_values=frozenset({"Close ticket 7.", ""}))
    assert "is a listed task" in problems(edit(text="close  ticket 7"), limits)
    assert problems(edit(text="Before you close ticket 7, press the brake."), limits) == ""
