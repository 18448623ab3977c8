"""CombeeProposer inside a plain dspy.GEPA call, and asked directly."""

import re
import threading

import dspy
import pytest
from dspy.teleprompt.gepa.instruction_proposal import InstructionProposer

from dspy_combee.aggregation.scan import Scan
from dspy_combee.aggregation.single_pass import SinglePass
from dspy_combee.learners.gepa_proposer import CombeeProposer, ProposerHooks
from dspy_combee.lessons import Lesson, split_instruction
from dspy_combee.runtime.execution.threads import ThreadExecutor
from dspy_combee.testing import asks_for_lessons, lessons_reply


def records(*numbers, length=0):
    return [
        {
            "Inputs": {"question": f"q{n}" + "x" * length},
            "Generated Outputs": {"answer": "zzz"},
            "Feedback": f"should be {n}",
        }
        for n in numbers
    ]


def ask(world, proposer, dataset, candidate=None):
    with dspy.context(lm=world.reflection_lm):
        return proposer(
            candidate=candidate or dict.fromkeys(dataset, "do it"),
            reflective_dataset=dataset,
            components_to_update=list(dataset),
        )


def test_it_works_in_a_plain_gepa_call(make_world):
    world = make_world()
    gepa = world.gepa(instruction_proposer=CombeeProposer(), reflection_minibatch_size=6, max_metric_calls=40)
    program = world.compile(gepa)
    _, lessons = split_instruction(program.signature.instructions)
    assert len(lessons) >= 6


def test_its_calls_are_not_streamed_where_a_streaming_app_asks(make_world, streamed):
    with streamed.context():
        answers = ask(make_world(), CombeeProposer(), {"self": records(*range(9))})
    assert len(split_instruction(answers["self"])[1]) == 9
    assert streamed.chunks == []


def test_small_batches_are_the_wrapped_proposers_own_call(make_world):
    world = make_world()
    assert ask(world, CombeeProposer(), {"self": records(1, 2, 3)}) == {"self": "new instruction 1"}
    plain = make_world()
    ask(plain, InstructionProposer(), {"self": records(1, 2, 3)})
    assert world.reflect_engine.prompts == plain.reflect_engine.prompts


def test_a_repeated_question_is_answered_from_memory(make_world):
    world, proposer = make_world(), CombeeProposer()
    dataset = {"self": records(*range(9))}
    first = ask(world, proposer, dataset)
    calls = world.reflect_engine.calls
    assert ask(world, proposer, dataset) == first
    assert world.reflect_engine.calls == calls


def test_the_same_texts_from_new_rollouts_are_a_new_question(make_world):
    world, proposer = make_world(), CombeeProposer()
    first = ask(world, proposer, {"self": records(1, 2)})
    assert ask(world, proposer, {"self": records(1, 2)}) != first
    assert world.reflect_engine.calls == 2


def test_a_component_without_records_is_left_out(make_world):
    world = make_world()
    with dspy.context(lm=world.reflection_lm):
        found = CombeeProposer()(
            candidate={"a": "do it", "b": "do that"},
            reflective_dataset={"a": records(1)},
            components_to_update=["a", "b"],
        )
    assert set(found) == {"a"}


def test_a_model_that_fails_gives_no_text_and_does_not_raise(make_world):
    world = make_world(reflect=lambda *_: dspy.lm15.InvalidRequestError("no"))
    reports = []
    proposer = CombeeProposer(hooks=ProposerHooks(on_report=reports.append))
    assert ask(world, proposer, {"self": records(*range(9))}) == {}
    assert reports[0].has_failed
    assert "LMInvalidRequestError" in reports[0].error


@pytest.mark.parametrize("size", [2, 9])
def test_long_records_are_cut_where_it_can_be_seen(make_world, size):
    world = make_world()
    proposer = CombeeProposer(aggregation=Scan(max_reflection_chars=6000))
    ask(world, proposer, {"self": records(*range(size), length=30_000)})
    assert all(len(prompt) < 6000 + 6000 for prompt in world.reflect_engine.prompts)
    assert any("characters cut" in prompt for prompt in world.reflect_engine.prompts)
    assert all(f"should be {n}" in "".join(world.reflect_engine.prompts) for n in range(size))


def test_a_rewriting_group_sees_its_text_limit_too(make_world):
    world = make_world(
        reflect=lambda p, n: '{"new_instruction": "a"}' if "json" in p.lower() else "[[ ## new_instruction ## ]]\nb"
    )
    proposer = CombeeProposer(form="rewrite", aggregation=Scan(max_reflection_chars=6000))
    ask(world, proposer, {"self": records(*range(9), length=30_000)})
    assert all(len(prompt) < 6000 + 6000 for prompt in world.reflect_engine.prompts)


def test_lessons_that_do_not_fit_are_named(make_world):
    world, reports = make_world(), []
    proposer = CombeeProposer(max_instruction_chars=240, hooks=ProposerHooks(on_report=reports.append))
    (text,) = ask(world, proposer, {"self": records(*range(9))}).values()
    assert len(text) <= 240
    assert len(reports[0].lessons) + len(reports[0].left_out) == 9
    assert reports[0].left_out


def test_later_rounds_build_on_the_lessons_that_stand(make_world):
    world, proposer = make_world(), CombeeProposer()
    first = ask(world, proposer, {"self": records(*range(5))})
    second = ask(world, proposer, {"self": records(*range(5, 10))}, candidate=first)
    own, lessons = split_instruction(second["self"])
    assert own == "do it"
    assert {one.text for one in lessons} == {f"when asked q{n} answer {n}" for n in range(10)}
    assert any(". when asked q1 answer 1" in prompt for prompt in world.reflect_engine.prompts[-4:])


def test_records_of_a_line_are_known_in_every_candidate_that_has_it(make_world):
    world, proposer = make_world(), CombeeProposer()
    first = ask(world, proposer, {"self": records(*range(5))})
    ask(world, proposer, {"self": records(*range(5))})
    found = {one.text: one.record_ids for one in proposer.lessons_of("self", first["self"])}
    assert found["when asked q0 answer 0"] == ("r1", "r6")


def test_ids_that_were_not_shown_are_dropped_and_missing_ones_stay_missing(make_world):
    def invent(prompt, _number):
        if asks_for_lessons(prompt):
            return lessons_reply([("r999, r1", "code K-1"), ("r77", "code K-2"), ("", "code K-3"), ("r1", "  ")])
        return "[[ ## operations ## ]]\nNONE"

    reports = []
    proposer = CombeeProposer(aggregation=SinglePass(), hooks=ProposerHooks(on_report=reports.append), plain_up_to=0)
    ask(make_world(reflect=invent), proposer, {"self": records(1, 2)})
    assert reports[0].lessons == (Lesson("code K-1", ("r1",)), Lesson("code K-2"), Lesson("code K-3"))
    assert reports[0].aggregated.uncited == ("r2",)


def test_it_is_of_dspys_kind_exactly_when_it_wraps_one():
    assert isinstance(CombeeProposer(), InstructionProposer)
    assert isinstance(CombeeProposer(InstructionProposer(max_chars=99)), InstructionProposer)
    assert not isinstance(CombeeProposer(lambda **_: {}), InstructionProposer)


def test_the_callers_context_holds_in_its_threads(make_world):
    seen = []

    def propose(candidate, reflective_dataset, components_to_update):
        seen.append((threading.get_ident(), dspy.settings.combee_mark))
        return {"self": f"text {len(seen)}"}

    proposer = CombeeProposer(propose, form="rewrite", executor=ThreadExecutor(4), aggregation=Scan(duplication=1))
    world = make_world(reflect=lambda *_: "[[ ## new_instruction ## ]]\nboth")
    with dspy.context(combee_mark="here"):
        assert ask(world, proposer, {"self": records(*range(16))}) == {"self": "both"}
    assert [mark for _, mark in seen] == ["here"] * 4


def test_a_failed_merge_of_lessons_loses_none(make_world):
    def no_merge(prompt, number):
        if asks_for_lessons(prompt):
            return lessons_reply((r, f"code K-{r}") for r in re.findall(r"\[(r\d+)\]\n", prompt))
        return dspy.lm15.InvalidRequestError("no")

    (text,) = ask(make_world(reflect=no_merge), CombeeProposer(), {"self": records(*range(16))}).values()
    assert len(split_instruction(text)[1]) == 16


def test_accepted_operations_shorten_and_refused_ones_change_nothing(make_world):
    def operate(prompt, _number):
        if asks_for_lessons(prompt):
            return lessons_reply((r, f"code K-{r}") for r in re.findall(r"\[(r\d+)\]\n", prompt))
        one, two = re.findall(r"\d+\. code (K-r\d+)", prompt)[:2]
        return f"[[ ## operations ## ]]\nMERGE 1, 2: codes {one} and {two}\nDROP 3\nMERGE 4, 5: something short"

    (text,) = ask(make_world(reflect=operate), CombeeProposer(), {"self": records(*range(9))}).values()
    lessons = [one.text for one in split_instruction(text)[1]]
    assert len(lessons) == 8
    assert {token for line in lessons for token in re.findall(r"K-r\d+", line)} == {f"K-r{n}" for n in range(1, 10)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "poem"}, "form must be 'lessons' or 'rewrite'"),
        ({"max_instruction_chars": 10}, "at least 200, got 10"),
    ],
)
def test_wrong_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        CombeeProposer(**arguments)


def test_a_lesson_that_only_repeats_the_case_is_no_rule(make_world):
    def repeat(prompt, _number):
        if asks_for_lessons(prompt):
            return lessons_reply([("r1", "q1"), ("r1", "code K-1")])
        return "[[ ## operations ## ]]\nNONE"

    (text,) = ask(make_world(reflect=repeat), CombeeProposer(), {"self": records(*range(5))}).values()
    assert [lesson.text for lesson in split_instruction(text)[1]] == ["code K-1"]
