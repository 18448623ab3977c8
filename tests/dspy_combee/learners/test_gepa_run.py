"""A run with large batches over dspy.GEPA: what is learned, what is kept, what stays the user's own."""

import json
import re
import threading

import dspy
import pytest
from dspy.teleprompt.gepa.instruction_proposal import InstructionProposer
from gepa.strategies.proposal_sampling import IndependentSampling
from gepa_lessons import lessons_in

from dspy_combee.aggregation import NAMES
from dspy_combee.aggregation.scan import Scan
from dspy_combee.lessons import OPENING
from dspy_combee.testing import asks_for_lessons, lessons_reply


def test_every_failed_record_becomes_a_lesson(make_world):
    world = make_world()
    optimizer = world.combee(batch_size=6)
    program = world.compile(optimizer)
    assert sorted(lessons_in(program)) == sorted(f"when asked q{n} answer {n}" for n in range(12))
    rounds = optimizer.last_result.rounds
    assert [(one.batch_size, one.is_accepted, one.entries) for one in rounds[:2]] == [(6, True, 6), (6, True, 12)]
    assert rounds[0].uncited == ()


@pytest.mark.parametrize("form", ["lessons", "rewrite"])
@pytest.mark.parametrize("name", NAMES)
def test_every_aggregation_teaches_under_gepa_in_both_forms(make_world, name, form):
    def reflect(prompt, _):
        if "`summary`" in prompt:
            return "[[ ## summary ## ]]\n" + prompt.rsplit("[[ ## reflections ## ]]", 1)[1].split("Respond with")[0]
        found = re.findall(r"(?:\[(r\d+)\]\n)?Inputs: question = q(\d+)", prompt)
        if asks_for_lessons(prompt):
            return lessons_reply((rid, f"when asked q{question} answer {question}") for rid, question in found)
        if "`operations`" in prompt:
            return "[[ ## operations ## ]]\nNONE"
        questions = dict.fromkeys(re.findall(r"q(\d+)\b", prompt))
        text = " ".join(f"when asked q{question} answer {question}." for question in questions)
        is_upper = "[[ ## proposals ## ]]" in prompt
        return f"[[ ## new_instruction ## ]]\n{text}" if is_upper else json.dumps({"new_instruction": text})

    world = make_world(reflect=reflect)
    optimizer = world.combee(aggregation=name, form=form, batch_size=9)
    program = world.compile(optimizer)
    first = optimizer.last_result.rounds[0]
    taught = set(re.findall(r"when asked q(\d+) answer \1", program.signature.instructions))
    assert not any(call.error for call in first.calls)
    assert first.is_accepted
    assert len(first.uncited) == (6 if name == "top_k" else 0)
    assert len(taught) >= 9 - len(first.uncited)


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


class Legal(dspy.Module):
    def __init__(self):
        super().__init__()
        self.draft = dspy.Predict("question->draft")

    def forward(self, question):
        return self.draft(question=question)


class WithLegal(dspy.Module):
    def __init__(self):
        super().__init__()
        self.legal = Legal()
        self.legal._compiled = True
        self.free = dspy.Predict("question, draft->answer")

    def forward(self, question):
        return self.free(question=question, draft=self.legal(question=question).draft)


def test_a_sub_module_that_was_compiled_before_keeps_its_instruction(make_world):
    student = WithLegal()
    world = make_world(task=lambda *_: "[[ ## draft ## ]]\nd\n\n[[ ## answer ## ]]\nzzz\n\n[[ ## completed ## ]]")
    luck = iter(range(10_000))
    world.metric = lambda g, p, t=None, n=None, s=None: min(0.9, next(luck) / 1000)
    program = world.compile(world.combee(gepa={"component_selector": "all"}), student)
    assert OPENING in program.free.signature.instructions
    assert program.legal.draft.signature.equals(student.legal.draft.signature)
    assert program.legal._compiled
