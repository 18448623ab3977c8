"""The LM that users get: an ordinary `dspy.LM` whose server takes care of itself."""

import asyncio
import copy
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import dspy
import pytest
from dspy.utils.exceptions import ContextWindowExceededError, LMError

from dspy_combee.runtime.local_lm import LocalServerEndedError, local_lm, resolve_lm

pytestmark = pytest.mark.usefixtures("stand_in_server")


def lm_on(path, **kwargs):
    return local_lm(model_path=path, context_tokens=64, **{"cache": False, **kwargs})


def facts_from(lm, prompt="hello"):
    return json.loads(lm(prompt)[0])


def test_the_request_carries_the_prompt_and_the_settings(model_that):
    body = facts_from(lm_on(model_that(), max_tokens=7, seed=3))["body"]
    assert body["messages"][-1]["content"] == "hello"
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.0, 7, 3)


def test_the_model_is_named_after_its_file_and_costs_nothing(model_that):
    path = model_that()
    lm = lm_on(path)
    lm("hello")
    assert lm.model == f"local/{path.stem}"
    assert lm.history[-1]["cost"] is None


@pytest.mark.parametrize(
    ("adapter", "reply"),
    [
        (dspy.ChatAdapter(), "[[ ## answer ## ]]\n42\n\n[[ ## completed ## ]]"),
        (dspy.JSONAdapter(), '{"answer": 42}'),
    ],
)
def test_adapters_work(model_that, adapter, reply):
    with dspy.context(lm=lm_on(model_that(reply=reply)), adapter=adapter):
        assert dspy.Predict("question -> answer: int")(question="?").answer == 42


def test_json_adapter_asks_for_the_schema(model_that):
    lm = lm_on(model_that())
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()), pytest.raises(dspy.utils.exceptions.AdapterParseError):
        dspy.Predict("question -> answer: int")(question="?")
    body = json.loads(lm.history[0]["outputs"][0])["body"]
    assert body["response_format"]["type"] == "json_schema"


def test_a_program_that_holds_it_can_be_copied_pickled_and_saved(model_that, tmp_path):
    program = dspy.Predict("question -> answer")
    program.set_lm(lm_on(model_that(reply="[[ ## answer ## ]]\nblue")))
    program.save(tmp_path / "program.json")
    loaded = dspy.Predict("question -> answer")
    loaded.load(tmp_path / "program.json", allow_unsafe_lm_state=True)
    for twin in (copy.deepcopy(program), program.deepcopy(), cloudpickle.loads(cloudpickle.dumps(program)), loaded):
        assert twin(question="?").answer == "blue"


def test_a_copy_with_other_settings_uses_the_same_server(model_that):
    lm = lm_on(model_that())
    warm = facts_from(lm.copy(temperature=0.7, rollout_id=1))
    assert warm["body"]["temperature"] == 0.7
    assert warm["pid"] == facts_from(lm)["pid"]


def test_an_unpickled_lm_starts_its_own_server_in_another_process(model_that, tmp_path):
    lm = lm_on(model_that())
    (tmp_path / "lm.pickle").write_bytes(pickle.dumps(lm))
    script = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb'))('hello')[0])"
    said = subprocess.check_output([sys.executable, "-c", script, tmp_path / "lm.pickle"])
    assert json.loads(said)["pid"] != facts_from(lm)["pid"]


def test_no_more_requests_reach_the_server_than_it_works_on_at_once(model_that):
    lm = lm_on(model_that(), parallel=2)
    with ThreadPoolExecutor(8) as pool:
        most = [facts["most_at_once"] for facts in pool.map(lambda number: facts_from(lm, str(number)), range(40))]
    assert max(most) <= 2


def test_async_calls_work_in_several_event_loops(model_that):
    lm = lm_on(model_that(), parallel=2)

    async def several():
        return await asyncio.gather(*(lm.acall(f"hello {number}") for number in range(6)))

    for _ in range(2):
        facts = [json.loads(reply[0]) for reply in asyncio.run(several())]
        assert [fact["body"]["messages"][-1]["content"] for fact in facts] == [f"hello {n}" for n in range(6)]
        assert max(fact["most_at_once"] for fact in facts) <= 2


def test_a_server_that_dies_in_a_call_ends_the_call_with_a_clear_error(model_that):
    lm = lm_on(model_that(chat="dies"))
    with pytest.raises(LocalServerEndedError, match=r"ended \(exit code 9(.|\n)*Call local_lm\(\) again"):
        lm("hello")
    with pytest.raises(LMError):  # the same for whoever knows DSPy's errors only, and at once
        lm("hello again")


def test_async_calls_are_told_that_the_server_died(model_that):
    with pytest.raises(LocalServerEndedError):
        asyncio.run(lm_on(model_that(chat="dies")).acall("hello"))


def test_waiting_threads_are_released_when_the_server_is_killed(model_that, tmp_path):
    called = tmp_path / "called"
    lm = lm_on(model_that(chat="hangs", called=str(called)), parallel=1)
    errors = []

    def call():
        with pytest.raises(LocalServerEndedError) as caught:
            lm("hello")
        errors.append(caught.value)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    while not (called.exists() and called.read_text()):
        threads[0].join(0.01)
    os.kill(int(called.read_text()), signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert len(errors) == 3


def test_a_new_local_lm_revives_the_old_one(model_that):
    path = model_that(chat="dies")
    old = lm_on(path)
    with pytest.raises(LocalServerEndedError):
        old("hello")
    path.write_bytes(b"GGUF{}")
    lm_on(path)
    assert facts_from(old)["body"]["messages"]


def test_a_prompt_that_is_too_long_is_told_apart(model_that):
    with pytest.raises(ContextWindowExceededError, match=r"local_lm\(context_tokens=\.\.\.\)"):
        lm_on(model_that(chat="too_long"))("hello")


@pytest.mark.parametrize("argument", ["num_threads", "parallel", "context_tokens"])
def test_a_count_below_one_is_refused(model_that, argument):
    with pytest.raises(ValueError, match=f"{argument} must be a whole number of at least 1, got 0"):
        local_lm(model_path=model_that(), **{argument: 0})


def test_the_user_decides_which_model_a_name_stands_for(model_that, monkeypatch):
    path = model_that()
    monkeypatch.setenv("DSPY_COMBEE_GGUF", str(path))
    assert resolve_lm().model == f"local/{path.stem}"
    assert resolve_lm("local/small", cache=False).model == f"local/{path.stem}"
    monkeypatch.setenv("DSPY_LM", "openai/some-model")
    assert resolve_lm().model == "openai/some-model"
    assert resolve_lm("anthropic/another").model == "anthropic/another"


def test_an_unknown_embedded_model_is_refused():
    with pytest.raises(ValueError, match=r"named local/default or local/small, got 'local/huge'"):
        resolve_lm("local/huge")
