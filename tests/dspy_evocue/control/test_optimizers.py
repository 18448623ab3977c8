"""DSPy's optimizers work on a controller's predictors, keep its graph, and leave the student alone."""

import json
import re

import dspy
import pytest
from dspy.teleprompt import COPRO, SIMBA, BootstrapFewShot, BootstrapFewShotWithRandomSearch, LabeledFewShot

from dspy_combee.testing import ScriptedEngine, scripted_lm
from dspy_evocue import CallSite, GraphSkillEdit, Rule, attach
from dspy_evocue.control import ControlProgram, DraftState, Skill, SkillOperation, returns_to
from dspy_evocue.control.code_world import HOUSE_RULE, check_code, open_code_world
from dspy_evocue.control.scripted_clerk import clerk_reply
from dspy_evocue.testing import chat_reply

PENDING = (DraftState.PENDING_VALID, DraftState.PENDING_INVALID)
SKILL = Skill("look", "prepare", "pre_commit", (SkillOperation("revise"),), returns_to("pre_commit", PENDING))
FEEDBACK = "A payment lacks its reference."
AGENT = ControlProgram.code_agent(open_code_world, check=check_code).with_skill(SKILL)


def examples(kind, count):
    return [dspy.Example(task_id=f"{kind}-{n}").with_inputs("task_id") for n in range(1, count + 1)]


def score(example, prediction, trace=None):
    return prediction.score


def score_with_feedback(example, prediction, trace=None, pred_name=None, pred_trace=None):
    return dspy.Prediction(score=prediction.score, feedback="" if prediction.score else FEEDBACK)


def test_the_predictors_have_their_operations_names():
    assert [name for name, _ in AGENT.named_predictors()] == ["draft", "revise", "reflect", "check_goals"]


def test_bootstrap_few_shot_collects_demonstrations_and_keeps_the_graph():
    before = AGENT.dump_state()
    with dspy.context(lm=scripted_lm(clerk_reply)):
        compiled = BootstrapFewShot(metric=score, max_labeled_demos=0).compile(AGENT, trainset=examples("report", 3))
        assert all(compiled(task_id=f"report-{n}").score == 1.0 for n in range(4, 6))
    assert compiled.graph == AGENT.graph
    assert len(compiled.draft.demos) == len(compiled.revise.demos) == 3
    assert AGENT.dump_state() == before


def test_gepa_learns_an_instruction_for_a_predictor_of_the_controller():
    learned = json.dumps({"new_instruction": f"Write the next code. {HOUSE_RULE}"})
    reflection = ScriptedEngine(lambda prompt, call_number: learned)
    with dspy.context(lm=scripted_lm(clerk_reply)):
        compiled = dspy.GEPA(
            metric=score_with_feedback,
            max_metric_calls=30,
            reflection_lm=scripted_lm(reflection),
            reflection_minibatch_size=2,
            component_selector="all",
        ).compile(AGENT, trainset=examples("search", 3), valset=examples("search", 3))
        assert compiled(task_id="search-7").score == 1.0
    assert reflection.calls > 0
    assert FEEDBACK in "".join(reflection.prompts)
    assert HOUSE_RULE in compiled.draft.signature.instructions
    assert compiled.graph == AGENT.graph


def test_set_lm_and_get_lm_reach_every_predictor():
    program = AGENT.deepcopy()
    lm = scripted_lm(clerk_reply)
    program.set_lm(lm)
    assert program.get_lm() is lm
    assert program(task_id="report-1").score == 1.0


def test_a_compiled_controller_is_saved_with_demonstrations_instructions_and_graph(tmp_path):
    with dspy.context(lm=scripted_lm(clerk_reply)):
        compiled = BootstrapFewShot(metric=score, max_labeled_demos=0).compile(AGENT, trainset=examples("report", 2))
    compiled.save(tmp_path / "agent.json")
    fresh = ControlProgram.code_agent(open_code_world, check=check_code)
    fresh.load(tmp_path / "agent.json")
    assert fresh.graph == AGENT.graph
    assert len(fresh.draft.demos) == len(compiled.draft.demos)


REVISION = GraphSkillEdit(
    CallSite("prepare", "pre_commit"),
    (SkillOperation("revise", HOUSE_RULE),),
    returns_to("pre_commit", PENDING),
    when=Rule.of(phase="middle"),
)


def clerk_and_adviser(prompt, number):
    """Answer as the clerk where the world is asked about, and with any text where an optimizer asks."""
    if "[[ ## task ## ]]" in prompt and "proposed_instruction" not in prompt:
        return clerk_reply(prompt, number)
    fields = re.findall(r"\[\[ ## (\w+) ## \]\]", prompt.split("Respond with")[-1])
    return chat_reply(**{name: "{}" if name == "module_advice" else "Do it." for name in fields if name != "completed"})


OTHERS = {
    "LabeledFewShot": lambda rows: LabeledFewShot(k=1).compile(attach(AGENT, REVISION), trainset=rows),
    "BootstrapFewShotWithRandomSearch": lambda rows: BootstrapFewShotWithRandomSearch(
        metric=score, max_labeled_demos=0, max_bootstrapped_demos=1, num_candidate_programs=1, num_threads=1
    ).compile(attach(AGENT, REVISION), trainset=rows),
    "COPRO": lambda rows: COPRO(metric=score, breadth=2, depth=1).compile(
        attach(AGENT, REVISION), trainset=rows, eval_kwargs={"num_threads": 1, "display_progress": False}
    ),
    "SIMBA": lambda rows: SIMBA(
        metric=score, bsize=2, num_candidates=2, max_steps=1, max_demos=1, num_threads=1
    ).compile(attach(AGENT, REVISION), trainset=rows),
}


@pytest.mark.parametrize("name", OTHERS)
def test_optimizers_work_on_a_controller_with_an_inherited_skill_and_leave_the_skill(name):
    rows = [dspy.Example(task_id=one.task_id, score=1.0).with_inputs("task_id") for one in examples("search", 3)]
    with dspy.context(lm=scripted_lm(clerk_and_adviser)):
        compiled = OTHERS[name](rows)
        assert compiled(task_id="search-9").score == 1.0
    assert compiled.evocue.edits == (REVISION,)
    assert compiled.graph == attach(AGENT, REVISION).graph
