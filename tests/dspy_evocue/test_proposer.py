import json

import dspy
import pytest

from dspy_combee.testing import scripted_lm, scripted_response
from dspy_evocue.call_sites import CallSite
from dspy_evocue.proposal_checks import SiteUse
from dspy_evocue.proposer import LMProposer, ProposalRequest, episode_index, existing_fragments
from dspy_evocue.public_episodes import episode_from
from dspy_evocue.residual_goals import check_goals
from dspy_evocue.signatures import FragmentWanted, JudgedRequirement, ProposeEdits

SITES = (SiteUse("START", "react", 2, 2), SiteUse("tool:search", "react", 6, 2))
EPISODES = tuple(
    episode_from(f"t{n}", {"q": f"task number {n}"}, [("react", f"thought {n}"), ("tool:search", f"saw {n}")], 0.0)
    for n in (1, 2)
)
REQUEST = ProposalRequest(EPISODES, SITES)


def candidate(text="Check the door.", at=("tool:search -> react",), **settings):
    return {"text": text, "at": list(at), "expected_effect": "it checks", "cited_tasks": ["t1"], **settings}


def chat(field, value):
    return f"[[ ## {field} ## ]]\n{json.dumps(value)}\n\n[[ ## completed ## ]]"


def proposals(*replies, request=REQUEST, proposer=None):
    """Return what comes of these replies, and the prompts that were sent."""
    lm = scripted_lm(list(replies))
    with dspy.context(lm=lm):
        return (proposer or LMProposer()).propose(request), lm.engine.prompts


def test_a_sound_proposal_takes_one_call():
    result, prompts = proposals(chat("candidates", [candidate()]))
    (edit,) = result.candidates
    assert (edit.text, edit.at, edit.scope) == ("Check the door.", (CallSite("tool:search", "react"),), "call")
    assert edit.cited_tasks == ("t1",)
    assert result.lm_calls == len(prompts) == 1
    assert "tool:search -> react: 6 entries in 2 episodes" in prompts[0]
    assert "[2] tool:search: saw 2" in prompts[0]


def test_the_entries_stand_in_the_description_of_a_candidate_too():
    _, prompts = proposals(chat("candidates", [candidate()]))
    assert r"at least one of: \"START -> react\" or \"tool:search -> react\"" in prompts[0]


def test_names_that_are_no_entries_are_answered_in_one_sentence_with_the_entries():
    result, prompts = proposals(
        chat("candidates", [candidate(at=["t1", "t2"])]), chat("candidates", [candidate(at=["t1"])])
    )
    said = 't1, t2: no entry reads so; write "source -> target", one of START -> react; tool:search -> react.'
    assert said in prompts[1]
    assert result.candidates == ()
    assert len(result.rejected) == 1


def test_citations_of_tasks_that_do_not_exist_are_dropped():
    result, _ = proposals(chat("candidates", [candidate(cited_tasks=["t2", "t9", "t2"])]))
    assert result.candidates[0].cited_tasks == ("t2",)


def test_a_wrong_entry_is_revised_once_with_the_checks_words():
    result, prompts = proposals(
        chat("candidates", [candidate(at=["START -> planner"])]), chat("candidates", [candidate()])
    )
    assert result.candidates[0].at == (CallSite("tool:search", "react"),)
    assert "START -> planner was never entered" in prompts[1]


def test_an_edit_on_the_first_entry_is_told_about_the_later_ones_and_may_stay():
    first = candidate(at=["START -> react"])
    result, prompts = proposals(chat("candidates", [first]), chat("candidates", [first]))
    assert "It is read on the first entry only" in prompts[1]
    assert result.candidates[0].at == (CallSite("START", "react"),)


def test_what_is_still_wrong_after_one_revision_is_rejected_with_reasons():
    wrong = candidate(text="as in t1", at=["react"])
    result, prompts = proposals(chat("candidates", [wrong]), chat("candidates", [wrong]))
    assert result.candidates == ()
    (rejected,) = result.rejected
    assert len(rejected.problems) == 2
    assert len(prompts) == 2


def test_a_revision_that_cannot_be_parsed_leaves_the_sound_candidates():
    result, _ = proposals(
        chat("candidates", [candidate(), candidate(text="B", at=["nowhere -> x"])]), "?", "?", "?", "?"
    )
    assert [edit.text for edit in result.candidates] == ["Check the door."]
    assert len(result.rejected) == 1


def test_no_more_candidates_are_kept_than_asked_for():
    result, _ = proposals(chat("candidates", [candidate(text=name) for name in "ABC"]))
    assert [edit.text for edit in result.candidates] == ["A", "B"]


def test_equal_candidates_are_one():
    result, _ = proposals(chat("candidates", [candidate(), candidate(text="check  the door.")]))
    assert len(result.candidates) == 1


@pytest.mark.parametrize(
    "useless", ["", "I cannot help", "<think> where to begin", '[[ ## candidates ## ]]\n[{"text": "Check the d']
)
def test_a_useless_or_cut_reply_is_asked_for_again_and_never_adopted(useless):
    # A reply that cannot be parsed is tried by both of DSPy's adapters, and each question is asked twice.
    result, _ = proposals(useless, useless, chat("candidates", [candidate()]))
    assert len(result.candidates) == 1
    nothing, _ = proposals(useless, useless, useless, useless)
    assert nothing.candidates == ()
    assert nothing.failure == "the proposer's reply could not be parsed"


HALF = '[{"at": ["tool:search -> react"], "expected_effect": "it checks", "text": "Never open the door unless'


@pytest.mark.parametrize(
    ("cut", "calls"),
    [
        (f"[[ ## candidates ## ]]\n{HALF}", 1),
        (f'{{"candidates": {HALF}', 2),  # the chat adapter cannot read it, so that the JSON adapter asks as well
        (scripted_response(chat("candidates", [candidate("Never open the door unless")]), finish_reason="length"), 1),
    ],
    ids=["chat", "json", "length"],
)
def test_half_an_instruction_is_asked_for_again_and_never_adopted(cut, calls):
    result, _ = proposals(*[cut] * calls, chat("candidates", [candidate()]))
    assert [edit.text for edit in result.candidates] == ["Check the door."]
    nothing, _ = proposals(*[cut] * 2 * calls)
    assert nothing.candidates == ()
    assert nothing.failure.startswith("the proposer's reply could not be used: the reply")


def test_an_outage_is_raised():
    with pytest.raises(Exception, match="503"):
        proposals(RuntimeError("503 unavailable"), RuntimeError("503 unavailable"))


def test_long_episodes_are_shown_by_the_fragments_that_are_asked_for():
    long = episode_from("t1", {"q": "long"}, [("react", f"<{n}>" + "x" * 3000) for n in range(1, 9)], 0.0)
    wanted = [{"task": "t1", "first_step": 7, "last_step": 7}, {"task": "t9", "first_step": 1, "last_step": 2}]
    result, prompts = proposals(
        chat("fragments", wanted), chat("candidates", [candidate()]), request=ProposalRequest((long,), SITES)
    )
    assert result.lm_calls == 2
    assert "[7] react: <7>" in prompts[1]
    assert "<2>" not in prompts[1]
    assert max(map(len, prompts)) < 20000


def test_an_index_of_many_long_tasks_is_cut_where_it_can_be_seen():
    many = tuple(episode_from(f"t{n}", {"q": "word " * 1000}, [("react", "x")], 0.0) for n in range(40))
    proposer = LMProposer(max_index_chars=3000)
    result, prompts = proposals(
        chat("candidates", [candidate()]), request=ProposalRequest(many, SITES), proposer=proposer
    )
    assert len(result.candidates) == 1
    index = prompts[0].rsplit("[[ ## index ## ]]", 1)[1].split("[[ ## call_sites ## ]]")[0]
    assert len(index) < 3100
    assert "characters left out" in index


def test_the_users_own_wording_and_length_hold():
    wording = ProposeEdits.with_instructions("Propose edits as a haiku.")
    proposer = LMProposer(propose_signature=wording, max_text_chars=10)
    result, prompts = proposals(*[chat("candidates", [candidate()])] * 2, proposer=proposer)
    assert "Propose edits as a haiku." in prompts[0]
    assert result.candidates == ()
    assert "at most 10 characters, it has 15" in result.rejected[0].problems[0]


def test_fragments_that_do_not_exist_are_dropped():
    wanted = [
        FragmentWanted(task="t1", first_step=2),
        FragmentWanted(task="t1", first_step=2),
        FragmentWanted(task="t1", first_step=3),
        FragmentWanted(task="t1", first_step=2, last_step=1),
        FragmentWanted(task="nobody"),
    ]
    assert [(episode.task_id, first, last) for episode, first, last in existing_fragments(wanted, EPISODES)] == [
        ("t1", 2, None)
    ]


def test_the_index_tells_outcomes_goals_and_what_was_tried():
    goals = check_goals(EPISODES[0], [JudgedRequirement(requirement="the door is locked", status="missing")])
    text = episode_index(ProposalRequest(EPISODES, SITES, goals={"t1": goals}, earlier="e1: rejected"))
    assert "- t1: score 0, 2 steps. Task: q: task number 1\n  missing: the door is locked" in text
    assert text.endswith("Tried before:\ne1: rejected")


def test_ideas_reach_the_proposer_as_untested_evidence():
    request = ProposalRequest(EPISODES, SITES, untested="- idea of the user: lock the doors")
    _, prompts = proposals(chat("candidates", [candidate()]), request=request)
    assert "- idea of the user: lock the doors" in prompts[0]


def test_a_further_check_can_refuse_a_candidate():
    def too_loud(edit):
        return ("It shouts.",) if edit.text.isupper() else ()

    shout = candidate(text="CHECK")
    result, prompts = proposals(
        chat("candidates", [shout]), chat("candidates", [shout]), proposer=LMProposer(check=too_loud)
    )
    assert result.rejected[0].problems == ("It shouts.",)
    assert "1. It shouts." in prompts[1]


def test_odd_text_is_proposed_byte_for_byte():
    odd = 'Say {question} [[ x ]] {{}} "json" %s ${x} 请用中文 🙂'
    result, _ = proposals(chat("candidates", [candidate(text=odd)]))
    assert result.candidates[0].text == odd
