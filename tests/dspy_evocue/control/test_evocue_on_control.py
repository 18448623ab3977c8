"""EvoCUE's own edits and trials on a controller: it is a DSPy program like any other."""

import dspy

import dspy_evocue
from dspy_combee.testing import scripted_lm
from dspy_evocue import CallSite, InstructionEdit, attach, list_sites, paired_trial
from dspy_evocue.control import ControlProgram, DraftState, Skill, SkillOperation, WorldEnvironment, returns_to
from dspy_evocue.control.code_world import HOUSE_RULE, check_code, open_code_world
from dspy_evocue.control.scripted_clerk import clerk_reply

EXAMPLE = dspy.Example(task_id="search-2").with_inputs("task_id")
RECURRING = InstructionEdit(at=CallSite("recurring", "draft"), text=HOUSE_RULE)
FIRST = InstructionEdit(at=CallSite("START", "draft"), text=HOUSE_RULE)


def score(example, prediction, trace=None):
    return prediction.score


def test_the_edges_of_a_controller_are_call_sites():
    agent = ControlProgram.code_agent(open_code_world, check=check_code)
    with dspy.context(lm=scripted_lm(clerk_reply)):
        text = str(list_sites(agent, [EXAMPLE]))
    assert "START" in text
    assert "commit" in text


def test_a_trial_of_a_lesson_finds_that_it_must_act_on_the_recurring_entry():
    agent = ControlProgram.code_agent(open_code_world, check=check_code)
    with dspy.context(lm=scripted_lm(clerk_reply)):
        first = paired_trial(agent, FIRST, EXAMPLE, score)
        recurring = paired_trial(agent, RECURRING, EXAMPLE, score)
    assert (first.status, first.before, first.after) == ("applied", 0.0, 0.0)
    assert (recurring.status, recurring.before, recurring.after) == ("applied", 0.0, 1.0)
    assert recurring.kind == "matched_prefix"


def test_an_edited_controller_is_saved_with_its_graph_and_loads_into_a_copy(tmp_path):
    agent = ControlProgram.code_agent(open_code_world, check=check_code)
    told = agent.with_instruction("recurring", "prepare", HOUSE_RULE)
    attach(told, RECURRING).save(tmp_path / "agent.json")
    loaded = dspy_evocue.load(agent, tmp_path / "agent.json")
    assert loaded.graph == told.graph
    assert loaded.evocue.edits == (RECURRING,)
    assert agent.graph == ControlProgram.code_agent(open_code_world, check=check_code).graph


def test_an_edit_and_a_skill_of_the_graph_act_together():
    look = Skill(
        "look",
        "prepare",
        "pre_commit",
        (SkillOperation("revise"),),
        returns_to("pre_commit", (DraftState.PENDING_VALID, DraftState.PENDING_INVALID)),
    )
    agent = ControlProgram.code_agent(open_code_world, check=check_code).with_skill(look)
    everywhere = InstructionEdit(at=CallSite("*", "revise"), text=HOUSE_RULE)
    with dspy.context(lm=scripted_lm(clerk_reply)):
        assert agent(task_id="search-2").score == 0.0
        assert attach(agent, everywhere)(task_id="search-2").score == 1.0


def test_a_world_environment_restores_the_world_of_a_trial():
    environment = WorldEnvironment(open_code_world)
    agent = ControlProgram.code_agent(environment.open, inputs=("task_id",), check=check_code)
    with dspy.context(lm=scripted_lm(clerk_reply)):
        record = paired_trial(agent, RECURRING, EXAMPLE, score, environment=environment)
    assert (record.before, record.after) == (0.0, 1.0)
