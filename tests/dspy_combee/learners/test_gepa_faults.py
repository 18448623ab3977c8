"""Odd replies of the reflection model and outages of the task model over dspy.GEPA."""

import json
import re

import dspy
import pytest
from gepa_lessons import teach

from dspy_combee.errors import LMUnavailableError
from dspy_combee.testing import scripted_response

BAD_REPLIES = {
    "blank": "",
    "white": "   ",
    "json blank": '{"new_instruction": "  "}',
    "json null": '{"new_instruction": null}',
    "open think": "<think>let me see, new instruction",
    "cut json": '{"new_instruction": "new instruction with the rul',
}


@pytest.mark.parametrize("reply", BAD_REPLIES.values(), ids=BAD_REPLIES.keys())
@pytest.mark.parametrize("batch_size", [3, 6])
def test_replies_that_are_always_unusable_end_the_run_and_are_never_adopted(make_world, reply, batch_size):
    world = make_world(reflect=lambda *_: reply)
    optimizer = world.combee(batch_size=batch_size, form="rewrite", gepa={"max_metric_calls": 400})
    with pytest.raises(LMUnavailableError, match="3 proposals in a row got nothing usable"):
        world.compile(optimizer)
    assert optimizer.last_result.diff == ""
    assert (
        optimizer.last_result.best_program.signature.instructions
        == dspy.Predict("question->answer").signature.instructions
    )


@pytest.mark.parametrize("batch_size", [3, 6])
def test_a_reply_that_was_cut_off_at_the_token_limit_is_not_adopted(make_world, batch_size):
    world = make_world(reflect=lambda *_: scripted_response("new instruction", finish_reason="length"))
    optimizer = world.combee(batch_size=batch_size, form="rewrite")
    with pytest.raises(LMUnavailableError, match="raise max_tokens"):
        world.compile(optimizer)


def test_an_overlong_instruction_is_not_adopted(make_world):
    world = make_world(reflect=lambda *_: json.dumps({"new_instruction": "new instruction " + "x" * 200_000}))
    optimizer = world.combee(batch_size=3)
    with pytest.raises(LMUnavailableError, match="at most 40,000 characters, got 200,016"):
        world.compile(optimizer)


@pytest.mark.parametrize(
    "reply",
    [
        "```\nnew instruction\n```",
        "```text\nnew instruction\n```",
        "[[ ## new_instruction ## ]]\nnew instruction\n\n[[ ## completed ## ]]",
        '<think>hm</think>{"new_instruction": "new instruction"}',
        '```json\n{"new_instruction": "new instruction"}\n```',
    ],
)
def test_wrapped_replies_are_accepted(make_world, reply):
    world = make_world(reflect=lambda *_: reply)
    program = world.compile(world.combee(batch_size=3))
    assert program.signature.instructions == "new instruction"


def test_the_current_instruction_as_proposal_costs_no_rollout(make_world):
    current = dspy.Predict("question->answer").signature.instructions
    world = make_world(reflect=lambda *_: json.dumps({"new_instruction": current}))
    optimizer = world.combee(batch_size=3, gepa={"max_metric_calls": 16})
    world.compile(optimizer)
    assert world.task_engine.calls == 4 + 3 * len(optimizer.last_result.rounds)


def test_a_reflection_model_that_always_raises_ends_the_run(make_world):
    world = make_world(reflect=lambda *_: dspy.lm15.ServerError("down"))
    optimizer = world.combee(gepa={"max_metric_calls": 400})
    with pytest.raises(LMUnavailableError, match=r"LMServerError: .*down"):
        world.compile(optimizer)
    assert len(optimizer.last_result.rounds) == 3


@pytest.mark.parametrize("error", [dspy.lm15.RateLimitError("429"), dspy.lm15.ServerError("503")])
def test_a_failure_that_passes_is_waited_for_and_the_run_completes(make_world, error):
    def once(prompt, number):
        return error if number == 1 else teach(prompt, number)

    world = make_world(reflect=once)
    optimizer = world.combee()
    world.compile(optimizer)
    assert len(world.waits) == 1
    assert optimizer.last_result.rounds[0].is_accepted


def test_a_rate_limit_that_stays_skips_the_round_and_the_run_completes(make_world):
    def busy_first(prompt, number):
        return dspy.lm15.RateLimitError("429") if number <= 12 else teach(prompt, number)

    world = make_world(reflect=busy_first)
    optimizer = world.combee(gepa={"max_metric_calls": 80})
    world.compile(optimizer)
    rounds = optimizer.last_result.rounds
    assert not rounds[0].is_accepted
    assert any(one.is_accepted for one in rounds)


def test_an_unusable_reply_is_asked_for_again_as_a_new_sample(make_world):
    world = make_world(reflect=lambda prompt, number: "" if number == 1 else '{"new_instruction": "new instruction"}')
    world.reflection_lm.cache = True
    optimizer = world.combee(batch_size=3)
    assert world.compile(optimizer).signature.instructions == "new instruction"
    assert world.reflect_engine.calls == 2


@pytest.mark.parametrize("error", [dspy.lm15.RateLimitError("429"), RuntimeError("429 Too Many Requests")])
@pytest.mark.parametrize("num_threads", [1, 4])
def test_a_task_model_that_is_down_ends_the_run_instead_of_scoring_zero(make_world, error, num_threads):
    world = make_world(task=lambda *_: error)
    optimizer = world.combee(gepa={"num_threads": num_threads})
    with pytest.raises(LMUnavailableError, match=r"the last 3 calls of the program all failed.*429"):
        world.compile(optimizer)
    assert world.task_engine.calls <= 3 + num_threads
    assert optimizer.last_result.stop_reason == "error"


def test_a_task_model_that_goes_down_later_ends_the_run_with_the_best_so_far(make_world, some_examples):
    calls = iter(range(10_000))
    known = re.compile(r"q(\d+) answer \1")

    def task(prompt, _number):
        if next(calls) > 30:
            return dspy.lm15.ServerError("gone")
        question = re.findall(r"q(\d+)", prompt)[-1]
        is_known = question in known.findall(prompt)
        return f"[[ ## answer ## ]]\n{question if is_known else 'zzz'}\n\n[[ ## completed ## ]]"

    world = make_world(task=task, train=some_examples(*range(30)), val=some_examples(*range(8)))
    optimizer = world.combee(batch_size=8, gepa={"max_metric_calls": 400})
    with pytest.raises(LMUnavailableError, match="the last 20 calls"):
        world.compile(optimizer)
    assert optimizer.last_result.best_program is not None
