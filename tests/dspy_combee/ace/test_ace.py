"""ACE learns from its own runs and from recorded ones, and keeps what is the user's."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import dspy
import pytest
from fruit_runs import ace, compiled

from dspy_combee.ace import ACE
from dspy_combee.aggregation import make_aggregation
from dspy_combee.aggregation.scan import Scan
from dspy_combee.learners.base import PromptLearner, Trajectory
from dspy_combee.playbook import AddEntry, Playbook
from dspy_combee.testing import asks_for_lessons, lessons_reply
from dspy_combee.traces import TraceReader


def test_a_program_learns_the_rules_and_the_student_is_unchanged(world, program):
    before = program.dump_state()
    optimizer = ace(world)
    better = compiled(world, program, optimizer, trainset=world.examples("apple", "fig"), valset=world.examples("fig"))
    assert [e.text for e in Playbook.from_program(better).entries] == [
        "The code of apple is K-17.",
        "The code of fig is K-67.",
    ]
    assert optimizer.last_result.seed_score == 0.0
    assert (optimizer.last_result.best_score, optimizer.last_result.stop_reason) == (1.0, "perfect")
    assert program.dump_state() == before
    with dspy.context(lm=world.task_lm):
        assert better(question="code of fig?").answer == "K-67"


def test_ace_is_a_prompt_learner_and_runs_under_a_scan(world, program):
    optimizer = ace(world, batch_size=8, aggregation=Scan())
    assert isinstance(optimizer, PromptLearner)
    better = compiled(world, program, optimizer, trainset=world.examples())
    book = Playbook.from_program(better)
    assert {entry.text for entry in book.entries} == {f"The code of {f} is {c}." for f, c in world.codes.items()}
    assert sorted(r for entry in book.entries for r in entry.record_ids) == [f"r{i}" for i in range(1, 9)]
    assert (book.version, len(optimizer.last_result.rounds)) == (1, 1)


def test_votes_are_counted_one_a_run_although_reflections_are_dealt_twice(world, program):
    optimizer = ace(world, batch_size=8, aggregation=Scan(duplication=2), max_epochs=2, shuffle=False)
    book = Playbook.from_program(compiled(world, program, optimizer, trainset=world.examples()))
    assert [entry.helpful for entry in book.entries] == [1] * 8


def test_the_token_limit_is_enforced_with_whole_entries(world, program):
    optimizer = ace(world, max_playbook_tokens=90)
    book = Playbook.from_program(compiled(world, program, optimizer, trainset=world.examples()))
    assert 0 < len(book) < 8
    assert all(entry.text.endswith(".") for entry in book.entries)
    assert book.next_number == 9


def test_a_limit_that_leaves_no_entry_is_said_aloud(world, program, caplog):
    book = Playbook.from_program(
        compiled(world, program, ace(world, max_playbook_tokens=5), trainset=world.examples("apple"))
    )
    assert (len(book), book.next_number) == (0, 2)
    (warning,) = [record for record in caplog.records if "max_playbook_tokens=5" in record.message]
    assert (warning.levelname, warning.message[-10:]) == ("WARNING", "0 are left")


def test_an_own_playbook_is_where_it_starts(world, program):
    start = Playbook().apply([AddEntry("The code of apple is K-17.", "Codes")])
    optimizer = ace(world, playbook=start)
    better = compiled(world, program, optimizer, trainset=world.examples("apple"))
    (entry,) = Playbook.from_program(better).entries
    assert (entry.id, entry.helpful) == ("e1", 1)


def test_after_a_rollback_no_number_of_a_discarded_entry_is_given_again(world, program, say):
    curate, answer = world.curate, world.answer_task
    confusing = lessons_reply([("r2", "All codes are alike.")])
    world.curate = lambda prompt: confusing if "The code of cherry" in prompt else curate(prompt)
    world.answer_task = lambda prompt: say(answer="?") if "All codes are alike." in prompt else answer(prompt)
    optimizer = ace(world, rollback=True, validate_every=1, shuffle=False)
    better = compiled(
        world,
        program,
        optimizer,
        trainset=world.examples("apple", "cherry", "fig"),
        valset=world.examples("apple", "fig"),
    )
    assert optimizer.last_result.best_score == 1.0
    assert [(e.id, e.text) for e in Playbook.from_program(better).entries] == [
        ("e1", "The code of apple is K-17."),
        ("e3", "The code of fig is K-67."),
    ]


def test_each_predictor_has_its_own_playbook_and_a_frozen_one_none(world, say):
    class Two(dspy.Module):
        def __init__(self):
            super().__init__()
            self.first = dspy.Predict("question -> hint")
            self.second = dspy.Predict("question, hint -> answer")

        def forward(self, question):
            return self.second(question=question, hint=self.first(question=question).hint)

    world.answer_task = lambda prompt: say(hint="h", answer="wrong")
    insights = '[{"component": "first", "insight": "Hint it."}, {"component": "second", "insight": "Guess it."}]'
    world.reflect = lambda prompt: say(
        what_went_wrong="x", cause="x", correct_approach="x", key_insights=insights, key_insight="Guess it.", votes="[]"
    )
    better = compiled(world, Two(), ace(world), trainset=world.examples("apple"))
    assert Playbook.from_program(better, "first").entries[0].text == "Hint it."
    assert Playbook.from_program(better, "second").entries[0].text == "Guess it."
    frozen = compiled(world, Two(), ace(world, frozen=["first"]), trainset=world.examples("apple"))
    assert len(Playbook.from_program(frozen, "first")) == 0
    assert len(Playbook.from_program(frozen, "second")) == 1
    shared = compiled(world, Two(), ace(world, scope="program"), trainset=world.examples("apple"))
    assert Playbook.from_program(shared).entries[0].text == "Guess it."
    assert Playbook.from_program(shared, "first") == Playbook.from_program(shared, "second")


def test_a_crash_of_a_later_predictor_is_not_blamed_on_those_that_ran(world, say):
    class Two(dspy.Module):
        def __init__(self):
            super().__init__()
            self.first = dspy.Predict("question -> hint")
            self.second = dspy.Predict("hint -> answer")

        def forward(self, question):
            return self.second(hint=self.first(question=question).hint)

    world.answer_task = lambda prompt: "no field" if "`answer`" in prompt else say(hint="h")
    insights = '[{"component": "second", "insight": "Name the field."}]'
    parts = {"what_went_wrong": "x", "cause": "x", "correct_approach": "x", "votes": "[]"}
    world.reflect = lambda prompt: say(key_insight="Name the field.", key_insights=insights, **parts)
    better = compiled(world, Two(), ace(world), trainset=world.examples("apple"))
    assert len(Playbook.from_program(better, "first")) == 0
    assert [entry.text for entry in Playbook.from_program(better, "second").entries] == ["Name the field."]


def test_without_labels_nothing_about_correctness_is_shown(world, program, say):
    world.reflect = lambda prompt: say(
        what_went_wrong="x", cause="x", correct_approach="x", key_insight="Look closer.", votes="[]"
    )
    optimizer = ace(world, use_labels=False)
    compiled(world, program, optimizer, trainset=world.examples("apple"))
    told = "\n".join(world.reflection.prompts)
    assert len(world.reflection.prompts) == 2
    assert not any(word in told for word in ("K-17", "score", "feedback", "expected"))


def test_without_labels_no_metric_is_needed(world, program, say):
    world.reflect = lambda prompt: say(
        what_went_wrong="x", cause="x", correct_approach="x", key_insight="Look closer.", votes="[]"
    )
    optimizer = ACE(None, use_labels=False, reflection_lm=world.reflection_lm, progress=False)
    better = compiled(world, program, optimizer, trainset=world.examples("apple"))
    assert Playbook.from_program(better).entries[0].text == "Look closer."


def test_several_reflection_rounds_show_the_earlier_reflection(world, program):
    compiled(world, program, ace(world, reflection_rounds=3), trainset=world.examples("apple"))
    reflections = [prompt for prompt in world.reflection.prompts if "Say what one run" in prompt]
    assert ["earlier_reflection ## ]]\nReflection" in prompt for prompt in reflections] == [False, True, True]


def test_online_predicts_before_it_learns(world, program):
    examples = world.examples("apple", "apple", "fig", "apple")
    with dspy.context(lm=world.task_lm):
        adapted = ace(world).adapt(program, examples)
    assert [t.score for t in adapted.trajectories] == [0.0, 1.0, 0.0, 1.0]
    assert adapted.score == 0.5
    assert len(Playbook.from_program(adapted.program)) == 2


def test_online_gives_one_trajectory_an_example_also_where_the_model_fails(world, program):
    usual = world.answer_task
    world.answer_task = lambda prompt: RuntimeError("overloaded") if "code of fig?" in prompt else usual(prompt)
    with dspy.context(lm=world.task_lm):
        adapted = ace(world).adapt(program, world.examples("apple", "fig", "apple"))
    assert [trajectory.score for trajectory in adapted.trajectories] == [0.0, None, 1.0]
    assert "overloaded" in adapted.trajectories[1].error
    with pytest.raises(ValueError, match="window must be an int of at least 1, got 0"):
        ace(world).adapt(program, world.examples("apple"), window=0)


def test_evaluate_learns_nothing(world, program):
    with dspy.context(lm=world.task_lm):
        assert ace(world).evaluate(program, world.examples("apple", "fig")).score == 0.0
    assert world.reflection.calls == 0


def test_recorded_traces_need_no_run(world, program):
    traces = (
        Trajectory(f"x{i}", example, dspy.Prediction(answer="?"), 0.0, f"The code of {f} is {world.codes[f]}.")
        for i, (f, example) in enumerate(zip(world.codes, world.examples(), strict=True))
    )
    better = compiled(world, program, ace(world, batch_size=3), traces=traces)
    assert len(Playbook.from_program(better)) == 8
    assert world.task.calls == 0


def test_traces_are_taken_in_every_form_that_combee_takes(world, program, tmp_path):
    rows = [
        {"inputs": {"question": f"code of {f}?"}, "feedback": f"The code of {f} is K-17."} for f in ("fig", "apple")
    ]
    (tmp_path / "runs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for traces in (tmp_path / "runs.jsonl", rows, iter(rows), TraceReader(rows)):
        assert len(Playbook.from_program(compiled(world, program, ace(world), traces=traces))) == 2


def test_numbers_are_judged_by_the_metric_and_never_evaluated(world, program, say):
    world.answer_task = lambda prompt: say(answer="The final answer is: 0.69.")
    seen = []
    optimizer = ACE(
        lambda gold, pred: seen.append(pred.answer) or 0.0, reflection_lm=world.reflection_lm, progress=False
    )
    world.reflect = lambda prompt: say(
        what_went_wrong="x", cause="x", correct_approach="x", key_insight="y", votes="[]"
    )
    compiled(world, program, optimizer, trainset=world.examples("apple"))
    assert seen == ["The final answer is: 0.69."]


def test_odd_text_survives_two_rounds_on_top_of_it(world, program):
    odd = '{question} [[ ## answer ## ]] {{}} ```json {"a":1}``` <side_info> %s ${x} 请用中文 🙂'
    start = Playbook().apply([AddEntry(odd, "Odd")])
    better = compiled(world, program, ace(world, playbook=start), trainset=world.examples("apple", "fig"))
    assert Playbook.from_program(better).get("e1").text == odd
    again = compiled(world, better, ace(world), trainset=world.examples("grape"))
    assert Playbook.from_program(again).get("e1").text == odd
    assert len(Playbook.from_program(again)) == 4


def test_react_keeps_its_tools(world):
    def lookup(fruit: str) -> str:
        """Lookup tool doc."""
        return fruit

    agent = dspy.ReAct("question -> answer", tools=[lookup])
    start = Playbook().apply([AddEntry("a lesson")])
    prepared = ace(world, playbook=start)
    with dspy.context(lm=world.task_lm):
        better = prepared.prepare(agent)
    instructions = better.react.signature.instructions
    assert instructions.startswith(agent.react.signature.instructions)
    assert "Lookup tool doc." in instructions
    assert "a lesson" in instructions


def test_nothing_is_streamed_where_a_streaming_app_compiles(world, program, streamed):
    with streamed.context():
        better = compiled(world, program, ace(world), trainset=world.examples())
    assert len(Playbook.from_program(better)) == len(world.codes)
    assert streamed.chunks == []


def test_track_stats_puts_the_result_on_the_program(world, program):
    better = compiled(world, program, ace(world, track_stats=True), trainset=world.examples("apple"))
    assert better.detailed_results.stop_reason == "completed"
    assert not hasattr(compiled(world, program, ace(world), trainset=world.examples("apple")), "detailed_results")


def test_votes_survive_an_aggregation_that_sums_up(world, program, say):
    usual = world.answer_reflection
    world.answer_reflection = lambda prompt: (
        say(summary="The code of apple is K-17.") if "Summarise what" in prompt else usual(prompt)
    )
    start = Playbook().apply([AddEntry(f"The code of {f} is {c}.", "Codes") for f, c in world.codes.items()])
    for name in ("summarize", "hierarchical"):
        optimizer = ace(world, playbook=start, batch_size=8, aggregation=make_aggregation(name))
        book = Playbook.from_program(compiled(world, program, optimizer, trainset=world.examples()))
        assert [entry.helpful for entry in book.entries] == [1] * 8


def test_traces_of_dspy_itself_are_told_apart_by_predictor(world):
    class Two(dspy.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = dspy.Predict("question -> answer"), dspy.Predict("question -> answer")

        def forward(self, question):
            return self.second(question=self.first(question=question).answer)

    recorded = Two()
    example, prediction = world.examples("fig")[0], dspy.Prediction(answer="?")
    row = (example, prediction, [(recorded.second, {"question": "q"}, prediction)], world.metric(example, prediction))
    better = compiled(world, recorded.deepcopy(), ace(world), traces=TraceReader([row]))
    assert len(Playbook.from_program(better, "first")) == 0
    assert [e.text for e in Playbook.from_program(better, "second").entries] == ["The code of fig is K-67."]


def test_a_program_with_a_model_of_its_own_is_kept_and_resumed_with_it(world, program, tmp_path):
    program.lm = world.task_lm
    first = ace(world, log_dir=tmp_path).compile(program, trainset=world.examples("apple"))
    again = ace(world, log_dir=tmp_path).compile(program, trainset=world.examples("apple"))
    assert again.signature.instructions == first.signature.instructions
    assert again.lm.engine is world.task


def test_compiling_works_inside_a_running_event_loop_and_in_threads(world, program):
    def run(fruit):
        with dspy.context(lm=world.task_lm):
            return ace(world).compile(program, trainset=world.examples(fruit))

    async def main():
        return run("fig")

    with ThreadPoolExecutor(4) as pool:
        found = [Playbook.from_program(better) for better in [*pool.map(run, world.codes), asyncio.run(main())]]
    assert [book.entries[0].text.split()[3] for book in found] == [*world.codes, "fig"]


def test_what_a_weak_reflector_leaves_out_can_still_be_read_by_the_curator(world, program, say):
    world.reflect = lambda prompt: say(
        what_went_wrong="it was wrong", cause="x", correct_approach="x", key_insight="Be right.", votes="[]"
    )
    compiled(world, program, ace(world), trainset=world.examples("apple"))
    curating = [prompt for prompt in world.reflection.prompts if asks_for_lessons(prompt)]
    assert "feedback: The code of apple is K-17." in curating[0]
