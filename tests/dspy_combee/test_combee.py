import subprocess
import sys

import dspy
import pytest

from dspy_combee.combee import Combee
from dspy_combee.runtime.budget import Budget


def gepa(**settings):
    return dspy.GEPA(
        metric=lambda g, p, t=None, n=None, s=None: 1.0,
        max_metric_calls=10,
        instruction_proposer=lambda **_: {},
        **settings,
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1 or 'auto', got 0"),
        ({"batch_size": "big"}, TypeError, "batch_size must be an int or 'auto', got 'big'"),
        ({"batch_size": True}, TypeError, "batch_size must be an int or 'auto', got True"),
        ({"aggregation": "sum"}, ValueError, "aggregation must be one of"),
        ({"form": "poem"}, ValueError, "form must be 'lessons', 'rewrite' or None, got 'poem'"),
        ({"duplication": 0}, ValueError, "duplication must be at least 1, got 0"),
        ({"group_size": 0}, ValueError, "group_size must be at least 1 or None, got 0"),
        ({"max_fan_in": 1}, ValueError, "max_fan_in must be at least 2 or None, got 1"),
        ({"max_instruction_chars": 1}, ValueError, "max_instruction_chars must be at least 200, got 1"),
        ({"max_reflection_chars": 10}, ValueError, "max_reflection_chars must be at least 200, got 10"),
        ({"max_reflection_chars": 0}, ValueError, "max_reflection_chars must be at least 200, got 0"),
        ({"num_threads": 0}, ValueError, "at least 1, got 0"),
        ({"execution": "carrier pigeons"}, ValueError, "execution must be one of"),
        ({"budget": 5}, TypeError, "budget must be a Budget or None, got int"),
        ({"patience": 0}, ValueError, "patience must be at least 1 or None, got 0"),
        ({"on_interrupt": "cry"}, ValueError, "on_interrupt must be 'raise' or 'return', got 'cry'"),
        ({"no_such_thing": 1}, TypeError, "no_such_thing"),
    ],
)
def test_wrong_arguments_are_refused_by_the_constructor(arguments, error, message):
    with pytest.raises(error, match=message):
        Combee(gepa(), **arguments)


def test_a_base_of_another_kind_is_refused():
    with pytest.raises(TypeError, match=r"base must be a dspy\.GEPA.*, got str"):
        Combee("GEPA")


def test_arguments_are_kept_under_their_names():
    optimizer = Combee(gepa(), batch_size=5, seed=3, patience=2, frozen=["a"], budget=Budget(max_lm_calls=4))
    assert (optimizer.batch_size, optimizer.seed, optimizer.patience, optimizer.frozen) == (5, 3, 2, ("a",))
    assert optimizer.budget.max_lm_calls == 4
    assert optimizer.last_result is None


@pytest.mark.parametrize(("aggregation", "form"), [("scan", "lessons"), ("single_pass", "rewrite")])
def test_the_form_follows_the_aggregation(aggregation, form):
    assert Combee(gepa(), aggregation=aggregation).form == form


ROWS = [dspy.Example(question="q", answer="a").with_inputs("question")] * 3


@pytest.mark.parametrize(
    ("student", "settings", "call", "error", "message"),
    [
        (dspy.Predict("question->answer"), {}, {"teacher": dspy.Predict("a->b")}, ValueError, "teacher must be None"),
        (dspy.Predict("question->answer"), {"frozen": ["x"]}, {}, ValueError, r"got \['x'\]; it has \['self'\]"),
        (dspy.Predict("question->answer"), {"frozen": ["self"]}, {}, ValueError, "must leave a predictor to teach"),
        (dspy.Predict("question->answer"), {}, {"magic": 1}, TypeError, "magic"),
        ("program", {}, {}, TypeError, "must be a dspy.Module, got str"),
        (dspy.Module(), {}, {}, TypeError, "must have a forward method"),
    ],
)
def test_what_cannot_be_compiled_is_refused(student, settings, call, error, message):
    with pytest.raises(error, match=message):
        Combee(gepa(), **settings).compile(student, trainset=ROWS, **call)


def test_it_fires_dspys_compile_callbacks():
    events = []

    class Watch(dspy.utils.callback.BaseCallback):
        def on_compile_start(self, call_id, instance, inputs):
            events.append(type(instance).__name__)

        def on_compile_end(self, call_id, outputs, exception):
            events.append(type(exception).__name__)

    with dspy.context(callbacks=[Watch()]), pytest.raises(ValueError, match="at least one example"):
        Combee(gepa()).compile(dspy.Predict("question->answer"), trainset=[])
    assert events == ["Combee", "ValueError"]


def test_importing_the_package_imports_none_of_the_heavy_ones():
    code = "import sys, dspy_combee; print({'dspy', 'gepa', 'numpy', 'wandb', 'mlflow', 'datasets'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
