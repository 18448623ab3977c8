"""A controller is a DSPy program: it runs sync and async, keeps its budgets, and is saved, copied and nested."""

import asyncio
import copy
import dataclasses

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError, LMError

from dspy_combee.testing import ScriptedEngine, scripted_lm
from dspy_evocue.control import (
    ERROR,
    Condition,
    ControlError,
    ControlGraph,
    ControlProgram,
    DraftState,
    Edge,
    GraphError,
    Limits,
    Node,
    Observation,
    Skill,
    SkillError,
    SkillOperation,
    returns_to,
)
from dspy_evocue.rules import Rule

VALID, INVALID = DraftState.PENDING_VALID, DraftState.PENDING_INVALID
NODES = (Node("write", "draft"), Node("run", "commit"), Node("route", "code", ("again", "enough")), Node("end", "stop"))
EDGES = (
    Edge("write", "run", Condition(draft=VALID)),
    Edge("write", "write"),
    Edge("run", "route"),
    Edge("route", "end", Condition("enough")),
    Edge("route", "write"),
)
GRAPH = ControlGraph(NODES, EDGES, "write")
FIX = Skill(
    "fix",
    "*",
    "run",
    (SkillOperation("revise", "Say please."),),
    (*returns_to("run", (VALID,)), *returns_to("write", (INVALID,))),
)
COT = "[[ ## reasoning ## ]]\nbecause\n\n"


def look_up(draft):
    return Observation(f"<{draft}>", succeeded=draft != "bad")


def enough(history):
    return "enough" if "[2]" in history else "again"


def no_shouting(draft):
    return "no shouting" if draft.isupper() else ""


def make(graph=GRAPH, **options):
    parts = {
        "draft": dspy.Predict("task, history -> action"),
        "revise": dspy.ChainOfThought("task, draft -> action"),
        "validate": no_shouting,
        "reflect": dspy.Predict("history -> note"),
        "check_goals": dspy.Predict("task, history -> observed: list[str], missing: list[str]"),
        "commit": look_up,
        "route": enough,
        **options.pop("parts", {}),
    }
    return ControlProgram(graph, parts, **options)


def replies(*texts):
    return [f"[[ ## action ## ]]\n{text}\n\n[[ ## completed ## ]]" for text in texts]


def run(program, *texts, **inputs):
    engine = ScriptedEngine(replies(*texts))
    with dspy.context(lm=scripted_lm(engine)):
        return program(**(inputs or {"task": "t"})), engine


def test_a_run_goes_along_the_edges_and_gives_its_account():
    prediction, engine = run(make(), "one", "two")
    cycle = ["write -> run", "run -> route"]
    assert prediction.path == [*cycle, "route -> write", *cycle, "route -> end"]
    assert prediction.stop_reason == "finished"
    assert (prediction.steps, prediction.actions, prediction.model_calls) == (6, 2, 2)
    assert prediction.history == "[1] action:\none\nobservation:\n<one>\n\n[2] action:\ntwo\nobservation:\n<two>"
    assert "observation:\n<one>" in engine.prompts[1]


def test_an_async_run_does_the_same_and_takes_async_parts():
    async def look_up_later(draft):
        await asyncio.sleep(0)
        return f"<{draft}>"

    program = make(parts={"commit": look_up_later})
    expected, _ = run(make(), "one", "two")
    engine = ScriptedEngine(replies("one", "two"))

    async def go():
        with dspy.context(lm=scripted_lm(engine)):
            return await program.acall(task="t")

    assert asyncio.run(go()).toDict() == expected.toDict()
    with pytest.raises(TypeError, match=r"an async part needs `await program\.acall"):
        run(program, "one")


def test_an_invalid_draft_is_shown_to_the_next_call_with_its_problem():
    prediction, engine = run(make(), "LOUD", "quiet", "two")
    assert "[not executed] action:\nLOUD\nproblem:\nno shouting" in engine.prompts[1]
    assert prediction.actions == 2


@pytest.mark.parametrize(
    ("limits", "reason", "calls"),
    [
        (Limits(max_steps=4), "max_steps", 2),
        (Limits(max_actions=1), "max_actions", 2),
        (Limits(max_model_calls=1), "max_model_calls", 1),
    ],
)
def test_a_spent_limit_stops_the_run_before_the_next_operation_and_keeps_what_was_done(limits, reason, calls):
    prediction, engine = run(make(limits=limits), "one", "two")
    assert (prediction.stop_reason, engine.calls) == (reason, calls)
    assert prediction.history.startswith("[1] action:\none")


def test_the_operations_of_a_skill_take_from_the_same_budget():
    program = make(limits=Limits(max_model_calls=3)).with_skill(FIX)
    script = replies("one", "one please", "two", "two please")
    engine = ScriptedEngine([script[0], COT + script[1], *script[2:]])
    with dspy.context(lm=scripted_lm(engine)):
        prediction = program(task="t")
    assert (prediction.stop_reason, prediction.model_calls, engine.calls) == ("max_model_calls", 3, 3)


def test_a_skill_revises_the_draft_and_is_told_its_own_instruction_alone():
    script = replies("one", "one please", "two", "two")
    engine = ScriptedEngine([script[0], COT + script[1], script[2], COT + script[3]])
    program = make().with_skill(FIX)
    with dspy.context(lm=scripted_lm(engine)):
        prediction = program(task="t")
    assert "one please" in prediction.history
    assert ["Say please." in prompt for prompt in engine.prompts] == [False, True, False, True]
    assert "reasoning" in engine.prompts[1]
    assert "Say please." not in program.revise.predict.signature.instructions


def test_a_rule_keeps_a_skill_out_where_its_feature_says_so():
    program = make(features={"politeness": lambda draft: "rude" if "please" not in draft else "polite"})
    program = program.with_skill(dataclasses.replace(FIX, when=Rule.of(politeness="rude")))
    prediction, engine = run(program, "one please", "two please")
    assert engine.calls == 2
    assert "fix.1:revise" not in str(prediction.path)


def test_removing_a_skill_restores_the_program():
    program = make()
    restored = program.with_skill(FIX).without_skill("fix")
    assert restored.graph == program.graph
    assert restored.dump_state() == program.dump_state()


def test_an_unsound_skill_never_gets_into_a_program():
    with pytest.raises(SkillError, match="can end in success with the draft pending-invalid"):
        make().with_skill(dataclasses.replace(FIX, returns=returns_to("run", (VALID,))))


def test_an_unreadable_reply_takes_the_error_edge_where_there_is_one():
    graph = ControlGraph(NODES, (Edge("write", "route", Condition(ERROR)), *EDGES), "write")
    engine = ScriptedEngine(["nonsense", "nonsense", *replies("one", "two")])
    with dspy.context(lm=scripted_lm(engine)):
        prediction = make(graph, parts={"draft": dspy.Predict("task, history, notes -> action")})(task="t")
    assert prediction.path[0] == "write -> route"
    assert "could not be read" in engine.prompts[2]


def test_an_unreadable_reply_is_the_programs_own_error_where_no_edge_takes_it():
    with pytest.raises(AdapterParseError):
        _run_raw(make(), ["nonsense", "nonsense"])


@pytest.mark.parametrize("fault", [LMError("down"), KeyboardInterrupt("stop")])
def test_an_outage_and_an_interrupt_go_through_and_the_run_is_still_ended(fault):
    ended = []
    program = make(on_end=lambda history: ended.append(history))
    with pytest.raises(type(fault), match=r"down|stop"):
        _run_raw(program, [*replies("one"), fault])
    assert ended == ["[1] action:\none\nobservation:\n<one>"]


def test_a_program_is_saved_and_loaded_with_dspys_own_save(tmp_path):
    program = make().with_skill(FIX).with_instruction("route", "write", "Mind “quotes” {x}")
    program.draft.signature = program.draft.signature.with_instructions("Learned.")
    program.save(tmp_path / "program.json")
    fresh = make()
    fresh.load(tmp_path / "program.json")
    assert fresh.graph == program.graph
    assert fresh.draft.signature.instructions == "Learned."


def test_a_program_inside_another_one_is_saved_with_its_graph(tmp_path):
    class Outer(dspy.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

    Outer(make().with_skill(FIX)).save(tmp_path / "outer.json")
    fresh = Outer(make())
    fresh.load(tmp_path / "outer.json")
    assert fresh.inner.graph == make().with_skill(FIX).graph


def test_a_file_of_another_controller_is_refused_with_what_differs(tmp_path):
    other = ControlGraph((*NODES, Node("pause", "code")), EDGES, "write")
    make(other, parts={"pause": lambda: None}).save(tmp_path / "other.json")
    program = make()
    with pytest.raises(GraphError, match=r"differing: node pause \(code\)"):
        program.load(tmp_path / "other.json")
    assert program.graph == make().graph


def test_a_file_whose_rules_test_features_that_the_program_lacks_is_refused(tmp_path):
    skill = dataclasses.replace(FIX, when=Rule.of(mood="good"))
    make(features={"mood": lambda: "good"}).with_skill(skill).save(tmp_path / "program.json")
    with pytest.raises(GraphError, match=r"conditions may test phase, .* got mood"):
        make().load(tmp_path / "program.json")


def test_copies_are_independent_and_keep_the_graph():
    program = make().with_skill(FIX)
    for copied in (copy.deepcopy(program), program.reset_copy(), program.deepcopy()):
        assert copied.graph == program.graph
        assert copied.draft is not program.draft


def test_a_whole_program_can_be_saved_and_loaded(tmp_path):
    make().with_skill(FIX).save(tmp_path / "whole", save_program=True)
    loaded = dspy.load(str(tmp_path / "whole"), allow_pickle=True)
    assert loaded.graph == make().with_skill(FIX).graph


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"parts": {"draft": lambda: ""}}, TypeError, "part 'draft' must be a dspy.Module, got function"),
        ({"parts": {"commit": dspy.Predict("a -> b")}}, TypeError, "part 'commit' is performed by tool, got a dspy"),
        ({"parts": {"commit": "x"}}, TypeError, "part 'commit' must be a dspy.Module or a callable, got str"),
        ({"parts": {"extra": look_up}}, ValueError, "part 'extra' belongs to no node"),
        ({"parts": {"commit": lambda notes: ""}}, ValueError, r"part 'commit' may read draft and .* got notes"),
        ({"parts": {"route": dspy.Predict("a -> b")}}, TypeError, "part 'route' of a code node must be a callable"),
        ({"inputs": ("history",)}, ValueError, "inputs must not have the names"),
        ({"features": {"draft": len}}, ValueError, "features must not have the names of built-in ones, got draft"),
    ],
)
def test_parts_that_do_not_fit_are_refused_before_anything_runs(options, error, message):
    with pytest.raises(error, match=message):
        make(**options)


def test_a_missing_part_is_named():
    with pytest.raises(ValueError, match="parts must have commit, draft, route; missing: route"):
        ControlProgram(GRAPH, {"draft": dspy.Predict("task -> action"), "commit": look_up})


def test_a_skill_may_use_only_what_the_program_has_parts_for():
    program = ControlProgram(GRAPH, {"draft": dspy.Predict("task -> action"), "commit": look_up, "route": enough})
    assert program.graph.operations == ("draft", "discard", "commit")
    with pytest.raises(SkillError, match=r"Operation 1 \(revise\) is not available in this program"):
        program.with_skill(FIX)


def test_an_instruction_for_a_part_that_cannot_be_told_is_refused():
    with pytest.raises(GraphError, match="got one for write -> run"):
        make().with_instruction("write", "run", "x")


def test_wrong_inputs_are_refused_before_a_call():
    with pytest.raises(ValueError, match="the inputs must be task, got question"):
        run(make(), question="x")


def test_a_part_that_reads_what_nothing_wrote_says_so():
    with pytest.raises(ControlError, match="write reads tsak, which is not there; there is task, history"):
        run(make(parts={"draft": dspy.Predict("tsak -> action")}), "one")


def test_plain_model_and_tool_nodes_write_values_that_later_nodes_read():
    graph = ControlGraph(
        (Node("plan", "model", ("easy", "hard")), Node("fetch", "tool"), Node("end", "stop")),
        (Edge("plan", "fetch", Condition("hard")), Edge("plan", "end"), Edge("fetch", "end")),
        "plan",
    )
    program = ControlProgram(graph, {"plan": dspy.Predict("task -> topic, outcome"), "fetch": lambda topic: topic * 2})
    prediction = _run_raw(program, ["[[ ## topic ## ]]\nab\n\n[[ ## outcome ## ]]\nhard\n\n[[ ## completed ## ]]"])
    assert (prediction.topic, prediction.fetch, prediction.actions) == ("ab", "abab", 1)
    with pytest.raises(ControlError, match="plan must end in easy, hard, error"):
        _run_raw(program, ["[[ ## topic ## ]]\nab\n\n[[ ## outcome ## ]]\nodd\n\n[[ ## completed ## ]]"])


def _run_raw(program, texts):
    with dspy.context(lm=scripted_lm(texts)):
        return program(task="t")
