"""A run that stopped, was killed or was interrupted goes on as if it never had."""

import asyncio
import contextlib
import json
import logging
import signal
import subprocess
import sys
from pathlib import Path

import dspy
import pytest
from interrupted import PressedWhileBusy

from dspy_combee.errors import ResumeMismatchError, RunLogError
from dspy_combee.learners.gepa_state import STATE_FILE, load_candidates
from dspy_combee.testing import lessons_reply

HERE = Path(__file__).parent


def numbers_of(result):
    return [
        (one.number, one.batch_size, one.batch_score_before, one.batch_score_after, one.is_accepted, one.entries)
        for one in result.rounds
    ]


def run(make_world, directory, limit, student=None, **settings):
    world = make_world(**settings.pop("world", {}))
    gepa = {"max_metric_calls": limit, "use_merge": False, **settings.pop("gepa", {})}
    optimizer = world.combee(gepa=gepa, log_dir=directory, **settings)
    program = world.compile(optimizer, student)
    return world, optimizer.last_result, program


@pytest.mark.parametrize(("batch_size", "seed"), [(2, 0), (3, 1), (4, 1), (5, 0)])
def test_two_parts_are_as_one_run(make_world, tmp_path, batch_size, seed):
    settings = {"batch_size": batch_size, "seed": seed}
    gepa = {"seed": seed}
    first, _, _ = run(make_world, tmp_path / "parts", 24, gepa=gepa, **settings)
    second, in_parts, program = run(make_world, tmp_path / "parts", 60, gepa=gepa, **settings)
    whole, at_once, expected = run(make_world, tmp_path / "whole", 60, gepa=gepa, **settings)
    assert numbers_of(in_parts) == numbers_of(at_once)
    assert program.signature.instructions == expected.signature.instructions
    assert [*first.task_engine.prompts, *second.task_engine.prompts] == whole.task_engine.prompts
    assert in_parts.spend.metric_calls == at_once.spend.metric_calls
    assert in_parts.spend.lm_calls == at_once.spend.lm_calls


def test_the_answers_of_provenance_are_the_same_after_a_resume(make_world, tmp_path):
    run(make_world, tmp_path / "parts", 24)
    _, in_parts, _ = run(make_world, tmp_path / "parts", 60)
    _, at_once, _ = run(make_world, tmp_path / "whole", 60)
    assert in_parts.provenance.to_dict() == at_once.provenance.to_dict()
    assert in_parts.provenance.lines


def test_a_finished_run_is_resumed_without_any_call(make_world, tmp_path, caplog):
    _, before, program = run(make_world, tmp_path, 60)
    with caplog.at_level(logging.INFO, logger="dspy_combee"):
        world, after, again = run(make_world, tmp_path, 60)
    assert (world.task_engine.calls, world.reflect_engine.calls) == (0, 0)
    assert numbers_of(after) == numbers_of(before)
    assert after.spend == before.spend
    assert (after.seed_score, after.best_score) == (before.seed_score, before.best_score)
    assert again.signature.instructions == program.signature.instructions
    (said,) = (r.getMessage() for r in caplog.records if r.getMessage().startswith("Resumed"))
    spent = before.spend.metric_calls
    assert said == f"Resumed at round {len(before.rounds) + 1}, {spent} metric calls already spent."


def test_a_run_that_ended_perfect_spends_nothing_when_it_is_resumed(make_world, some_examples, tmp_path):
    settings = {"batch_size": 12, "world": {"val": some_examples(0, 1, 2)}}
    run(make_world, tmp_path, 200, **{**settings, "world": dict(settings["world"])})
    world, again, _ = run(make_world, tmp_path, 400, **settings)
    assert (world.task_engine.calls, world.reflect_engine.calls) == (0, 0)
    assert again.stop_reason == "perfect"


def test_a_resume_without_a_valset_pays_for_nothing_twice(make_world, tmp_path):
    _, before, _ = run(make_world, tmp_path, 60, world={"val": None})
    world, after, _ = run(make_world, tmp_path, 60, world={"val": None})
    assert world.task_engine.calls == 0
    assert after.best_score == before.best_score


class Renamed(dspy.Module):
    def __init__(self):
        super().__init__()
        self.other = dspy.Predict("question->answer")

    def forward(self, question):
        return self.other(question=question)


def test_another_program_is_refused_by_the_name_of_what_changed(make_world, tmp_path):
    run(make_world, tmp_path, 24)
    with pytest.raises(ResumeMismatchError, match=r"predictors \['other', 'self'\]"):
        run(make_world, tmp_path, 24, Renamed())


def test_another_validation_set_is_refused(make_world, tmp_path, some_examples):
    run(make_world, tmp_path, 24)
    with pytest.raises(ResumeMismatchError, match=r"valset|validation"):
        run(make_world, tmp_path, 24, world={"val": some_examples(0, 3)})
    with pytest.raises(ResumeMismatchError, match="valset"):
        run(make_world, tmp_path, 24, world={"val": some_examples(0, 3, 6, 9, 11)})


def test_another_configuration_is_refused(make_world, tmp_path):
    run(make_world, tmp_path, 24)
    with pytest.raises(ResumeMismatchError, match="batch size"):
        run(make_world, tmp_path, 24, batch_size=5)


def test_a_checkpoint_of_a_shorter_plain_run_is_refused(make_world, tmp_path, some_examples):
    world = make_world()
    world.compile(world.gepa(log_dir=str(tmp_path), max_metric_calls=20))
    with pytest.raises(ResumeMismatchError, match="more than 2 validation examples"):
        run(make_world, tmp_path, 24, world={"val": some_examples(0, 3)})


def test_a_torn_checkpoint_falls_back_to_the_one_before(make_world, tmp_path, caplog):
    run(make_world, tmp_path / "torn", 24)
    path = tmp_path / "torn" / STATE_FILE
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    _, result, program = run(make_world, tmp_path / "torn", 60)
    _, expected, whole = run(make_world, tmp_path / "whole", 60)
    assert any("going on from the checkpoint before it" in r.getMessage() for r in caplog.records)
    assert numbers_of(result) == numbers_of(expected)
    assert program.signature.instructions == whole.signature.instructions


def test_two_torn_checkpoints_are_a_clear_error(make_world, tmp_path):
    run(make_world, tmp_path, 24)
    for path in tmp_path.glob("gepa_state*.bin"):
        path.write_bytes(b"half")
    with pytest.raises(RunLogError, match="must be a whole checkpoint"):
        run(make_world, tmp_path, 24)


def test_a_torn_last_line_of_the_round_log_loses_that_round_only(make_world, tmp_path):
    _, before, _ = run(make_world, tmp_path, 60)
    log = tmp_path / "combee_rounds.jsonl"
    log.write_bytes(log.read_bytes()[:-40])
    _, after, _ = run(make_world, tmp_path, 60)
    assert numbers_of(after) == numbers_of(before)[:-1]


def test_candidates_are_loaded_without_a_model(make_world, tmp_path):
    _, _, program = run(make_world, tmp_path, 60)
    candidates = load_candidates(tmp_path, dspy.Predict("question->answer"))
    texts = [candidate.signature.instructions for candidate in candidates]
    assert texts[0] == dspy.Predict("question->answer").signature.instructions
    assert program.signature.instructions in texts
    with pytest.raises(ResumeMismatchError, match="must have the predictors"):
        load_candidates(tmp_path, Renamed())
    with pytest.raises(FileNotFoundError, match="must hold a checkpoint"):
        load_candidates(tmp_path / "nothing", Renamed())


# ---- the controller


def sizes_in(result):
    return [one.batch_size for one in result.rounds]


def test_the_controller_profiles_inside_the_run_and_settles(make_world, some_examples):
    world = make_world(train=some_examples(*range(60)), reflect=lambda *_: lessons_reply([("r1", "be K-1")]))
    optimizer = world.combee(batch_size="auto", gepa={"max_metric_calls": 300, "num_threads": 4})
    world.compile(optimizer)
    result = optimizer.last_result
    assert sizes_in(result)[:4] == [4, 8, 16, 32]
    assert result.fit is not None
    assert result.batch_size == sizes_in(result)[4] or result.fit.batch_size == result.batch_size


def test_a_resumed_controller_remembers_what_it_saw(make_world, some_examples, tmp_path):
    data = {"train": some_examples(*range(60)), "reflect": lambda *_: lessons_reply([("r1", "be K-1")])}
    stop = {"max_metric_calls": 300, "gepa_kwargs": {"stop_callbacks": lambda state: state.i >= 2}}
    _, first, _ = run(make_world, tmp_path, 300, world=data, batch_size="auto", gepa=stop)
    assert sizes_in(first) == [4, 8, 16]
    _, second, _ = run(make_world, tmp_path, 300, world=data, batch_size="auto")
    assert sizes_in(second)[:4] == [4, 8, 16, 32]
    assert [one.seconds for one in second.rounds[:3]] == [one.seconds for one in first.rounds]
    assert second.fit is not None


# ---- kills and interrupts

KILLED_RUN = """
import importlib.util, os, signal, sys, json
import dspy
spec = importlib.util.spec_from_file_location("world", sys.argv[1])
module = importlib.util.module_from_spec(spec); sys.modules["world"] = module; spec.loader.exec_module(module)
kill_at = int(sys.argv[3])
def task(prompt, number):
    if number == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return module.follow_rules(prompt, number)
world = module.World(task=task)
gepa = {"max_metric_calls": 60, "use_merge": False}
optimizer = world.combee(batch_size=int(sys.argv[4]), gepa=gepa, log_dir=sys.argv[2])
world.compile(optimizer)
"""


@pytest.mark.parametrize(("kill_at", "batch_size"), [(2, 5), (12, 5), (23, 5), (16, 3)])
def test_a_killed_run_ends_as_one_that_was_not(make_world, tmp_path, kill_at, batch_size):
    arguments = [sys.executable, "-c", KILLED_RUN, str(HERE / "conftest.py"), str(tmp_path / "killed")]
    died = subprocess.run([*arguments, str(kill_at), str(batch_size)], capture_output=True, check=False)
    assert died.returncode == -signal.SIGKILL
    _, result, program = run(make_world, tmp_path / "killed", 60, batch_size=batch_size)
    _, expected, whole = run(make_world, tmp_path / "whole", 60, batch_size=batch_size)
    assert numbers_of(result) == numbers_of(expected)
    assert program.signature.instructions == whole.signature.instructions
    assert result.provenance.to_dict() == expected.provenance.to_dict()


@pytest.mark.parametrize(("kind", "at"), [("task", 12), ("task", 25), ("reflect", 3)])
@pytest.mark.parametrize("num_threads", [1, 4])
def test_an_interrupt_keeps_the_checkpoint_and_the_best_program(
    make_world, make_scripts, tmp_path, kind, at, num_threads
):
    world = make_world(**make_scripts(kind, at))
    settings = {"gepa": {"num_threads": num_threads}, "log_dir": tmp_path, "num_threads": num_threads}
    optimizer = world.combee(**settings)
    with pytest.raises(KeyboardInterrupt):
        world.compile(optimizer)
    started = world.task_engine.calls + world.reflect_engine.calls
    result = optimizer.last_result
    assert result.stop_reason == "interrupted"
    assert isinstance(result.best_program, dspy.Module)
    assert load_candidates(tmp_path, dspy.Predict("question->answer"))
    again = make_world()
    again.compile(again.combee(**settings))
    assert world.task_engine.calls + world.reflect_engine.calls == started


@pytest.mark.parametrize(("kind", "at"), [("task", 12), ("reflect", 3)])
def test_an_interrupt_can_return_the_best_program(make_world, make_scripts, kind, at):
    world = make_world(**make_scripts(kind, at))
    optimizer = world.combee(on_interrupt="return", gepa={"track_stats": True})
    program = world.compile(optimizer)
    assert program is optimizer.last_result.best_program
    assert optimizer.last_result.stop_reason == "interrupted"
    assert program.detailed_results.candidates


def test_an_interrupt_before_the_seed_is_scored_leaves_the_student(make_world, make_scripts):
    world = make_world(**make_scripts("task", 2))
    optimizer = world.combee()
    with pytest.raises(KeyboardInterrupt):
        world.compile(optimizer)
    assert optimizer.last_result.best_program.signature.equals(dspy.Predict("question->answer").signature)


@pytest.mark.parametrize("first_call", [1, 5, 6])
def test_no_call_starts_after_ctrl_c_while_workers_are_busy(make_world, make_scripts, first_call):
    """Press it while four workers wait for their model: at the seed's validation, or in the first batch."""
    pressed = PressedWhileBusy(make_scripts(None, 0)["task"], first_call)
    world = make_world(task=pressed)
    optimizer = world.combee(batch_size=8, gepa={"num_threads": 4})
    pressed.during(lambda: world.compile(optimizer))
    assert optimizer.last_result.stop_reason == "interrupted"
    assert len(pressed.started) == pressed.at_interrupt


def test_a_cancelled_call_of_a_tool_is_no_interrupt(make_world, make_scripts):
    reply = make_scripts(None, 0)["task"]

    class Impatient(dspy.Module):
        def __init__(self):
            super().__init__()
            self.answer = dspy.Predict("question->answer")

        def forward(self, question):
            with contextlib.suppress(asyncio.CancelledError):
                self.answer(question="cancel q0")
            return self.answer(question=question)

    world = make_world(task=lambda p, n: asyncio.CancelledError() if "cancel q0" in p else reply(p, n))
    optimizer = world.combee()
    world.compile(optimizer, Impatient())
    assert optimizer.last_result.stop_reason == "budget"


def test_the_interrupted_round_does_not_count(make_world, make_scripts, tmp_path):
    world = make_world(**make_scripts("task", 25))
    optimizer = world.combee(log_dir=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        world.compile(optimizer)
    lines = (tmp_path / "combee_rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"]["number"] for line in lines] == [
        one.number for one in optimizer.last_result.rounds
    ]
    assert len(lines) == 1
