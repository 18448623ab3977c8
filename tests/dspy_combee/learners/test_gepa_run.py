"""A run with large batches over dspy.GEPA: what is learned, what is kept, what stays the user's own."""

import asyncio
import json
import logging
import re
import subprocess
import sys
import threading

import dspy
import pytest
from dspy.teleprompt.gepa.instruction_proposal import InstructionProposer
from gepa.strategies.proposal_sampling import IndependentSampling

from dspy_combee.aggregation.scan import Scan
from dspy_combee.lessons import OPENING, split_instruction
from dspy_combee.testing import asks_for_lessons, lessons_reply


def lessons_in(program):
    return [
        one.text for predictor in program.predictors() for one in split_instruction(predictor.signature.instructions)[1]
    ]


def test_every_failed_record_becomes_a_lesson(make_world):
    world = make_world()
    optimizer = world.combee(batch_size=6)
    program = world.compile(optimizer)
    assert sorted(lessons_in(program)) == sorted(f"when asked q{n} answer {n}" for n in range(12))
    rounds = optimizer.last_result.rounds
    assert [(one.batch_size, one.is_accepted, one.entries) for one in rounds[:2]] == [(6, True, 6), (6, True, 12)]
    assert rounds[0].uncited == ()


def test_the_users_own_text_stays_byte_identical(make_world):
    own = 'Answer.\n\n  Keep {braces} and "quotes", [[ ## answer ## ]], <side_info>, %s ${x} 请用中文 🙂'
    student = dspy.Predict(dspy.Signature("question->answer", own))
    own = student.signature.instructions
    world = make_world()
    program = world.compile(world.combee(), student)
    assert program.signature.instructions.startswith(own + "\n\n" + OPENING)


def test_the_student_and_the_wrapped_optimizer_are_not_changed(make_world):
    world, student = make_world(), dspy.Predict("question->answer")
    base = world.gepa(
        auto="light", max_metric_calls=None, gepa_kwargs={"callbacks": [], "stop_callbacks": [lambda s: s.i > 1]}
    )
    before, kwargs, state = dict(vars(base)), dict(base.gepa_kwargs), student.dump_state()
    signature = student.signature
    world.compile(world.combee(base), student)
    assert vars(base) == before
    assert base.gepa_kwargs == kwargs
    assert student.dump_state() == state
    assert student.signature is signature


def test_perfect_records_are_left_out_of_large_batches(make_world):
    def half(prompt, number):
        question = int(re.findall(r"q(\d+)", prompt)[-1])
        return f"[[ ## answer ## ]]\n{question if question % 2 else 'zzz'}\n\n[[ ## completed ## ]]"

    world = make_world(task=half)
    world.compile(world.combee(batch_size=12, gepa={"max_metric_calls": 32}))
    shown = {q for prompt in world.reflect_engine.prompts for q in re.findall(r"Inputs: question = q(\d+)", prompt)}
    assert shown == {"0", "2", "4", "6", "8", "10"}


def crash_on(numbers, error):
    def program(prompt, _number):
        question = int(re.findall(r"q(\d+)", prompt)[-1])
        return error if question in numbers else "[[ ## answer ## ]]\nzzz\n\n[[ ## completed ## ]]"

    return program


@pytest.mark.parametrize("error", [RuntimeError("the tool broke"), dspy.lm15.ServerError("the server broke")])
def test_crashed_examples_reach_the_proposer_with_their_error(make_world, some_examples, error):
    world = make_world(task=crash_on({1, 3, 5, 7}, error), train=some_examples(*range(10)))
    optimizer = world.combee(batch_size=10, aggregation="single_pass", form="lessons", gepa={"max_metric_calls": 30})
    world.compile(optimizer)
    prompt = next(p for p in world.reflect_engine.prompts if "Inputs: question" in p)
    assert set(re.findall(r"Inputs: question = q(\d+)", prompt)) == set(map(str, range(10)))
    assert prompt.count("The program raised an error on these inputs") == 4
    assert str(error) in prompt
    assert optimizer.last_result.rounds[0].records_read == 10


def test_unparsed_replies_reach_the_proposer_with_the_reply(make_world):
    world = make_world(task=lambda prompt, n: f"no markers, q{n}")
    world.compile(world.combee(batch_size=6, gepa={"max_metric_calls": 16, "num_threads": 1}))
    assert any("Couldn't parse the output" in p and "no markers" in p for p in world.reflect_engine.prompts)


def test_predictors_with_equal_signatures_do_not_mix(make_world, twins):
    world = make_world()
    world.compile(world.combee(gepa={"component_selector": "all"}), twins)
    firsts = [p for p in world.reflect_engine.prompts if "FIRST" in p]
    seconds = [p for p in world.reflect_engine.prompts if "SECOND" in p]
    assert firsts
    assert seconds
    assert not any("FIRST" in p and "SECOND" in p for p in world.reflect_engine.prompts if "Inputs: question" in p)


def test_equal_signatures_are_the_students_own_again_in_the_result(make_world, twins):
    world = make_world()
    program = world.compile(world.combee(gepa={"track_stats": True}), twins)
    for candidate in (program, *program.detailed_results.candidates):
        for predictor, own in zip(candidate.predictors(), twins.predictors(), strict=True):
            assert predictor.signature.with_instructions("x").equals(own.signature.with_instructions("x"))


def lookup(query: str) -> str:
    """lookup tool doc"""
    return query


def react_task(prompt, _number):
    if "next_tool_name" in prompt:
        return (
            "[[ ## next_thought ## ]]\nt\n\n[[ ## next_tool_name ## ]]\nfinish\n\n[[ ## next_tool_args ## ]]\n{}\n\n"
            "[[ ## completed ## ]]"
        )
    return "[[ ## reasoning ## ]]\nr\n\n[[ ## answer ## ]]\nzzz\n\n[[ ## completed ## ]]"


@pytest.mark.parametrize("form", ["lessons", "rewrite"])
def test_every_candidate_of_an_agent_keeps_its_tool_list(make_world, form):
    seen = []

    def reflect(prompt, number):
        seen.append(prompt)
        if asks_for_lessons(prompt):
            return lessons_reply((r, f"use K-{r}") for r in re.findall(r"\[(r\d+)\]\n", prompt))
        if "[[ ## new_instruction ## ]]" in prompt:
            return f"[[ ## new_instruction ## ]]\nrewritten {number}\n\n[[ ## completed ## ]]"
        return f'{{"new_instruction": "rewritten {number}"}}'

    agent = dspy.ReAct("question->answer", tools=[lookup], max_iters=2)
    block = agent.react.signature.instructions.split("answer`.", 1)[-1].strip()
    proposed = []

    class Watch:
        def on_proposal_end(self, event):
            proposed.extend(event["new_instructions"].items())

    world = make_world(task=react_task, reflect=reflect)
    base = world.gepa(component_selector="all", max_metric_calls=40, gepa_kwargs={"callbacks": [Watch()]})
    program = world.compile(world.combee(base, form=form), agent)
    texts = [text for name, text in proposed if name == "react"]
    assert texts
    assert all("lookup tool doc" in text for text in texts)
    assert all(block in text for text in texts)
    assert "lookup tool doc" in program.react.signature.instructions


def test_user_callbacks_and_stoppers_are_asked(make_world):
    events = []

    class Watch:
        def on_iteration_end(self, event):
            events.append(event["iteration"])

    world = make_world()
    base = world.gepa(gepa_kwargs={"callbacks": [Watch()], "stop_callbacks": lambda state: state.i >= 0})
    optimizer = world.combee(base, batch_size=4)
    world.compile(optimizer)
    assert events == [1]
    assert optimizer.last_result.stop_reason == "stopped"


def test_a_users_batch_sampler_decides_the_batches(make_world):
    class FirstFive:
        def next_minibatch_ids(self, loader, state):
            return list(loader.all_ids())[:5]

    world = make_world()
    optimizer = world.combee(gepa={"reflection_minibatch_size": None, "gepa_kwargs": {"batch_sampler": FirstFive()}})
    world.compile(optimizer)
    assert {one.batch_size for one in optimizer.last_result.rounds} == {5}


def test_nothing_is_streamed_where_a_streaming_app_compiles(make_world, streamed):
    world = make_world()
    optimizer = world.combee()
    with streamed.context():
        world.compile(optimizer)
    assert optimizer.last_result.rounds[0].entries == 6
    assert streamed.chunks == []


def test_usage_that_the_user_tracks_is_what_the_run_spent(make_world):
    world = make_world()
    optimizer = world.combee()
    with dspy.context(track_usage=True), dspy.track_usage() as tracker:
        world.compile(optimizer)
    assert sum(len(calls) for calls in tracker.usage_data.values()) == optimizer.last_result.spend.lm_calls


def test_options_of_the_instruction_proposer_hold(make_world):
    proposer = InstructionProposer(additional_instructions="Write in haiku.", max_chars=500)
    world = make_world()
    world.compile(world.combee(form="rewrite", gepa={"instruction_proposer": proposer, "max_metric_calls": 20}))
    assert any("Write in haiku." in prompt for prompt in world.reflect_engine.prompts)


def test_a_plain_callable_proposes_once_a_group(make_world):
    asked = []

    def propose(candidate, reflective_dataset, components_to_update):
        asked.append(len(reflective_dataset["self"]))
        return {"self": f"new instruction {len(asked)}"}

    def combine(prompt, _number):
        return "[[ ## new_instruction ## ]]\ncombined new instruction\n\n[[ ## completed ## ]]"

    world = make_world(reflect=combine)
    base = world.gepa(instruction_proposer=propose, max_metric_calls=30)
    program = world.compile(world.combee(base, form="rewrite", batch_size=9, aggregation=Scan(duplication=1)))
    assert asked == [3, 3, 3]
    assert program.signature.instructions == "combined new instruction"


def test_all_groups_of_all_proposals_and_components_run_in_one_wave(make_world, two_steps):
    expected, waiting, all_there = 12, [], threading.Event()

    def meet(prompt, _number):
        if asks_for_lessons(prompt):
            waiting.append(prompt)
            if len(waiting) >= expected:
                all_there.set()
            assert all_there.wait(20)
            return lessons_reply((r, f"code K-{r}") for r in re.findall(r"\[(r\d+)\]\n", prompt))
        return "[[ ## operations ## ]]\nNONE"

    def both_steps(prompt, _number):
        return "[[ ## draft ## ]]\nd\n\n[[ ## answer ## ]]\nzzz\n\n[[ ## completed ## ]]"

    world = make_world(task=both_steps, reflect=meet)
    base = world.gepa(
        component_selector="all",
        max_metric_calls=60,
        gepa_kwargs={"sampling_strategy": IndependentSampling(3), "stop_callbacks": lambda state: state.i >= 0},
    )
    world.compile(world.combee(base, batch_size=4, num_threads=16), two_steps)
    assert all_there.is_set()
    assert world.reflect_engine.most_at_once >= expected


def test_feedback_is_asked_for_in_parallel_and_once(make_world):
    together, asked = threading.Barrier(4), []

    def judge(gold, pred, trace=None, pred_name=None, pred_trace=None):
        if pred_name is not None:
            asked.append(gold.question)
            together.wait(20)
        return dspy.Prediction(score=float(pred.answer == gold.answer), feedback=f"should be {gold.answer}")

    world = make_world(metric=judge)
    base = world.gepa(num_threads=4, gepa_kwargs={"stop_callbacks": lambda state: state.i >= 0})
    world.compile(world.combee(base, batch_size=8))
    assert len(asked) == 8
    assert len(set(asked)) == 8


def test_history_and_images_in_records_are_json_safe(make_world):
    history = dspy.History(messages=[{"question": "before?", "answer": "b"}])
    train = [
        dspy.Example(
            question=f"q{n}", picture=dspy.Image(url="data:image/png;base64,AAAA"), history=history, answer=str(n)
        ).with_inputs("question", "picture", "history")
        for n in range(6)
    ]
    signature = dspy.Signature("question: str, picture: dspy.Image, history: dspy.History -> answer: str")
    world = make_world(task=lambda *_: "[[ ## answer ## ]]\nzzz", train=train, val=train[:3])
    optimizer = world.combee(gepa={"max_metric_calls": 20})
    world.compile(optimizer, dspy.Predict(signature))
    prompt = next(p for p in world.reflect_engine.prompts if asks_for_lessons(p))
    assert "[image]" in prompt
    assert "question = before?; answer = b" in prompt
    json.dumps(optimizer.last_result.to_dict())


def test_odd_text_survives_two_compiles_unchanged(make_world):
    odd = '{question} [[ ## answer ## ]] {{}} ```json {"a":1}``` <side_info> %s ${x} 请用中文 🙂'

    def teach(prompt, number):
        if asks_for_lessons(prompt):
            ids = re.findall(r"\[(r\d+)\]\n", prompt)
            return lessons_reply((rid, f"{odd} K-{rid}") for rid in ids)
        return "[[ ## operations ## ]]\nNONE"

    luck = iter(range(10_000))
    world = make_world(reflect=teach, metric=lambda g, p, t=None, n=None, s=None: min(0.9, next(luck) / 1000))
    student = dspy.Predict("question->answer")
    for _ in range(2):
        optimizer = world.combee(batch_size=4, gepa={"max_metric_calls": 24})
        student = world.compile(optimizer, student)
        optimizer.last_result.to_dict()
    texts = lessons_in(student)
    assert texts
    assert all(text.startswith(odd + " K-r") for text in texts)


def test_frozen_predictors_keep_their_instruction(make_world, twins):
    world = make_world()
    program = world.compile(world.combee(frozen=["first"]), twins)
    assert program.first.signature.instructions == twins.first.signature.instructions
    assert OPENING in program.second.signature.instructions


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
