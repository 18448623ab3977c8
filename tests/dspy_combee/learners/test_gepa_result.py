"""A run over dspy.GEPA: what it reports, saves and spends, and several of them at once."""

import asyncio
import json
import logging
import re
import subprocess
import sys
import threading

import dspy
from gepa_lessons import lessons_in

from dspy_combee.testing import asks_for_lessons, lessons_reply


class Branch(dspy.Module):
    """Two predictors with the same text, one of which is never called."""

    def __init__(self):
        super().__init__()
        self.used = dspy.Predict("question->answer")
        self.rare = dspy.Predict("question->answer")

    def forward(self, question):
        return self.used(question=question)


def test_a_predictor_that_is_never_reached_is_reported_and_costs_no_round(make_world):
    world = make_world()
    optimizer = world.combee(batch_size=4)
    world.compile(optimizer, Branch())
    result = optimizer.last_result
    assert set(result.unreached) == {"rare"}
    assert result.unreached["rare"] >= 4
    assert all(one.components == ("used",) for one in result.rounds if one.calls)
    assert all(one.calls for one in result.rounds if one.batch_score_before < 1)


def test_one_info_line_a_round(make_world, caplog):
    world = make_world()
    optimizer = world.combee()
    with caplog.at_level(logging.INFO, logger="dspy_combee"):
        world.compile(optimizer)
    lines = [r.getMessage() for r in caplog.records if r.name.startswith("dspy_combee") and r.levelno == logging.INFO]
    assert len([line for line in lines if line.startswith("Round ")]) == len(optimizer.last_result.rounds)
    assert len(lines) == len(optimizer.last_result.rounds)


def test_a_copied_stretch_of_the_train_set_is_reported(make_world, caplog):
    leak = "Dear Acme Corporation of Springfield, your invoice from last Tuesday was refunded in full"
    train = [dspy.Example(question=f"q{n}", letter=leak, answer=str(n)).with_inputs("question") for n in range(6)]

    def copy(prompt, _number):
        if asks_for_lessons(prompt):
            record_id = re.findall(r"\[(r\d+)\]\n", prompt)[-1]
            return lessons_reply([(record_id, f"for q0 answer 0 and say {leak}")])
        return "[[ ## operations ## ]]\nNONE"

    luck = iter(range(10_000))
    world = make_world(
        train=train, reflect=copy, metric=lambda g, p, t=None, n=None, s=None: min(0.9, next(luck) / 1000)
    )
    optimizer = world.combee(gepa={"max_metric_calls": 20})
    world.compile(optimizer)
    assert optimizer.last_result.longest_shared_span == leak
    assert any("characters with the train set" in r.getMessage() for r in caplog.records)


def test_the_result_is_saved_and_read_back_as_it_was(make_world, tmp_path):
    world = make_world()
    optimizer = world.combee(batch_size="auto")
    world.compile(optimizer)
    optimizer.last_result.save(tmp_path / "result.json")
    text = (tmp_path / "result.json").read_text()
    assert "NaN" not in text
    assert json.loads(text) == json.loads(json.dumps(optimizer.last_result.to_dict()))
    assert json.loads(text)["rounds"][0]["number"] == 1


def test_a_saved_program_loads_where_only_dspy_is_known(make_world, tmp_path):
    world = make_world()
    program = world.compile(world.combee(gepa={"track_stats": True}))
    program.save(tmp_path / "program.json")
    code = (
        "import sys, dspy; p = dspy.Predict('question->answer'); p.load(sys.argv[1]); "
        "assert not any(m.startswith('dspy_combee') for m in sys.modules); print(p.signature.instructions)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "program.json")], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == program.signature.instructions.strip()


def test_four_runs_at_once_are_as_four_runs_alone(make_world):
    dspy.configure(lm=make_world(task=lambda *_: "unused").lm)
    before = dict(dspy.settings.copy())
    alone = make_world()
    expected = alone.compile(alone.combee()).signature.instructions
    worlds = [make_world() for _ in range(4)]
    programs = [None] * 4

    def run(index):
        programs[index] = worlds[index].compile(worlds[index].combee())

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [program.signature.instructions for program in programs] == [expected] * 4
    for world in worlds:
        assert sorted(world.task_engine.prompts) == sorted(alone.task_engine.prompts)
    assert dict(dspy.settings.copy()) == before


def test_a_run_inside_an_event_loop(make_world):
    world = make_world()

    async def main():
        return world.compile(world.combee())

    assert len(lessons_in(asyncio.run(main()))) == 12


def test_the_reflection_model_alone_sees_the_records(make_world):
    world = make_world()
    world.compile(world.combee(num_threads=4))
    assert all("[[ ## answer ## ]]" in prompt for prompt in world.task_engine.prompts)
    assert not any("records" in prompt and asks_for_lessons(prompt) for prompt in world.task_engine.prompts)
    assert world.reflect_engine.calls > 0


def test_detailed_results_are_what_the_wrapped_optimizer_gives(make_world):
    world = make_world()
    program = world.compile(world.combee(gepa={"track_stats": True}))
    results = program.detailed_results
    assert len(results.candidates) == len(results.val_aggregate_scores) == len(results.parents)


def test_what_each_stage_spent_is_known(make_world):
    world = make_world()
    optimizer = world.combee()
    world.compile(optimizer)
    by_stage = optimizer.last_result.spend_by_stage
    levels = {name: spend for name, spend in by_stage.items() if name.startswith("aggregation")}
    calls = [call.stage for one in optimizer.last_result.rounds for call in one.calls]
    assert {name: spend.lm_calls for name, spend in levels.items()} == {
        f"aggregation, {stage}": calls.count(stage) for stage in set(calls)
    }
    assert sum(spend.lm_calls for spend in levels.values()) == world.reflect_engine.calls
    assert by_stage["generate"].lm_calls + by_stage["validate"].lm_calls == world.task_engine.calls
    assert by_stage["validate"].metric_calls >= 2 * len(world.val)
