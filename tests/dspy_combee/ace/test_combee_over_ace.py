"""Combee over ACE: the same settings, limits and kind of result as over GEPA."""

import json
from dataclasses import replace

import dspy
import pytest

from dspy_combee.ace import ACE
from dspy_combee.aggregation import NAMES, make_aggregation
from dspy_combee.batch_size import BatchSizeController
from dspy_combee.combee import Combee
from dspy_combee.errors import ResumeMismatchError
from dspy_combee.playbook import Playbook, playbook_of
from dspy_combee.report.result import Round
from dspy_combee.runtime.budget import Budget
from dspy_combee.runtime.retry import RetryPolicy
from dspy_combee.testing import shown_reflections


def combee(world, *, base=None, **settings):
    own = {"retry": RetryPolicy(sleep=lambda seconds: None), **(base or {})}
    learner = ACE(world.metric, reflection_lm=world.reflection_lm, num_threads=4, progress=False, **own)
    return Combee(learner, **{"progress": False, "batch_size": 8, **settings})


def compiled(world, program, optimizer, **data):
    with dspy.context(lm=world.task_lm):
        return optimizer.compile(program, **{"trainset": world.examples(), **data})


def test_a_batch_is_learned_in_one_round_and_every_line_says_where_it_came_from(world, program):
    before = program.dump_state()
    optimizer = combee(world)
    taught = compiled(world, program, optimizer, valset=world.examples("fig"))
    result = optimizer.last_result
    (one,) = result.rounds
    assert isinstance(one, Round)
    assert (one.number, one.batch_size, one.is_accepted, one.entries, one.val_score) == (1, 8, True, 8, 1.0)
    assert (result.seed_score, result.best_score, result.stop_reason) == (0.0, 1.0, "perfect")
    assert len(Playbook.from_program(taught)) == 8
    (source,) = result.provenance.sources_of("The code of fig is K-67.")
    assert (source.score, source.feedback) == (0.0, "The code of fig is K-67.")
    assert world.examples()[source.example_index].answer == "K-67"
    assert "The code of fig is K-67." in result.diff
    assert result.best_program is taught
    assert program.dump_state() == before


def test_the_cost_of_each_stage_is_known_level_by_level(world, program):
    optimizer = combee(world)
    compiled(world, program, optimizer, valset=world.examples("fig"))
    result = optimizer.last_result
    calls = {stage: spend.lm_calls for stage, spend in result.spend_by_stage.items()}
    levels = [call.stage for call in result.rounds[0].calls]
    assert calls == {
        "validate": 2,
        "generate": 8,
        "reflect": 8,
        "aggregation, level 1": levels.count("level 1"),
        "aggregation, level 2": 1,
    }
    assert result.spend_by_stage["generate"].metric_calls == 8
    assert all(spend.seconds > 0 for spend in result.spend_by_stage.values())
    assert result.rounds[0].metric_calls == 9


def test_the_estimate_is_an_upper_bound(world, program):
    for settings in ({"batch_size": 3}, {"batch_size": 8}, {"batch_size": "auto"}):
        optimizer = combee(world, base={"max_epochs": 2}, **settings)
        data = {"trainset": world.examples(), "valset": world.examples("fig", "grape")}
        estimate = optimizer.estimate(program, **data)
        with dspy.context(lm=world.task_lm):
            optimizer.compile(program, **data)
        spend = optimizer.last_result.spend
        aggregation = sum(len(one.calls) for one in optimizer.last_result.rounds)
        assert spend.metric_calls <= estimate.metric_calls <= 16 + 4 * 2
        assert spend.lm_calls <= estimate.lm_calls
        assert aggregation <= estimate.aggregation_calls
        assert len(optimizer.last_result.rounds) <= estimate.iterations


def test_a_learner_that_does_not_count_its_calls_has_no_total(world, program):
    class Silent:
        generate = reflect = curate = update = lambda self, *arguments: None

    estimate = Combee(Silent(), batch_size=4).estimate(program, trainset=world.examples())
    assert (estimate.reflection_calls, estimate.lm_calls) == (None, None)


def test_the_controller_profiles_and_its_fit_is_on_the_result(world, program):
    clock = iter(range(10_000))
    optimizer = combee(
        world,
        base={"max_epochs": 4},
        batch_size="auto",
        controller=BatchSizeController(candidates=(2, 3, 4)),
    )
    settings = optimizer._settings
    optimizer._settings = lambda: replace(settings(), clock=lambda: float(next(clock)))
    compiled(world, program, optimizer)
    result = optimizer.last_result
    assert [one.batch_size for one in result.rounds][:3] == [2, 3, 3]
    assert [one.batch_size for one in result.fit.profile] == [2, 3, 4]
    assert result.batch_size == result.fit.batch_size


def test_budgets_of_both_hold(world, program):
    optimizer = combee(world, base={"budget": Budget(max_metric_calls=5)}, budget=Budget(max_lm_calls=100))
    compiled(world, program, optimizer)
    assert world.task.calls == 5
    assert optimizer.last_result.stop_reason == "budget"


def test_a_frozen_predictor_stays_as_it_is(world, say):
    class Two(dspy.Module):
        def __init__(self):
            super().__init__()
            self.first = dspy.Predict("question -> hint")
            self.second = dspy.Predict("question, hint -> answer")

        def forward(self, question):
            return self.second(question=question, hint=self.first(question=question).hint)

    world.answer_task = lambda prompt: say(hint="h", answer="wrong")
    student = Two()
    taught = compiled(world, student, combee(world, frozen=["first"]))
    assert taught.first.signature.instructions == student.first.signature.instructions
    assert len(playbook_of(taught.second)) == 8


@pytest.mark.parametrize("name", NAMES)
def test_every_aggregation_teaches_under_ace(world, program, say, name):
    usual = world.answer_reflection

    def answer(prompt):
        if "Summarise what" not in prompt:
            return usual(prompt)
        return say(summary="\n".join(f"[{rid}]\nReflection: {rule}" for rid, rule in shown_reflections(prompt)))

    world.answer_reflection = answer
    optimizer = combee(world, aggregation=name)
    book = Playbook.from_program(compiled(world, program, optimizer))
    (one,) = optimizer.last_result.rounds
    assert len(book) == (2 if name == "top_k" else 8)
    assert all(entry.record_ids for entry in book.entries)
    assert len(one.calls) == make_aggregation(name).calls_for(8)
    assert not any(call.error for call in one.calls)


class Branch(dspy.Module):
    """Two predictors, one of which is never called."""

    def __init__(self):
        super().__init__()
        self.used = dspy.Predict("question -> answer")
        self.rare = dspy.Predict("question -> answer")

    def forward(self, question):
        return self.used(question=question)


def test_a_predictor_that_is_never_reached_is_reported_also_after_a_resume(world, tmp_path):
    for _ in range(2):
        optimizer = combee(world, base={"max_epochs": 2}, log_dir=tmp_path)
        compiled(world, Branch(), optimizer)
        assert optimizer.last_result.unreached == {"rare": 16}


def test_traces_that_hold_no_calls_say_nothing_of_what_is_never_reached(world):
    optimizer = combee(world)
    rows = [{"inputs": {"question": e.question}, "output": {"answer": "?"}, "score": 0.0} for e in world.examples()]
    with dspy.context(lm=world.task_lm):
        optimizer.learn(Branch(), rows)
    assert optimizer.last_result.rounds
    assert optimizer.last_result.unreached == {}


def test_a_second_compile_gives_no_record_the_id_of_one_of_the_first(world, program):
    first = compiled(world, program, combee(world), trainset=world.examples("apple", "fig"))
    optimizer = combee(world)
    second = compiled(world, first, optimizer, trainset=world.examples("grape", "fig"))
    taught_by = {entry.text: entry.record_ids for entry in Playbook.from_program(second).entries}
    apple, fig, grape = (f"The code of {fruit} is {world.codes[fruit]}." for fruit in ("apple", "fig", "grape"))
    assert {*taught_by[apple], *taught_by[fig]} >= {"r1", "r2"}
    (source,) = optimizer.last_result.provenance.sources_of(grape)
    assert source.record_id in {"r3", "r4"}
    assert set(taught_by[grape]) == {source.record_id}


def test_patience_counts_validations(world, program, say):
    world.answer_task = lambda prompt: say(answer="never right")
    optimizer = combee(world, base={"max_epochs": 9}, patience=2)
    compiled(world, program, optimizer, valset=world.examples("fig"))
    assert optimizer.last_result.stop_reason == "no_improvement"
    assert len(optimizer.last_result.rounds) == 2


def test_a_finished_run_is_resumed_for_nothing_and_another_one_is_refused(world, program, tmp_path):
    taught = compiled(world, program, combee(world, log_dir=tmp_path))
    calls = world.task.calls + world.reflection.calls
    again = combee(world, log_dir=tmp_path)
    resumed = compiled(world, program, again)
    assert world.task.calls + world.reflection.calls == calls
    assert Playbook.from_program(resumed) == Playbook.from_program(taught)
    assert again.last_result.rounds[0].calls[0].record_ids
    assert again.last_result.provenance.sources_of("The code of fig is K-67.")[0].feedback
    with pytest.raises(ResumeMismatchError, match="aggregation"):
        compiled(world, program, combee(world, log_dir=tmp_path, aggregation="single_pass"))


@pytest.mark.parametrize("stage", ["task", "reflection"])
def test_after_an_interrupt_no_call_starts_and_the_best_so_far_is_there(world, program, stage):
    at = {"task": ("answer_task", "cherry"), "reflection": ("answer_reflection", "`lessons`")}[stage]
    usual = getattr(world, at[0])
    interrupted_at = []

    def answer(prompt):
        if interrupted_at or at[1] not in prompt:
            return usual(prompt)
        interrupted_at.append(world.task.calls + world.reflection.calls)
        return KeyboardInterrupt()

    setattr(world, at[0], answer)
    optimizer = combee(world, on_interrupt="return", num_threads=1)
    returned = compiled(world, program, optimizer)
    assert world.task.calls + world.reflection.calls == interrupted_at[0]
    assert optimizer.last_result.stop_reason == "interrupted"
    assert optimizer.last_result.best_program is returned
    interrupted_at.clear()
    with pytest.raises(KeyboardInterrupt):
        compiled(world, program, combee(world, num_threads=1))


def test_what_only_gepa_has_is_refused(world):
    with pytest.raises(ValueError, match="form must be None over a PromptLearner"):
        combee(world, form="lessons")
    with pytest.raises(ValueError, match="max_instruction_chars must be None over a PromptLearner"):
        combee(world, max_instruction_chars=500)


def test_the_result_is_one_page_and_one_file(world, program, tmp_path):
    optimizer = combee(world)
    compiled(world, program, optimizer)
    optimizer.last_result.save(tmp_path / "result.json")
    optimizer.last_result.report(tmp_path / "result.html")
    saved = json.loads((tmp_path / "result.json").read_text())
    assert saved["config"]["base"] == "ACE"
    assert len(saved["provenance"]["lines"]) == 8
    assert "The code of fig" in (tmp_path / "result.html").read_text()
