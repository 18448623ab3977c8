"""An instruction acts in the calls that are entered through its edge, in no other, on every kind of program."""

import asyncio
import contextlib
import copy
import pickle

import cloudpickle
import dspy
import pytest
from dspy.lm15 import response_to_events
from edited_programs import LESSON, Chain, answering_lm, lesson, seen

from dspy_combee.testing import ScriptedEngine, scripted_lm
from dspy_evocue import CallSite, InstructionEdit, Rule, attach, list_sites, mark_node
from dspy_evocue.instrument import observed
from dspy_evocue.testing import chat_reply, scripted_agent_lm


def look(place: str) -> str:
    """Look at a place."""
    return f"nothing in {place}"


def three_looks():
    def policy(turn):
        return ("look", {"place": f"room {turn.step}"}) if turn.step < 3 else ("finish", {})

    return scripted_agent_lm(policy)


class Ask(dspy.Signature):
    """Answer the question."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


class StreamingEngine(ScriptedEngine):
    def stream(self, request):
        return response_to_events(self.complete(request))


def test_an_edit_on_the_first_entry_of_a_react_loop_is_read_once():
    lm = three_looks()
    with dspy.context(lm=lm):
        attach(dspy.ReAct("question -> answer", tools=[look]), lesson("START", "react"))(question="q")
    assert seen(lm) == [True, False, False, False, False]


def test_predictors_with_equal_signatures_are_told_apart():
    class Twins(dspy.Module):
        def __init__(self):
            super().__init__()
            self.first = dspy.Predict("question -> answer")
            self.second = dspy.Predict("question -> answer")

        def forward(self, question):
            self.first(question=f"FIRST {question}")
            return self.second(question=f"SECOND {question}")

    lm = answering_lm()
    with dspy.context(lm=lm):
        attach(Twins(), lesson("*", "second"))(question="q")
        recorded = list_sites(Twins(), [dspy.Example(question="q").with_inputs("question")])
    assert seen(lm)[:2] == [False, True]
    assert "SECOND" in lm.engine.prompts[1]
    assert (recorded.count("START", "first"), recorded.count("first", "second")) == (1, 1)


def test_an_edit_on_the_recurring_entry_is_read_at_every_later_step():
    lm = three_looks()
    with dspy.context(lm=lm):
        attach(dspy.ReAct("question -> answer", tools=[look]), lesson("recurring", "react"))(question="q")
    assert seen(lm) == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("START", "plan", [True, False]),
        ("plan", "solve.predict", [False, True]),
        ("START", "solve.predict", [False, False]),
        ("*", "*", [True, True]),
    ],
)
def test_edges_between_predictors_sync_and_async(source, target, expected):
    program = attach(Chain(), lesson(source, target))
    lm, lm_async = answering_lm(), answering_lm()
    with dspy.context(lm=lm):
        program(question="q")
    with dspy.context(lm=lm_async):
        asyncio.run(program.acall(question="q"))
    assert seen(lm) == seen(lm_async) == expected


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter(), dspy.XMLAdapter()])
def test_the_edit_is_read_under_every_adapter(adapter):
    lm = scripted_lm(lambda prompt, number: "unreadable")
    with dspy.context(lm=lm, adapter=adapter), contextlib.suppress(Exception):
        attach(dspy.Predict("question -> answer"), lesson("START", "self"))(question="q")
    assert any(seen(lm))


def test_typed_signatures_and_demos_stay_in_the_prompt_with_the_edit():
    program = dspy.Predict("question -> answer: int")
    program.demos = [dspy.Example(question="two and two", answer=4)]
    lm = scripted_lm([chat_reply(answer="7")])
    with dspy.context(lm=lm):
        prediction = attach(program, lesson("START", "self"))(question="q")
    assert prediction.answer == 7
    assert seen(lm) == [True]
    assert "two and two" in lm.engine.prompts[0]


def test_the_users_own_instructions_stay_byte_identical():
    program = Chain()
    program.plan.signature = program.plan.signature.with_instructions("  Plan {question} 🙂\n\n")
    edited = attach(program, lesson("*", "plan"))
    with dspy.context(lm=answering_lm()):
        edited(question="q")
    assert edited.plan.signature is program.plan.signature
    assert edited.evocue.plain().plan.signature.instructions == program.plan.signature.instructions


def test_the_program_that_is_given_is_left_as_it_is():
    program = Chain()
    before = {name: dict(vars(predictor)) for name, predictor in program.named_predictors()}
    attach(program, lesson("*", "plan"))
    assert type(program) is Chain
    assert [type(predictor) for predictor in program.predictors()] == [dspy.Predict, dspy.Predict]
    assert {name: dict(vars(predictor)) for name, predictor in program.named_predictors()} == before


def test_an_edited_program_still_passes_for_what_it_was():
    edited = attach(Chain(), lesson("*", "plan"))
    assert isinstance(edited, Chain)
    assert type(edited).__name__ == "Chain"
    assert [name for name, _ in edited.named_predictors()] == ["plan", "solve.predict"]


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda program: program.deepcopy(),
        lambda program: program.reset_copy(),
        lambda program: cloudpickle.loads(cloudpickle.dumps(program)),
        copy.copy,
    ],
    ids=["deepcopy", "module deepcopy", "reset_copy", "cloudpickle", "copy"],
)
@pytest.mark.parametrize("make", [Chain, lambda: dspy.Predict("question -> answer")], ids=["module", "predict"])
def test_copies_keep_the_edit(make, copied):
    program = copied(attach(make(), lesson("START", "*")))
    lm = answering_lm()
    with dspy.context(lm=lm):
        program(question="q")
    assert seen(lm)[0]
    assert not any(seen(lm)[1:])


def test_plain_pickle_keeps_the_edit_of_an_importable_class():
    program = pickle.loads(pickle.dumps(attach(dspy.Predict(Ask), lesson("*", "self"))))
    lm = answering_lm()
    with dspy.context(lm=lm):
        program(question="q")
    assert seen(lm) == [True]


def test_a_rule_turns_the_edit_on_and_off():
    edit = lesson("recurring", "react", when=Rule.of(visit="recurring", last_tool="look"))
    lm = scripted_agent_lm(lambda turn: ("look", {"place": "x"}) if turn.step < 5 else ("finish", {}))
    with dspy.context(lm=lm):
        attach(dspy.ReAct("question -> answer", tools=[look]), edit)(question="q")
    assert seen(lm) == [False, True, True, True, False, False, False]


def test_of_two_edits_at_one_site_only_the_latest_is_read():
    first = InstructionEdit(at=CallSite("*", "plan"), text="Older lesson.")
    lm = answering_lm()
    with dspy.context(lm=lm):
        attach(attach(Chain(), first), lesson("START", "plan"))(question="q")
    assert LESSON in lm.engine.prompts[0]
    assert "Older lesson." not in lm.engine.prompts[0]


def test_an_edit_for_the_next_action_lasts_until_the_next_tool_call():
    class Agent(dspy.Module):
        def __init__(self):
            super().__init__()
            self.think = dspy.Predict("question -> plan")
            self.choose = dspy.Predict("plan -> answer")
            self.tool = dspy.Tool(look)

        def forward(self, question):
            for _ in range(2):
                prediction = self.choose(plan=self.think(question=question).plan)
                self.tool(place="x")
            return prediction

    lm = answering_lm()
    with dspy.context(lm=lm):
        attach(Agent(), lesson("START", "think", scope="next_action"))(question="q")
    assert seen(lm) == [True, True, False, False]


def test_an_edit_for_a_skill_lasts_until_the_enclosing_module_ends():
    class Skill(dspy.Module):
        def __init__(self):
            super().__init__()
            self.first = dspy.Predict("question -> draft")
            self.second = dspy.Predict("draft -> summary")

        def forward(self, question):
            return self.second(draft=self.first(question=question).draft)

    class Agent(dspy.Module):
        def __init__(self):
            super().__init__()
            self.skill = Skill()
            self.last = dspy.Predict("summary -> answer")

        def forward(self, question):
            return self.last(summary=self.skill(question=question).summary)

    lm = answering_lm()
    with dspy.context(lm=lm):
        attach(Agent(), lesson("START", "skill.first", scope="skill"))(question="q")
    assert seen(lm) == [True, True, False]


def test_a_shared_predictor_is_one_site_and_takes_the_edit_wherever_it_is_called():
    class Shared(dspy.Module):
        def __init__(self):
            super().__init__()
            self.one = dspy.Predict("question -> answer")
            self.two = self.one

        def forward(self, question):
            self.one(question=question)
            return self.two(question=question)

    lm = answering_lm()
    with dspy.context(lm=lm):
        attach(Shared(), lesson("one", "one"))(question="q")
        sites = list_sites(Shared(), [dspy.Example(question="q").with_inputs("question")])
    assert seen(lm)[:2] == [False, True]
    assert [node.note for node in sites.nodes] == ["shared: also held as two"]


def test_a_predictor_that_is_replaced_later_takes_the_edit_over():
    program = attach(Chain(), lesson("*", "plan"))
    program.plan = dspy.Predict("question -> plan")
    lm = answering_lm()
    with dspy.context(lm=lm):
        program(question="q")
    assert seen(lm) == [True, False]


def test_best_of_n_keeps_the_edit_in_its_copies():
    program = dspy.BestOfN(dspy.ChainOfThought("question -> answer"), N=3, reward_fn=lambda a, p: 0.0, threshold=1.0)
    lm = answering_lm()
    with dspy.context(lm=lm):
        attach(program, lesson("*", "module.predict"))(question="q")
    assert seen(lm) == [True, True, True]


def test_refine_finds_its_hint_for_a_predictor_with_an_edit():
    def reply(prompt, call_number):
        if "advice" in prompt:
            return chat_reply(discussion="d", advice='{"predict": "Try harder, says the hint."}')
        return chat_reply(reasoning="r", answer="a")

    program = dspy.Refine(dspy.ChainOfThought("question -> answer"), N=2, reward_fn=_no_reward, threshold=1.0)
    plain, edited = scripted_lm(reply), scripted_lm(reply)
    with dspy.context(lm=plain):
        program(question="q")
    with dspy.context(lm=edited):
        attach(program, lesson("*", "module.predict"))(question="q")
    for lm in (plain, edited):
        assert sum("Try harder" in prompt for prompt in lm.engine.prompts) == 1
    assert seen(edited) == [True, False, True]


def _no_reward(args, prediction):
    return 0.0


def test_plain_code_becomes_a_node_by_marking_it():
    class Marked(Chain):
        def forward(self, question):
            plan = self.plan(question=question).plan
            mark_node("lookup table")
            return self.solve(question=question, plan=plan)

    lm = answering_lm()
    with dspy.context(lm=lm):
        attach(Marked(), lesson("lookup table", "solve.predict"))(question="q")
        Marked()(question="a mark does nothing in an ordinary program")
    assert seen(lm)[:2] == [False, True]


def test_an_edited_program_inside_another_keeps_its_edits():
    class Outer(dspy.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.last = dspy.Predict("question -> summary")

        def forward(self, question):
            self.last(question=question)
            return self.inner(question=question)

    inner = attach(Chain(), lesson("START", "plan"))
    lm = answering_lm()
    other = InstructionEdit(at=CallSite("last", "inner.plan"), text="Outer lesson.")
    with dspy.context(lm=lm):
        attach(Outer(inner), other)(question="q")
    assert seen(lm) == [False, True, False]
    assert ["Outer lesson." in prompt for prompt in lm.engine.prompts] == [False, True, False]


def test_streaming_reads_the_edit_and_streams_as_before():
    def streamed_items(program, lm):
        async def stream():
            listener = dspy.streaming.StreamListener(signature_field_name="answer")
            streamed = dspy.streamify(program, stream_listeners=[listener])
            return [item async for item in streamed(question="q")]

        with dspy.context(lm=lm):
            return asyncio.run(stream())

    def streaming_lm():
        return scripted_lm(StreamingEngine([chat_reply(answer="a streamed answer")]))

    program, lm = dspy.Predict("question -> answer"), streaming_lm()
    items = streamed_items(attach(program, lesson("START", "self")), lm)
    assert [type(item) for item in items] == [type(item) for item in streamed_items(program, streaming_lm())]
    assert items[-1].answer == "a streamed answer"
    assert seen(lm) == [True]


def test_a_predictor_called_by_itself_is_no_part_of_a_run():
    program = attach(Chain(), lesson("*", "plan"))
    lm = answering_lm()
    with dspy.context(lm=lm):
        program.plan(question="q")
    assert seen(lm) == [False]


def test_tools_shared_by_two_observed_programs_stay_observable_until_the_last_one_leaves():
    tool = dspy.Tool(lambda city: f"sunny in {city}", name="weather", args={"city": {"type": "string"}})
    first = dspy.ReAct("question -> answer", tools=[tool])
    second = dspy.ReAct("question -> answer", tools=[])
    second.tools["weather"] = first.tools["weather"]
    plain = type(first.tools["weather"])
    with observed(first):
        with observed(second):
            prepared = type(first.tools["weather"])
            assert prepared is not plain
        assert type(first.tools["weather"]) is prepared
    assert type(first.tools["weather"]) is plain
