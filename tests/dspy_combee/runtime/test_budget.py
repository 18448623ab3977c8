import asyncio
import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import dspy
import pytest
from dspy.utils.callback import BaseCallback
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.errors import BudgetExhausted
from dspy_combee.runtime.budget import Budget, CallRecord, Meter, Price, Spend
from dspy_combee.runtime.execution.threads import ThreadExecutor
from dspy_combee.testing import count_tokens, scripted_lm

ANSWER = "[[ ## answer ## ]]\nx\n\n[[ ## completed ## ]]"
QUESTIONS = [dspy.Example(question=f"q{number}", answer="x").with_inputs("question") for number in range(40)]


def answering_lm(**kwargs):
    return scripted_lm(lambda *_: ANSWER, **kwargs)


def exact_match(example, prediction, trace=None):
    return example.answer == prediction.answer


def test_calls_and_tokens_are_counted():
    meter, lm = Meter(), scripted_lm(lambda *_: "four")
    with meter.installed():
        lm("question")
        asyncio.run(lm.acall("question"))
    lm("outside")
    tokens = count_tokens(lm.engine.prompts[0])
    assert meter.spend == Spend(lm_calls=2, input_tokens=2 * tokens, output_tokens=2, calls_without_price=2)


def test_cached_calls_cost_nothing():
    meter, lm = Meter(Budget(max_lm_calls=2)), answering_lm(cache=True)
    with meter.installed():
        for _ in range(3):
            lm("a")
    assert (meter.spend.lm_calls, meter.spend.cached_calls, lm.engine.calls) == (1, 2, 1)
    assert meter.spend.calls_without_price == 1


def test_failed_call_counts_as_a_call_but_lacks_no_usage():
    meter, lm = Meter(), scripted_lm([dspy.lm15.ServerError("down")])
    with meter.installed(), pytest.raises(dspy.utils.exceptions.LMServerError):
        lm("a")
    assert meter.spend == Spend(lm_calls=1, failed_calls=1)


@pytest.mark.parametrize(
    ("limits", "is_afforded"),
    [
        ({}, True),
        ({"max_lm_calls": 3}, False),
        ({"max_lm_calls": 4}, True),
        ({"max_tokens": 399}, False),  # two calls of the dear stage may still come: the one in flight and the extra one
        ({"max_tokens": 410}, True),
        ({"max_cost_usd": 0.0399}, False),
        ({"max_cost_usd": 0.0410}, True),
    ],
)
def test_an_extra_call_is_afforded_only_when_calls_in_flight_and_it_fit_into_the_budget(limits, is_afforded):
    spent = Spend(lm_calls=1, input_tokens=10, cost_usd=0.001)
    meter = Meter(Budget(**limits), already_spent=spent)
    meter.reserve()
    meter.settle(CallRecord("m", "aggregation, level 1", input_tokens=100, output_tokens=30, cost_usd=0.013))
    meter.reserve()
    assert meter.affords_extra_call() is is_afforded


def test_call_without_reported_usage_is_counted_apart():
    meter = Meter()
    with meter.installed():
        scripted_lm(["a"], report_usage=False)("q")
    assert meter.spend == Spend(lm_calls=1, calls_without_usage=1, calls_without_price=1)


@pytest.mark.parametrize("outer_tracking", [True, False])
def test_every_call_is_seen_whatever_model_and_pool_it_uses(outer_tracking):
    own_lm, reflection_lm = answering_lm(model="fake/own"), answering_lm(model="fake/reflection")
    program = dspy.Predict("question -> answer")
    program.set_lm(own_lm)
    meter = Meter()
    with dspy.context(lm=answering_lm(), track_usage=outer_tracking), meter.installed():
        dspy.Parallel(num_threads=3, disable_progress_bar=True)([(program, example) for example in QUESTIONS[:5]])
        dspy.Evaluate(devset=QUESTIONS[:5], metric=exact_match, num_threads=3)(dspy.Predict("question -> answer"))
        ThreadExecutor(3).run(reflection_lm, "abcd")
        with dspy.track_usage(), dspy.context(lm=reflection_lm):
            dspy.Predict("question -> answer")(question="a")
    assert (meter.spend.lm_calls, meter.spend.cached_calls) == (15, 0)
    assert meter.spend.calls_without_usage == 0


def test_users_own_usage_tracking_goes_on():
    meter, lm = Meter(), answering_lm()
    with dspy.context(lm=lm, track_usage=True), meter.installed():
        prediction = dspy.Predict("question -> answer")(question="a")
    assert prediction.get_lm_usage()["fake/scripted"]["total_tokens"] == meter.spend.total_tokens
    with dspy.context(lm=lm), dspy.track_usage() as tracker, meter.installed():
        dspy.Predict("question -> answer")(question="a")
    assert len(tracker.usage_data["fake/scripted"]) == 1


def test_users_own_callbacks_go_on():
    ended = []

    class NoteEnd(BaseCallback):
        def on_lm_end(self, call_id, outputs, exception=None):
            ended.append(outputs)

    meter, own = Meter(), NoteEnd()
    with dspy.context(callbacks=[own]), meter.installed():
        scripted_lm(["a"])("q")
        assert dspy.settings.callbacks[0] is own
    assert ended == [["a"]]


def test_history_of_model_and_program_is_as_without_a_meter():
    lm, predict = answering_lm(), dspy.Predict("question -> answer")
    with dspy.context(lm=lm), Meter().installed():
        predict(question="a")
    assert len(lm.history) == len(predict.history) == 1
    assert dspy.settings.usage_tracker is None


def test_model_that_calls_another_is_two_calls_and_is_tracked_once_each():
    inner = scripted_lm(lambda *_: "inner", model="fake/inner")
    outer = scripted_lm(lambda prompt, _: inner(prompt)[0], model="fake/outer")
    meter = Meter()
    with dspy.track_usage() as tracker, meter.installed():
        outer("q")
    assert meter.spend.lm_calls == 2
    assert meter.spend.output_tokens == 2 * count_tokens("inner")
    assert {model: len(entries) for model, entries in tracker.usage_data.items()} == {"fake/inner": 1, "fake/outer": 1}


def test_stages_hold_across_threads_and_add_up():
    meter, lm = Meter(already_spent=Spend(lm_calls=7)), answering_lm()
    predict = dspy.Predict("question -> answer")
    with dspy.context(lm=lm), meter.installed():
        lm("outside")
        with meter.stage("generate"):
            dspy.Parallel(num_threads=2, disable_progress_bar=True)([(predict, example) for example in QUESTIONS[:3]])
            meter.count_metric_calls(3)
            with meter.stage("reflect"):
                ThreadExecutor(2).run(lm, "ab")
    calls = {stage: spend.lm_calls for stage, spend in meter.spend_by_stage.items()}
    assert calls == {"earlier": 7, "": 1, "generate": 3, "reflect": 2}
    assert meter.spend_by_stage["generate"].metric_calls == 3
    assert sum(meter.spend_by_stage.values(), Spend()) == meter.spend


def run_predict():
    predict = dspy.Predict("question -> answer")
    for example in QUESTIONS:
        predict(**example.inputs())


def run_react():
    judge = dspy.Predict("question -> answer")

    def ask(question: str) -> str:
        """Ask somebody else."""
        return judge(question=question).answer

    dspy.ReAct("question -> answer", tools=[ask], max_iters=50)(question="a")


def run_evaluate():
    dspy.Evaluate(devset=QUESTIONS, metric=exact_match, num_threads=8)(dspy.Predict("question -> answer"))


def run_parallel():
    predict = dspy.Predict("question -> answer")
    dspy.Parallel(num_threads=8, disable_progress_bar=True)([(predict, example) for example in QUESTIONS])


def run_async():
    async def gather():
        predict = dspy.Predict("question -> answer")
        await asyncio.gather(*(predict.acall(**example.inputs()) for example in QUESTIONS))

    asyncio.run(gather())


def run_executor():
    ThreadExecutor(8).run(lambda example: dspy.Predict("question -> answer")(**example.inputs()), QUESTIONS)


def reply_for_any(prompt, _):
    if "next_tool_name" not in prompt:
        return ANSWER
    fields = {"next_thought": "t", "next_tool_name": "ask", "next_tool_args": '{"question": "b"}'}
    return "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in fields.items()) + "\n\n[[ ## completed ## ]]"


@pytest.mark.parametrize("run", [run_predict, run_react, run_evaluate, run_parallel, run_async, run_executor])
def test_call_beyond_the_budget_is_refused_through_whatever_is_running(run):
    meter, lm = Meter(Budget(max_lm_calls=6)), scripted_lm(reply_for_any)
    with dspy.context(lm=lm), meter.installed(), pytest.raises(BudgetExhausted, match="max_lm_calls=6, used so far 6"):
        run()
    assert lm.engine.calls == 6
    assert meter.spend.lm_calls <= 6


def test_calls_in_flight_count_towards_the_limit():
    started = threading.Barrier(3)
    lm = scripted_lm(lambda *_: "x", latency=lambda *_: 0.0, sleep=lambda _: started.wait())
    meter = Meter(Budget(max_lm_calls=3))
    with meter.installed(), pytest.raises(BudgetExhausted):
        ThreadExecutor(8).run(lm, "abcdefgh")
    assert lm.engine.calls == meter.spend.lm_calls == 3


@pytest.mark.parametrize(
    ("limits", "calls"), [({"max_tokens": 7}, 4), ({"max_cost_usd": 3.5}, 2), ({"max_metric_calls": 4}, 4)]
)
def test_run_stops_once_tokens_dollars_or_metric_calls_are_spent(limits, calls):
    meter = Meter(Budget(prices={"fake/scripted": Price(1e6, 1e6)}, **limits))
    lm = scripted_lm(lambda *_: "four")

    def score(prompt):
        lm(prompt)
        meter.count_metric_calls()

    with meter.installed(), pytest.raises(BudgetExhausted, match=next(iter(limits))):
        ThreadExecutor(1).run(score, ["abc"] * 20)
    assert count_tokens(lm.engine.prompts[0]) == 1
    assert lm.engine.calls == calls


def test_refused_call_leaves_no_trace_in_the_outer_meter():
    outer, inner, lm = Meter(Budget(max_lm_calls=2)), Meter(Budget(max_lm_calls=1)), answering_lm()
    with outer.installed():
        with inner.installed(), inner.installed():
            lm("a")
            for _ in range(3):
                with pytest.raises(BudgetExhausted, match="max_lm_calls=1"):
                    lm("b")
        lm("c")
    assert (outer.spend.lm_calls, inner.spend.lm_calls) == (2, 1)


def test_check_and_remaining_metric_calls():
    meter = Meter(Budget(max_metric_calls=3))
    meter.count_metric_calls(2)
    meter.check()
    assert (meter.remaining_metric_calls, Meter().remaining_metric_calls) == (1, None)
    meter.count_metric_calls(2)
    assert meter.remaining_metric_calls == 0
    with pytest.raises(BudgetExhausted, match="max_metric_calls=3, used so far 4"):
        meter.check()


def test_unknown_price_is_said_once_and_never_taken_for_zero(caplog):
    meter = Meter(Budget(max_cost_usd=1.0))
    with caplog.at_level(logging.WARNING, "dspy_combee"), meter.installed():
        scripted_lm(["a", "b"])("q")
        scripted_lm(["a", "b"])("q")
    assert (meter.spend.calls_without_price, meter.spend.cost_usd) == (2, 0.0)
    assert len(caplog.messages) == 1
    assert "No price is known for fake/scripted" in caplog.messages[0]


def test_free_model_has_a_price():
    meter = Meter(Budget(max_cost_usd=1.0, prices={"fake/scripted": Price(0, 0)}))
    with meter.installed():
        scripted_lm(["a"])("q")
    assert meter.spend.calls_without_price == 0


class OneModelServer(BaseHTTPRequestHandler):
    """Answers every chat request as an OpenAI model that used 1,000 tokens in and 100 out."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "hello"}
        usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        body = json.dumps(
            {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server_url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), OneModelServer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("disable_history", [False, True])
def test_cost_of_a_real_client_follows_the_price_map(server_url, disable_history):
    meter = Meter()
    known = dspy.LM("openai/gpt-4o-mini", api_base=server_url, api_key="none", cache=False)
    unknown = dspy.LM("openai/my-own-model", api_base=server_url, api_key="none", cache=False)
    with dspy.context(disable_history=disable_history), meter.installed():
        known("q")
        unknown("q")
    known.close()
    unknown.close()
    assert meter.spend == Spend(
        lm_calls=2,
        input_tokens=2000,
        output_tokens=200,
        cost_usd=pytest.approx((1000 * 0.15 + 100 * 0.6) / 1e6),
        calls_without_price=1,
    )


@pytest.mark.parametrize("limit", ["max_metric_calls", "max_lm_calls", "max_tokens", "max_cost_usd"])
@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-1, ValueError), ("5", TypeError), (True, TypeError)])
def test_bad_limit_is_refused(limit, value, error):
    with pytest.raises(error, match=f"{limit} must be"):
        Budget(**{limit: value})
    with pytest.raises(ValueError, match="max_cost_usd must be positive"):
        Budget(max_cost_usd=float("nan"))


spends = st.builds(Spend, *(st.integers(0, 1000) for _ in range(9)))


@given(first=spends, second=spends)
def test_spends_add_subtract_and_survive_a_dict(first, second):
    assert first + second - second == first
    assert (first + second).total_tokens == first.total_tokens + second.total_tokens
    assert Spend.from_dict(first.to_dict()) == first
