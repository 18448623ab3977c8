"""A skill on an edge of a controller as an edit: when it may be carried, tried, and what a trial says of it."""

import asyncio
import dataclasses
import functools
import threading

import dspy
import pytest

from dspy_combee.testing import scripted_lm
from dspy_evocue import CallSite, InstructionEdit, attach, list_sites, paired_trial, record_runs
from dspy_evocue.control import (
    Branch,
    ControlProgram,
    DraftState,
    GraphError,
    Limits,
    Return,
    Skill,
    SkillError,
    SkillOperation,
    check_skill,
    returns_to,
)
from dspy_evocue.control.code_world import HOUSE_RULE, check_code, open_code_world
from dspy_evocue.control.graph_skill_edit import GraphSkillEdit, find_edit_problems
from dspy_evocue.control.scripted_clerk import clerk_reply
from dspy_evocue.edits import edit_from_dict
from dspy_evocue.episodes import plan_runs
from dspy_evocue.proposal_checks import ProposedEdit
from dspy_evocue.rounds.candidate_trials import Candidate, TriedCandidate
from dspy_evocue.rounds.compile_edits import compile_edits
from dspy_evocue.rounds.proposed_edits import fit_together
from dspy_evocue.rules import Rule, RuleEvidence, fit_rule
from dspy_evocue.trials import Trial

EMPTY, VALID, INVALID = DraftState
PENDING = (VALID, INVALID)
REVISE = GraphSkillEdit(
    CallSite("prepare", "pre_commit"), (SkillOperation("revise", HOUSE_RULE),), returns_to("pre_commit", PENDING)
)
EXAMPLE = dspy.Example(task_id="search-2").with_inputs("task_id")


def score(example, prediction, trace=None):
    return prediction.score


def make_agent(**settings):
    return ControlProgram.code_agent(open_code_world, check=check_code, **settings)


def changed(**fields):
    return dataclasses.replace(REVISE, **fields)


def trial(edit, *, agent=None, reply=clerk_reply, **settings):
    adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
    with dspy.context(lm=scripted_lm(reply), adapter=adapter):
        return paired_trial(agent or make_agent(), edit, EXAMPLE, score, **settings)


def test_a_trial_starts_on_the_edge_with_the_state_as_rules_test_it():
    record = trial(REVISE)
    assert (record.status, record.kind, record.before, record.after) == ("applied", "matched_prefix", 0.0, 1.0)
    assert record.site == "prepare -> pre_commit"
    assert (record.features["phase"], record.features["draft"]) == ("first", "pending-valid")
    assert record.prefix.lm_calls == 1


def test_a_rule_moves_the_checkpoint_to_the_first_state_in_which_it_holds():
    record = trial(changed(when=Rule.of(phase="middle")))
    assert (record.kind, record.after, record.features["phase"]) == ("matched_prefix", 1.0, "middle")
    assert record.prefix.lm_calls == 2
    assert trial(changed(when=Rule.of(phase="late"))).status == "skipped"
    assert trial(changed(at=CallSite("pre_commit", "route"))).status == "unreached"


def test_before_its_checkpoint_a_skill_under_trial_does_not_act():
    with dspy.context(lm=scripted_lm(clerk_reply)):
        plan = plan_runs(make_agent(), score)
        (recording,) = record_runs(make_agent(), [EXAMPLE], score)
        entries = recording.tape.acting(REVISE)
        later = entries[2]
        record = Trial(plan, (REVISE,), EXAMPLE, 1, "t", given=recording, acts_from=later.number).run()
    # One payment was made without the skill by then, so it comes too late.
    assert (record.status, record.checkpoint, record.after) == ("applied", later.number, 0.0)
    assert record.edited.lm_calls - record.parent.lm_calls == len(entries) - 2


def test_a_skill_whose_effect_nobody_sees_is_no_change_of_behaviour():
    record = trial(changed(operations=(SkillOperation("revise"),)))
    assert (record.status, record.changes) == ("applied", ())
    assert record.edited.lm_calls > record.parent.lm_calls
    assert not record.evidence.is_usable


def unreadable_revisions(prompt, number=1):
    return "nonsense" if "[[ ## draft ## ]]" in prompt.rpartition("[[ ## task ## ]]")[2] else clerk_reply(prompt)


@pytest.mark.parametrize(
    ("edit", "agent", "reply", "reason"),
    [
        (REVISE, make_agent(), unreadable_revisions, "the reply to revise could not be read"),
        (
            changed(operations=(SkillOperation("validate", branches=(Branch("failure", outcome="valid"),)),)),
            make_agent(),
            clerk_reply,
            "the skill ended in failure after validate",
        ),
        (
            REVISE,
            make_agent(limits=Limits(max_model_calls=1)),
            clerk_reply,
            "max_model_calls was reached before revise",
        ),
    ],
    ids=["unreadable", "declared failure", "out of budget"],
)
@pytest.mark.parametrize("from_start", [False, True])
def test_a_skill_that_fails_without_raising_is_a_scored_failed_attempt(edit, agent, reply, reason, from_start):
    record = trial(edit, agent=agent, reply=reply, from_start=from_start)
    assert (record.status, record.before, record.after) == ("failed_attempt", 0.0, 0.0)
    assert reason in record.reason
    assert record.evidence.is_usable


def test_a_skill_that_does_its_work_on_one_of_its_entries_was_applied():
    seen = []

    def fails_first(prompt, number=1):
        reply = unreadable_revisions(prompt)
        if reply == "nonsense" and seen:
            return clerk_reply(prompt)
        seen.extend(["first"] if reply == "nonsense" else [])
        return reply

    assert trial(REVISE, reply=fails_first).status == "applied"


def test_a_trial_goes_back_through_a_skill_that_the_program_carries():
    noted = changed(operations=(SkillOperation("reflect"),), when=Rule.of(phase="first"))
    record = trial(changed(when=Rule.of(phase="middle")), agent=attach(make_agent(), noted))
    assert (record.kind, record.before, record.after) == ("matched_prefix", 0.0, 1.0)
    assert record.prefix.lm_calls == 3


def test_the_world_must_answer_in_a_trial_as_it_did_in_the_recording():
    open_count = iter(range(100))

    class Drifting:
        def __init__(self, world):
            self.world = world
            self.number = next(open_count)

        def execute(self, code):
            return f"{self.world.execute(code)} (run {self.number})"

        def __getattr__(self, name):
            return getattr(self.world, name)

    agent = ControlProgram.code_agent(lambda task_id: Drifting(open_code_world(task_id)), check=check_code)
    record = trial(changed(when=Rule.of(phase="middle")), agent=agent)
    assert record.status == "unresolved"
    assert "commit" in record.reason
    assert "control check" in trial(REVISE, agent=agent).reason


def test_the_skills_operations_are_call_sites_and_edges_are_not_shown_as_such():
    told = InstructionEdit(at=CallSite("*", "revise"), text=HOUSE_RULE)
    plain = changed(operations=(SkillOperation("revise"),))
    with dspy.context(lm=scripted_lm(clerk_reply)):
        assert attach(make_agent(), plain, told)(task_id="search-2").score == 1.0
        sites = list_sites(attach(make_agent(), plain), [EXAMPLE])
    assert sites.count("draft", "revise") > 0
    assert "pre_commit" not in str(sites)


def test_async_runs_and_threads_each_have_their_own_skills():
    agent, edited = make_agent(), attach(make_agent(), REVISE)

    async def both():
        return await asyncio.gather(edited.acall(task_id="search-2"), agent.acall(task_id="search-2"))

    scores = {}
    with dspy.context(lm=scripted_lm(clerk_reply)):
        assert [run.score for run in asyncio.run(both())] == [1.0, 0.0]
    lm = scripted_lm(clerk_reply)

    def one(number):
        with dspy.context(lm=lm):
            scores[number] = paired_trial(
                agent, REVISE if number % 2 else changed(when=Rule.of(phase="late")), EXAMPLE, score
            )

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [scores[number].status for number in range(4)] == ["skipped", "applied"] * 2


def test_an_edit_is_read_back_and_says_what_it_does():
    edit = changed(
        at=(CallSite("START", "prepare"), CallSite("recurring", "prepare")),
        operations=(SkillOperation("reflect", branches=(Branch("success", "noted"),)), SkillOperation("check_goals")),
        returns=returns_to("prepare", (EMPTY, INVALID)),
    )
    assert edit_from_dict(edit.to_dict()) == edit
    assert edit.describe() == "does reflect, then check_goals on START -> prepare or recurring -> prepare"
    names = [skill.skill_id for skill in attach(make_agent(), edit).graph.skills]
    assert names == [f"{edit.edit_id}-1", f"{edit.edit_id}-2"]


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        (changed(operations=(SkillOperation("discard"),)), SkillError, "declares no return"),
        (changed(at=CallSite("start", "prepare")), SkillError, "The source start is the start node"),
        (changed(at=CallSite("prepare", "nowhere")), SkillError, "There is no edge prepare -> nowhere"),
        (changed(when=Rule.of(weather="fair")), GraphError, "conditions may test phase"),
    ],
)
def test_what_the_graph_cannot_take_is_refused_before_any_call(edit, error, message):
    with pytest.raises(error, match=message):
        attach(make_agent(), edit)
    with pytest.raises(error, match=message):
        paired_trial(make_agent(), edit, EXAMPLE, score)


def test_a_program_without_a_graph_cannot_carry_it():
    with pytest.raises(TypeError, match="must be attached to a ControlProgram itself, got Predict"):
        attach(dspy.Predict("question -> answer"), REVISE)
    with pytest.raises(ValueError, match="scope must be call"):
        changed(scope="skill")


def test_changes_of_the_graph_leave_the_edits_where_they_are():
    edited = attach(make_agent(), REVISE)
    told = edited.with_instruction("recurring", "prepare", HOUSE_RULE)
    assert told.evocue.edits == (REVISE,)
    assert told.evocue.plain().graph == make_agent().graph.with_instruction("recurring", "prepare", HOUSE_RULE)
    library = Skill("note", "route", "prepare", (SkillOperation("reflect"),), returns_to("prepare", (EMPTY, INVALID)))
    both = edited.with_skill(library)
    assert [skill.skill_id for skill in both.graph.skills] == ["note", REVISE.edit_id]
    assert both.without_skill("note").graph == edited.graph
    with pytest.raises(ValueError, match="without takes it off"):
        both.without_skill(REVISE.edit_id)


NOTING_FIRST = changed(
    at=CallSite("START", "prepare"), operations=(SkillOperation("reflect"),), returns=returns_to("prepare", (EMPTY,))
)
STARTING_AGAIN = changed(
    at=CallSite("pre_commit", "route"), operations=(SkillOperation("reflect"),), returns=returns_to("start", (INVALID,))
)
"""Sound alone; with it, the other one can be entered with a draft that it declares no return for."""


def tried(edit, gain):
    evidence = [RuleEvidence(f"t{n}", 0.0, gain) for n in range(4)]
    proposed = ProposedEdit("", edit.sites, skill={})
    return TriedCandidate(Candidate(proposed, edit), (), 4, fit_rule(evidence, features=()))


def test_skills_that_are_sound_alone_and_not_together_are_not_compiled_together():
    agent = make_agent()
    assert fit_together(agent, [NOTING_FIRST])
    assert fit_together(agent, [STARTING_AGAIN])
    assert not fit_together(agent, [NOTING_FIRST, STARTING_AGAIN])
    compiled = compile_edits(
        [tried(NOTING_FIRST, 0.5), tried(STARTING_AGAIN, 1.0), tried(REVISE, 0.2)],
        fits=functools.partial(fit_together, agent),
    )
    assert compiled.edits == (REVISE, STARTING_AGAIN)
    assert [one.edit for one in compiled.replaced] == [NOTING_FIRST]
    with pytest.raises(SkillError, match="declares no return"):
        attach(agent, NOTING_FIRST, STARTING_AGAIN)


def test_an_instruction_and_a_skill_at_sites_of_one_name_do_not_replace_each_other():
    lesson = InstructionEdit(at=REVISE.at, text="x")
    compiled = compile_edits([tried(lesson, 0.5), tried(REVISE, 1.0)])
    assert compiled.edits == (lesson, REVISE)


def test_a_skill_that_is_sound_only_while_no_rule_lets_control_pass_by_is_refused():
    # It ends each run before a draft could be invalid where it stands; a rule that fails there would let one through.
    returns = (Return("success", EMPTY, "stop"), Return("failure", EMPTY, "stop"))
    edit = changed(
        at=CallSite("*", "prepare"),
        operations=(SkillOperation("reflect"),),
        returns=(*returns, Return("success", INVALID, "commit"), Return("failure", INVALID, "route")),
    )
    (skill,) = edit.skills
    assert check_skill(skill, make_agent().graph) == ()
    assert find_edit_problems(edit, make_agent().graph) == (
        "commit (commit) needs the draft to be pending-valid, but can be reached with it pending-invalid.",
    )


def test_a_start_condition_that_can_never_hold_is_refused():
    assert find_edit_problems(changed(when=Rule.of(phase="second")), make_agent().graph) == (
        "The start condition asks for phase is second, but phase is first or middle or late.",
    )


def test_a_trial_knows_in_which_states_the_skill_changed_anything():
    entered = trial(REVISE).entered
    # The search and the end pay nothing; each payment between them is revised.
    assert [state.changed for state in entered] == [False, True, True, True, True, True, False]
    assert [state.features["phase"] for state in entered] == ["first"] + ["middle"] * 6
    assert all(state.changed for state in trial(changed(operations=(SkillOperation("reflect"),))).entered)
