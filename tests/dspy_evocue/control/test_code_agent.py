"""The six-node code agent on the code world: where a lesson acts, what a skill costs, and what is left alone."""

import dspy
import pytest

from dspy_combee.testing import ScriptedEngine, scripted_lm
from dspy_evocue.control import ControlProgram, DraftState, Limits, Skill, SkillOperation, returns_to
from dspy_evocue.control.code_world import HOUSE_RULE, CodeWorld, check_code, make_task, open_code_world
from dspy_evocue.control.scripted_clerk import clerk_reply
from dspy_evocue.rules import Rule

PENDING = (DraftState.PENDING_VALID, DraftState.PENDING_INVALID)
TASKS = ("report-1", "direct-1", "direct-2", "search-1", "search-2", "search-3")


def make_agent(**options):
    options = {"check": check_code, "features": {"calls": called_app}, **options}
    return ControlProgram.code_agent(open_code_world, **options)


def called_app(draft):
    return "payments" if "payments.pay" in draft else "other"


def add_reference(when=None):
    operations = (SkillOperation("revise", HOUSE_RULE),)
    return Skill("reference", "prepare", "pre_commit", operations, returns_to("pre_commit", PENDING), when or Rule())


def work(agent, *task_ids):
    with dspy.context(lm=scripted_lm(clerk_reply)):
        return [agent(task_id=task_id) for task_id in task_ids]


def solved(agent, *task_ids):
    return [task_id for task_id, run in zip(task_ids, work(agent, *task_ids), strict=True) if run.score == 1.0]


def test_the_agent_goes_through_the_six_nodes_and_scores_what_the_world_says():
    (run,) = work(make_agent(), "report-1")
    cycle = ["prepare -> pre_commit", "pre_commit -> commit", "commit -> route"]
    assert run.path == ["start -> prepare", *cycle, "route -> prepare", *cycle, "route -> stop"]
    assert (run.completed, run.score, run.stop_reason) == (True, 1.0, "finished")


def test_a_lesson_on_the_first_entry_is_gone_when_it_matters_and_on_the_recurring_one_is_there():
    agent = make_agent()
    assert solved(agent, *TASKS) == ["report-1"]
    first = agent.with_instruction("START", "prepare", HOUSE_RULE)
    assert solved(first, *TASKS) == ["report-1", "direct-1", "direct-2"]
    recurring = agent.with_instruction("recurring", "prepare", HOUSE_RULE)
    assert solved(recurring, *TASKS) == ["report-1", "search-1", "search-2", "search-3"]
    everywhere = agent.with_instruction("*", "prepare", HOUSE_RULE)
    assert solved(everywhere, *TASKS) == list(TASKS)


def test_a_skill_with_a_rule_does_as_much_as_the_same_skill_everywhere_for_fewer_calls():
    always = work(make_agent().with_skill(add_reference()), *TASKS)
    where_it_pays = work(make_agent().with_skill(add_reference(Rule.of(calls="payments"))), *TASKS)
    assert [run.score for run in always] == [run.score for run in where_it_pays] == [1.0] * len(TASKS)
    assert sum(run.model_calls for run in where_it_pays) < sum(run.model_calls for run in always)


def test_a_skill_takes_from_the_budget_of_the_run():
    limits = Limits(max_model_calls=6)
    (plain,) = work(make_agent(limits=limits), "search-1")
    (skilled,) = work(make_agent(limits=limits).with_skill(add_reference()), "search-1")
    assert (plain.stop_reason, skilled.stop_reason) == ("finished", "max_model_calls")
    assert (skilled.score, skilled.completed) == (0.0, False)


def test_a_draft_that_cannot_run_is_not_executed_but_shown_with_its_problem():
    engine = ScriptedEngine(clerk_reply)
    task_id = next(f"direct-{n}" for n in range(50) if make_task(f"direct-{n}").to_pay[0].endswith("3"))
    with dspy.context(lm=scripted_lm(engine)):
        run = make_agent()(task_id=task_id)
    assert "pre_commit -> route" in run.path
    assert "[not executed] action:" in engine.prompts[1]
    assert "was never closed" in engine.prompts[1]
    assert run.actions == 2


def test_the_checks_of_goals_and_notes_are_there_for_skills():
    operations = (SkillOperation("check_goals"), SkillOperation("reflect"))
    look_back = Skill("look_back", "recurring", "prepare", operations, returns_to("prepare"))
    engine = ScriptedEngine(clerk_reply)
    with dspy.context(lm=scripted_lm(engine)):
        run = make_agent().with_skill(look_back)(task_id="report-1")
    assert run.score == 1.0
    assert "actions so far" in engine.prompts[-1]


def test_the_completion_feature_lets_a_skill_act_just_before_the_end():
    last_look = Skill(
        "last_look",
        "prepare",
        "pre_commit",
        (SkillOperation("revise"),),
        returns_to("pre_commit", PENDING),
        Rule.of(completion="called"),
    )
    (run,) = work(make_agent().with_skill(last_look), "search-1")
    assert run.path.count("prepare -> last_look.1:revise") == 1
    revised = ["prepare -> last_look.1:revise", "last_look.1:revise -> last_look.success"]
    left = "last_look.success -> pre_commit"
    assert run.path[-6:] == [*revised, left, "pre_commit -> commit", "commit -> route", "route -> stop"]


def test_every_world_is_closed_also_when_the_model_fails():
    closed = []

    class Watched(CodeWorld):
        def close(self):
            closed.append(self.task.task_id)

    agent = ControlProgram.code_agent(lambda task_id: Watched(make_task(task_id)))
    with dspy.context(lm=scripted_lm([RuntimeError("down")])), pytest.raises(Exception, match="down"):
        agent(task_id="report-1")
    assert closed == ["report-1"]


def test_runs_on_one_agent_in_many_threads_do_not_meet():
    agent = make_agent().with_instruction("*", "prepare", HOUSE_RULE)
    examples = [dspy.Example(task_id=f"search-{n}").with_inputs("task_id") for n in range(16)]
    with dspy.context(lm=scripted_lm(clerk_reply)):
        evaluate = dspy.Evaluate(
            devset=examples, metric=lambda example, run, trace=None: run.score, num_threads=8, display_progress=False
        )
        assert evaluate(agent).score == 100.0


def test_a_world_whose_inputs_cannot_be_known_asks_for_them():
    with pytest.raises(ValueError, match="inputs must be given"):
        ControlProgram.code_agent(lambda: None)
