"""An edit keeps acting after other optimizers have run on the edited program, and they run on it as on any other."""

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError

from dspy_combee.testing import scripted_lm
from dspy_evocue import CallSite, InstructionEdit, attach
from dspy_evocue.testing import chat_reply

LESSON = "Zebra rule."
EDIT = InstructionEdit(at=CallSite("plan", "solve"), text=LESSON)
ROWS = [dspy.Example(question=f"q{index}", answer="good").with_inputs("question") for index in range(4)]


class Pair(dspy.Module):
    def __init__(self):
        super().__init__()
        self.plan = dspy.Predict("question -> plan")
        self.solve = dspy.Predict("question, plan -> answer")

    def forward(self, question):
        return self.solve(question=question, plan=self.plan(question=question).plan)


def task_lm():
    def reply(prompt, number):
        return chat_reply(plan="p", answer="good" if "Improved" in prompt else "bad")

    return scripted_lm(reply)


def exact(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return float(gold.answer == pred.answer)


def acts(program):
    lm = task_lm()
    with dspy.context(lm=lm):
        program(question="q")
    return [LESSON in prompt for prompt in lm.engine.prompts]


def gepa():
    reflection = scripted_lm(lambda prompt, number: f'{{"new_instruction": "Improved {number}."}}')
    return dspy.GEPA(metric=exact, max_metric_calls=30, reflection_lm=reflection, num_threads=1)


def test_the_edit_acts_after_gepa_and_gepas_text_is_its_own():
    with dspy.context(lm=task_lm()):
        compiled = gepa().compile(attach(Pair(), EDIT), trainset=ROWS, valset=ROWS[:2])
    assert acts(compiled) == [False, True]
    assert any("Improved" in predictor.signature.instructions for predictor in compiled.predictors())
    assert all(LESSON not in predictor.signature.instructions for predictor in compiled.predictors())
    assert compiled.evocue.edits == (EDIT,)


@pytest.mark.parametrize("is_edited_first", [True, False])
def test_the_edit_acts_with_bootstrapped_demos(is_edited_first):
    optimizer = dspy.BootstrapFewShot(metric=lambda gold, pred, trace=None: True, max_bootstrapped_demos=2)
    with dspy.context(lm=task_lm()):
        program = attach(Pair(), EDIT) if is_edited_first else Pair()
        compiled = optimizer.compile(program, trainset=ROWS)
    program = compiled if is_edited_first else attach(compiled, EDIT)
    assert acts(program) == [False, True]
    assert all(predictor.demos for predictor in program.predictors())


def test_the_edit_acts_after_mipro():
    pytest.importorskip("optuna")

    def reply(prompt, number):
        return chat_reply(
            plan="p",
            answer="good",
            observations="o",
            summary="s",
            program_description="d",
            module_description="m",
            proposed_instruction="Improved.",
        )

    lm = scripted_lm(reply)
    optimizer = dspy.MIPROv2(
        metric=exact,
        auto=None,
        num_candidates=2,
        max_bootstrapped_demos=1,
        max_labeled_demos=1,
        num_threads=1,
        prompt_model=lm,
        task_model=lm,
    )
    with dspy.context(lm=lm):
        compiled = optimizer.compile(attach(Pair(), EDIT), trainset=ROWS, valset=ROWS, num_trials=2, minibatch=False)
    assert acts(compiled) == [False, True]


def test_a_parse_error_names_the_predictors_own_signature_so_that_optimizers_find_it():
    program = attach(Pair(), EDIT)
    lm = scripted_lm(lambda prompt, number: "nothing" if LESSON in prompt else chat_reply(plan="p"))
    with dspy.context(lm=lm), pytest.raises(AdapterParseError) as caught:
        program(question="q")
    assert caught.value.signature is program.solve.signature
