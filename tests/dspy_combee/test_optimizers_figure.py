"""The figure against other optimizers: its scripted reflection model loses nothing by itself, whatever is asked."""

import math

import combee_optimizers as figure
import parcel_world as world
import pytest

from dspy_combee.testing import scripted_lm

NO_RULE_ASKED = {"operations", "merges", "program_description", "module_description"}
"""What is not mentioned there stays as it is, or no rule is wanted."""
FORMS = {
    "lessons",
    "new_instruction",
    "key_insight",
    "curated lessons",
    "module_advice",
    "observations",
    "summary",
    "proposed_instruction",
}


def wanted(prompt, form):
    """Return the rules that a reply in this form should pass on, mark to gate."""
    examples = form in ("observations", "proposed_instruction")
    shown = world.rules_in(prompt, with_examples=examples)
    field = {"key_insight": "judgement", "curated lessons": "reflections", "module_advice": "better_reward_info"}
    known = {"curated lessons": "playbook", "observations": "prior_observations"}
    if form in field:
        shown = world.rules_in(world.input_of(prompt, field[form]))
    before = world.rules_in(world.input_of(prompt, known[form])) if form in known else {}
    return {mark: gate for mark, gate in shown.items() if mark not in before}


@pytest.fixture(scope="module")
def exchanges():
    """Every prompt and reply of all methods on a small task, by form."""
    pytest.importorskip("optuna")
    model = world.ReflectionModel(math.inf, 0, is_brief=False)
    seen = []

    def noted(prompt, number):
        seen.append((prompt, model(prompt, number)))
        return seen[-1][1]

    setup = figure.Setup(world.make_task(24, 0), budget=120, batch=12, threads=1, seed=0)
    for name in figure.METHODS:
        unusable = figure.UnusableReplies()
        task = scripted_lm(world.TaskModel(0))
        with figure.dspy.context(lm=task, callbacks=[unusable]), unusable.watching():
            program = figure.dspy.Predict(world.RouteParcel)
            figure.METHODS[name](setup, world.Metric(), scripted_lm(noted), program)
        assert unusable.count == 0, name
    assert not model.unknown_forms
    by_form = {}
    for prompt, reply in seen:
        by_form.setdefault(world.form_of(prompt), []).append((prompt, reply))
    return by_form


def test_the_methods_ask_for_every_form(exchanges):
    assert set(exchanges) == FORMS | NO_RULE_ASKED


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_model_without_limits_passes_on_every_rule_that_a_prompt_shows(exchanges, form):
    for prompt, reply in exchanges[form]:
        assert world.rules_in(reply) == wanted(prompt, form)


@pytest.mark.parametrize("capacity", [3, 6])
def test_a_limited_model_passes_on_as_many_rules_as_it_attends_to(exchanges, capacity):
    model = world.ReflectionModel(capacity, 0)
    (prompt, _), *_ = exchanges["new_instruction"]
    shown = len(world.rules_in(prompt))
    kept = [len(world.rules_in(model(prompt, 0))) for _ in range(200)]
    assert sum(kept) / len(kept) == pytest.approx(min(capacity, shown), abs=0.5)


def test_an_unusable_reply_is_counted(monkeypatch):
    monkeypatch.setattr(world.ReflectionModel, "_instruction", lambda self, prompt: "I cannot do that.")
    setup = figure.Setup(world.make_task(6, 0), budget=30, batch=4, threads=1, seed=0)
    assert figure.run("dspy.GEPA, batch 3 (default)", setup, math.inf).unusable > 0


def test_a_solved_example_in_the_prompt_is_as_good_as_its_rule():
    task = world.make_task(6, 0)
    demo, asked = task.train[0], next(one for one in task.test if task.train[0].parcel[-5:] == one.parcel[-5:])
    program = figure.dspy.Predict(world.RouteParcel)
    program.demos = [demo]
    with figure.dspy.context(lm=scripted_lm(world.TaskModel(0))):
        assert all(program(parcel=asked.parcel).gate == asked.gate for _ in range(20))
