"""A world can be gone back to, keeps its house rule to itself, and serves as EvoCUE's environment."""

import threading

import dspy
import pytest

from dspy_evocue.control.code_world import HOUSE_RULE, CodeWorld, check_code, make_task, open_code_world
from dspy_evocue.control.errors import WorldError
from dspy_evocue.control.worlds import World, WorldEnvironment
from dspy_evocue.environments import Environment

TASK = make_task("direct-1")
NUMBER = TASK.to_pay[0]
VENDOR = next(vendor for number, vendor, _, _ in TASK.invoices if number == NUMBER)
RIGHT = f"apis.payments.pay(number='{NUMBER}', reference='{NUMBER}/{VENDOR}')"
COMPLETE = f"apis.supervisor.complete_task(answer={TASK.answer})"
EXAMPLE = dspy.Example(task_id="direct-1").with_inputs("task_id")


def test_the_code_world_is_a_world_and_the_same_id_is_the_same_task():
    assert isinstance(open_code_world("search-3"), World)
    assert make_task("search-3") == make_task("search-3")
    assert make_task("search-3") != make_task("search-4")


@pytest.mark.parametrize("task_id", ["", "search", "sell-1", "search-x"])
def test_an_unknown_task_id_is_refused(task_id):
    with pytest.raises(ValueError, match="a task id must be"):
        make_task(task_id)


def test_only_the_right_answer_with_the_right_reference_scores():
    for pieces, score in (
        ((RIGHT, COMPLETE), 1.0),
        ((RIGHT,), 0.0),
        ((f"apis.payments.pay(number='{NUMBER}')", COMPLETE), 0.0),
        ((RIGHT, "apis.supervisor.complete_task(answer=0)"), 0.0),
        ((COMPLETE,), 0.0),
    ):
        world = CodeWorld(TASK)
        for piece in pieces:
            world.execute(piece)
        assert world.evaluate() == score, pieces


def test_the_house_rule_is_not_in_the_instruction():
    assert "<vendor>" in HOUSE_RULE
    assert "<vendor>" not in CodeWorld(TASK).instruction


def test_a_world_goes_back_to_a_saved_state_with_its_variables_any_number_of_times():
    world = CodeWorld(TASK)
    world.execute("x = 5")
    saved = world.save_state()
    for _ in range(2):
        world.execute(RIGHT)
        world.execute("x = 6")
        world.load_state(saved)
        assert world.execute("print(x)") == "5"
        assert "'status': 'open'" in world.execute(f"print(apis.invoices.show(number='{NUMBER}'))")


def test_a_foreign_token_is_refused():
    with pytest.raises(WorldError, match="got str"):
        CodeWorld(TASK).load_state("checkpoint")


def test_an_action_that_fails_says_so_and_a_completed_world_runs_nothing_more():
    world = CodeWorld(TASK)
    assert world.execute("print(").startswith("Execution failed. Syntax error")
    world.execute(COMPLETE)
    assert world.execute("print(1)").startswith("Execution failed. The task has been completed")


def test_the_check_of_a_draft_runs_nothing():
    assert check_code("import os") == "Line 1: Import is not allowed here."
    assert check_code(RIGHT) == ""


def test_an_environment_brings_the_world_of_a_run_back():
    environment = WorldEnvironment(open_code_world)
    assert isinstance(environment, Environment)
    environment.reset(EXAMPLE)
    world = environment.open(task_id="direct-1")
    token = environment.snapshot()
    world.execute(COMPLETE)
    world.close()
    assert environment.open(task_id="direct-1").is_complete()
    environment.restore(token)
    assert not environment.open(task_id="direct-1").is_complete()


def test_an_environment_keeps_the_worlds_of_threads_apart():
    environment = WorldEnvironment(open_code_world)
    environment.reset(EXAMPLE)
    environment.open(task_id="direct-1").execute(COMPLETE)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(environment.open(task_id="direct-1").is_complete()))
    thread.start()
    thread.join()
    assert seen == [False]


def test_a_snapshot_before_a_reset_is_refused():
    with pytest.raises(WorldError, match="reset"):
        WorldEnvironment(open_code_world).snapshot()
