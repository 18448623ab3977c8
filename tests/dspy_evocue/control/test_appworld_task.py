"""The AppWorld adapter against a recording of the package's public interface (version 0.1.3).

The package's data cannot be had here, so the double below has exactly the methods that `appworld.AppWorld` has under
these names, with their parameters and the form of what they return, read off the published package; it keeps a call
log that the tests compare. Where the package is installed, its real signatures are compared as well.
"""

import importlib.util
import inspect
from types import SimpleNamespace

import dspy
import pytest

from dspy_combee.testing import scripted_lm
from dspy_evocue.control import ControlProgram
from dspy_evocue.control.appworld_task import AppWorldTask, open_appworld
from dspy_evocue.control.errors import WorldError
from dspy_evocue.control.worlds import World


class RecordedAppWorld:
    """What AppWorld 0.1.3 offers under the names that the adapter uses."""

    def __init__(self):
        person = SimpleNamespace(first_name="Ada", last_name="Byron", email="ada@mail.com", phone_number="5551234")
        self.task = SimpleNamespace(instruction="Pay {name} back.", supervisor=person)
        self.log = []
        self.is_done = False

    def execute(self, code):
        self.log.append(("execute", code))
        if "complete_task" in code:
            self.is_done = True
            return "Execution successful."
        return 'Execution failed. Traceback:\n  File "<python-input>", line 1\nNameError\n'

    def evaluate(self, suppress_errors=True):
        self.log.append(("evaluate", suppress_errors))
        return SimpleNamespace(success=self.is_done, pass_count=2, num_tests=2, pass_percentage=100.0)

    def save_state(self, state_id=None):
        self.log.append(("save_state", state_id))
        return state_id or "0"

    def load_state(self, state_id):
        self.log.append(("load_state", state_id))

    def task_completed(self):
        return self.is_done

    def close(self):
        self.log.append(("close",))


def test_the_adapter_is_a_world():
    assert isinstance(AppWorldTask(RecordedAppWorld()), World)


def test_the_instruction_says_who_asks_and_leaves_the_tasks_own_braces_alone():
    instruction = AppWorldTask(RecordedAppWorld()).instruction
    assert "I am Ada Byron (ada@mail.com, 5551234)" in instruction
    assert instruction.endswith("Task: Pay {name} back.")


def test_every_checkpoint_has_an_id_of_its_own():
    recorded = RecordedAppWorld()
    world = AppWorldTask(recorded)
    first, second = world.save_state(), world.save_state()
    world.load_state(first)
    assert first != second
    assert recorded.log == [("save_state", first), ("save_state", second), ("load_state", first)]


def test_a_token_of_another_world_is_refused():
    with pytest.raises(WorldError, match="got int"):
        AppWorldTask(RecordedAppWorld()).load_state(3)


def test_only_the_verdict_leaves_the_evaluation_and_closing_twice_closes_once():
    recorded = RecordedAppWorld()
    world = AppWorldTask(recorded)
    assert world.evaluate() == 0.0
    world.close()
    world.close()
    assert recorded.log.count(("close",)) == 1


def test_a_code_agent_acts_on_it_and_closes_it():
    recorded = RecordedAppWorld()
    agent = ControlProgram.code_agent(lambda task_id: AppWorldTask(recorded))
    written = ["print(balance)", "apis.supervisor.complete_task()"]
    with dspy.context(lm=scripted_lm([f"[[ ## code ## ]]\n{code}\n\n[[ ## completed ## ]]" for code in written])):
        prediction = agent(task_id="a_1")
    assert (prediction.completed, prediction.score, prediction.actions) == (True, 1.0, 2)
    assert [entry for entry in recorded.log if entry[0] == "execute"] == [("execute", code) for code in written]
    assert recorded.log[-1] == ("close",)


@pytest.mark.skipif(importlib.util.find_spec("appworld") is not None, reason="the package is installed")
def test_a_missing_package_is_named_with_what_to_install():
    with pytest.raises(ImportError, match="pip install appworld"):
        open_appworld("run")("a_1")


@pytest.mark.skipif(importlib.util.find_spec("appworld") is None, reason="needs the package appworld")
def test_the_recorded_interface_is_that_of_the_installed_package():
    from appworld import AppWorld

    for name in ("execute", "evaluate", "save_state", "load_state", "task_completed", "close"):
        recorded, real = getattr(RecordedAppWorld, name), getattr(AppWorld, name)
        assert list(inspect.signature(recorded).parameters) == list(inspect.signature(real).parameters), name
