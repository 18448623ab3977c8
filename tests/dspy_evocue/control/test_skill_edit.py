"""A skill on an ordinary program revises what a predictor returned, before the program and the trace see it."""

import asyncio
import dataclasses
from typing import Literal

import dspy
import pytest
from dspy.dsp.utils.settings import settings

import dspy_evocue
from dspy_combee.testing import ScriptedEngine, scripted_lm
from dspy_evocue import CallSite, attach, list_sites, paired_trial
from dspy_evocue.control.errors import SkillError
from dspy_evocue.control.skill_edit import SkillEdit
from dspy_evocue.control.skills import Branch, SkillOperation
from dspy_evocue.rules import Rule

REVISE = SkillEdit(CallSite("*", "decide"), (SkillOperation("revise", "Amber when both."),))
VALIDATE_THEN_REVISE = SkillEdit(
    CallSite("*", "decide"),
    (SkillOperation("validate", branches=(Branch("success", outcome="valid"),)), SkillOperation("revise")),
)


class Decide(dspy.Signature):
    points: str = dspy.InputField()
    color: Literal["GREEN", "AMBER", "RED"] = dspy.OutputField()
    weight: int = dspy.OutputField()


class Desk(dspy.Module):
    def __init__(self):
        super().__init__()
        self.read = dspy.Predict("review -> points")
        self.decide = dspy.Predict(Decide)

    def forward(self, review):
        return self.decide(points=self.read(review=review).points)

    async def aforward(self, review):
        return await self.decide.acall(points=(await self.read.acall(review=review)).points)


def reply(**fields):
    return "\n\n".join([*(f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items()), "[[ ## completed ## ]]"])


READ, GREEN, AMBER = reply(points="good, bad"), reply(color="GREEN", weight=3), reply(color="AMBER", weight=2)
FOUND, FINE = reply(problem_found="both kinds of points"), reply(problem_found="none")
EXAMPLE = dspy.Example(review="r", color="AMBER").with_inputs("review")


def run(edit, *texts):
    engine = ScriptedEngine(texts)
    with dspy.context(lm=scripted_lm(engine), trace=[]):
        prediction = attach(Desk(), edit)(review="r")
        return prediction, engine, list(settings.trace)


def test_the_program_sees_the_revised_prediction_with_its_types():
    prediction, engine, _ = run(REVISE, READ, GREEN, AMBER)
    assert (prediction.color, prediction.weight) == ("AMBER", 2)
    assert "Amber when both." in engine.prompts[2]
    assert '{"color": "GREEN", "weight": 3}' in engine.prompts[2]
    assert "good, bad" in engine.prompts[2]


def test_the_trace_shows_the_revised_prediction_and_not_the_operations():
    prediction, _, trace = run(REVISE, READ, GREEN, AMBER)
    assert [sorted(outputs.keys()) for _, _, outputs in trace] == [["points"], ["color", "weight"]]
    assert trace[1][2] is prediction
    assert trace[1][1] == {"points": "good, bad"}


def test_an_async_run_does_the_same():
    engine = ScriptedEngine([READ, GREEN, FOUND, AMBER])

    async def go():
        with dspy.context(lm=scripted_lm(engine)):
            return await attach(Desk(), VALIDATE_THEN_REVISE).acall(review="r")

    assert asyncio.run(go()).color == "AMBER"


def test_a_branch_saves_the_call_that_is_not_needed():
    prediction, engine, _ = run(VALIDATE_THEN_REVISE, READ, GREEN, FINE)
    assert (prediction.color, engine.calls) == ("GREEN", 3)


def test_what_validation_finds_reaches_the_revision():
    prediction, engine, _ = run(VALIDATE_THEN_REVISE, READ, GREEN, FOUND, AMBER)
    assert prediction.color == "AMBER"
    assert "both kinds of points" in engine.prompts[3]


def test_notes_and_goals_reach_the_revision():
    edit = dataclasses.replace(
        REVISE, operations=(SkillOperation("reflect"), SkillOperation("check_goals"), SkillOperation("revise"))
    )
    goals = reply(observed="['is short']", missing="['names the color of both']")
    _, engine, _ = run(edit, READ, GREEN, reply(note="two kinds"), goals, AMBER)
    assert "- two kinds" in engine.prompts[4]
    assert "- [x] is short\n- [ ] names the color of both" in engine.prompts[4]


def test_a_reply_that_cannot_be_read_leaves_the_prediction_as_it_was():
    prediction, _, _ = run(REVISE, READ, GREEN, reply(color="PINK", weight=1), "nonsense")
    assert (prediction.color, prediction.weight) == ("GREEN", 3)


def test_the_budget_of_the_skill_is_its_own():
    edit = dataclasses.replace(VALIDATE_THEN_REVISE, max_calls=1)
    prediction, engine, _ = run(edit, READ, GREEN, FOUND)
    assert (prediction.color, engine.calls) == ("GREEN", 3)


def test_a_rule_keeps_the_skill_out():
    prediction, engine, _ = run(dataclasses.replace(REVISE, when=Rule.of(visit="late")), READ, GREEN)
    assert (prediction.color, engine.calls) == ("GREEN", 2)


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ((), "A skill must have 1 to 6 operations, got 0."),
        ((SkillOperation("commit"),), r"Operation 1 \(commit\) is not available in this program"),
        ((SkillOperation("revise", branches=(Branch(1),)),), "branches must go forward"),
    ],
)
def test_operations_that_make_no_sense_here_are_refused(operations, message):
    with pytest.raises(SkillError, match=message):
        dataclasses.replace(REVISE, operations=operations)


@pytest.mark.parametrize("max_calls", [0, True, "6"])
def test_a_budget_must_be_a_whole_number_of_at_least_one(max_calls):
    with pytest.raises(ValueError, match="max_calls must be an integer of at least 1"):
        dataclasses.replace(REVISE, max_calls=max_calls)


def test_a_program_with_a_skill_is_saved_loaded_and_rid_of_it(tmp_path):
    edited = attach(Desk(), VALIDATE_THEN_REVISE)
    edited.save(tmp_path / "desk.json")
    loaded = dspy_evocue.load(Desk(), tmp_path / "desk.json")
    assert loaded.evocue.edits == (VALIDATE_THEN_REVISE,)
    assert "validate, then revise" in loaded.evocue.explain()
    assert loaded.evocue.without(VALIDATE_THEN_REVISE.edit_id).dump_state() == Desk().dump_state()


def test_a_broken_saved_skill_is_refused():
    with pytest.raises(ValueError, match="a skill edit must have operations and max_calls"):
        SkillEdit.from_dict({"kind": "skill"})


def test_the_operations_are_no_call_sites_of_the_program():
    with dspy.context(lm=scripted_lm([READ, GREEN, AMBER])):
        sites = list_sites(attach(Desk(), REVISE), [EXAMPLE])
    assert "decide" in str(sites)
    assert "draft_answer" not in str(sites)


def by_prompt(prompt, call_number):
    if "draft_answer" in prompt:
        return AMBER
    return GREEN if "color" in prompt else READ


def test_a_paired_trial_measures_a_skill_from_the_checkpoint():
    engine = ScriptedEngine(by_prompt)
    with dspy.context(lm=scripted_lm(engine)):
        record = paired_trial(
            Desk(), REVISE, EXAMPLE, lambda example, prediction, trace=None: prediction.color == example.color
        )
    assert (record.status, record.before, record.after) == ("applied", 0.0, 1.0)
    assert record.kind == "matched_prefix"
