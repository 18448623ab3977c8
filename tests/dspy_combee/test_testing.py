import asyncio
import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import dspy
import pytest
from dspy.utils.exceptions import LMRateLimitError

from dspy_combee.testing import ScriptedEngine, count_tokens, scripted_lm, scripted_response

ANSWER = "[[ ## answer ## ]]\n42\n\n[[ ## completed ## ]]"


def test_program_answers_from_the_script_and_the_prompt_is_recorded():
    lm = scripted_lm(lambda prompt, call_number: ANSWER)
    with dspy.context(lm=lm):
        assert dspy.Predict("question -> answer")(question="what?").answer == "42"
    assert lm.engine.calls == 1
    assert "what?" in lm.engine.prompts[0]
    assert "`answer`" in lm.engine.prompts[0]


def test_sequence_gives_one_reply_a_call_and_says_when_it_is_used_up():
    lm = scripted_lm(["one", "two"])
    assert [lm("a"), lm("b")] == [["one"], ["two"]]
    with pytest.raises(Exception, match="a reply for every call, got call 3 of 2"):
        lm("c")


def test_exception_in_the_script_is_raised_and_a_lm15_error_becomes_dspys_own():
    with pytest.raises(KeyboardInterrupt):
        scripted_lm([KeyboardInterrupt()])("a")
    with pytest.raises(LMRateLimitError):
        scripted_lm([dspy.lm15.RateLimitError("slow down")])("a")


def test_async_calls_share_the_script_with_sync_calls():
    lm = scripted_lm(lambda prompt, call_number: f"reply {call_number}")
    assert lm("a") == ["reply 1"]
    assert asyncio.run(lm.acall("b")) == ["reply 2"]
    assert lm.engine.calls == 2


def test_copies_of_model_and_program_share_the_engine():
    lm = scripted_lm(lambda prompt, call_number: ANSWER)
    program = dspy.ChainOfThought("question -> answer")
    program.set_lm(lm)
    duplicate = copy.deepcopy(program)
    assert duplicate.predictors()[0].lm.engine is lm.engine
    lm.copy(rollout_id=3, temperature=1.0)("a")
    assert asyncio.run(copy.deepcopy(lm).acall("b")) == [ANSWER]
    assert lm.engine.calls == 2


def test_dspys_cache_works_as_for_a_real_model():
    lm = scripted_lm(lambda prompt, call_number: f"reply {call_number}", cache=True)
    assert lm("a") == lm("a") == ["reply 1"]
    assert lm.copy(rollout_id=1, temperature=1.0)("a") == ["reply 2"]
    assert lm.engine.calls == 2


def test_usage_follows_from_the_lengths_and_can_be_left_out():
    lm = scripted_lm(["four"])
    with dspy.track_usage() as tracker:
        lm("a question")
    assert tracker.get_total_tokens()["fake/scripted"]["completion_tokens"] == count_tokens("four") == 1
    with dspy.track_usage() as tracker:
        scripted_lm(["four"], report_usage=False)("a question")
    assert tracker.get_total_tokens() == {}


def test_cut_off_reply_says_so():
    lm = scripted_lm(["part"], finish_reason="length")
    lm("a")
    assert lm.history[-1]["response"].finish_reason == "length"
    whole = scripted_lm([scripted_response("part", finish_reason="length")])
    whole("a")
    assert whole.history[-1]["response"].finish_reason == "length"


def test_latency_goes_to_the_injected_sleep_sync_and_async():
    slept = []
    lm = scripted_lm(lambda *_: "x", latency=lambda prompt, call_number: call_number / 2, sleep=slept.append)
    lm("a")
    asyncio.run(lm.acall("b"))
    assert slept == [0.5, 1.0]


def test_threads_get_distinct_call_numbers_and_the_overlap_is_seen():
    together = threading.Barrier(4)
    lm = scripted_lm(
        lambda prompt, call_number: str(call_number), latency=lambda *_: 0.0, sleep=lambda _: together.wait()
    )
    with ThreadPoolExecutor(4) as pool:
        replies = [text for (text,) in pool.map(lm, "abcd")]
    assert sorted(replies) == ["1", "2", "3", "4"]
    assert lm.engine.most_at_once == 4


@pytest.mark.parametrize("reply", ["text", 3, None])
def test_script_of_another_kind_is_refused(reply):
    with pytest.raises(TypeError, match="callable or a sequence of replies"):
        ScriptedEngine(reply)


def test_engine_options_beside_an_engine_are_refused():
    with pytest.raises(ValueError, match=r"ScriptedEngine itself, got \['latency'\]"):
        scripted_lm(ScriptedEngine(["a"]), latency=lambda *_: 0.0)
