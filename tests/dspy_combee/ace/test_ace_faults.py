"""ACE: failures, outages, odd input, budgets, interrupts and resumed runs."""

import dspy
import pytest
from fruit_runs import ace, compiled

from dspy_combee.ace import ACE
from dspy_combee.aggregation.scan import Scan
from dspy_combee.errors import LMUnavailableError, MetricError, ResumeMismatchError
from dspy_combee.playbook import Playbook
from dspy_combee.runtime.budget import Budget


def test_an_empty_validation_set_does_not_crash(world, program):
    optimizer = ace(world)
    compiled(world, program, optimizer, trainset=world.examples("apple"), valset=[])
    assert optimizer.last_result.best_score is None
    assert optimizer.last_result.stop_reason == "completed"


def test_one_failing_group_does_not_fail_the_batch(world, program):
    usual = world.curate
    calls = []

    def curate(prompt):
        calls.append(prompt)
        if "cherry" in prompt.split("[[ ## reflections ## ]]")[-1]:
            return RuntimeError("broken group")
        return usual(prompt)

    world.curate = curate
    optimizer = ace(world, batch_size=8, aggregation=Scan(duplication=1))
    book = Playbook.from_program(compiled(world, program, optimizer, trainset=world.examples()))
    assert 4 <= len(book) < 8
    assert "cherry" not in book.render()


def test_a_record_that_crashes_is_reflected_on_with_its_error(world, program):
    world.answer_task = lambda prompt: "no field at all" if "fig" in prompt else "[[ ## answer ## ]]\nx"
    world.metric = lambda gold, pred, trace=None: {"score": 0.0, "feedback": "The code of apple is K-17."}
    world.reflect = lambda prompt, usual=world.reflect: usual(
        prompt if "feedback: The code" in prompt else prompt + "feedback: The code of fig is K-67."
    )
    compiled(world, program, ace(world, shuffle=False, batch_size=2), trainset=world.examples("apple", "fig"))
    crashed = [prompt for prompt in world.reflection.prompts if "error: AdapterParseError" in prompt]
    assert [("Say what one run" in prompt) for prompt in crashed] == [True]


@pytest.mark.parametrize("votes", [{}, {"votes": "There are none to vote on."}])
def test_votes_that_cannot_be_read_do_not_cost_the_insight(world, program, say, votes):
    parts = {"what_went_wrong": "x", "cause": "x", "correct_approach": "x", "key_insight": "Look closer."}
    world.reflect = lambda prompt: say(**parts, **votes)
    book = Playbook.from_program(compiled(world, program, ace(world), trainset=world.examples("apple")))
    assert [entry.text for entry in book.entries] == ["Look closer."]


def test_a_reply_that_cannot_be_parsed_is_asked_for_again(world, program):
    def first_in_prose(usual, times):
        left = ["I am sorry."] * times
        return lambda prompt: left.pop() if left else usual(prompt)

    # Of a reply in chat format DSPy itself asks a second time, for JSON.
    world.reflect, world.curate = first_in_prose(world.reflect, 2), first_in_prose(world.curate, 1)
    book = Playbook.from_program(compiled(world, program, ace(world), trainset=world.examples("apple")))
    assert [entry.text for entry in book.entries] == ["The code of apple is K-17."]


def test_an_outage_is_an_error_and_no_quiet_seed(world, program):
    world.answer_task = lambda prompt: ConnectionError("provider is down")
    with pytest.raises(LMUnavailableError, match="provider is down"):
        compiled(world, program, ace(world), trainset=world.examples())
    with pytest.raises(LMUnavailableError, match="provider is down"):
        compiled(world, program, ace(world), trainset=world.examples("fig"), valset=world.examples("apple"))


@pytest.mark.parametrize("result", [None, "0.5", (0.5, "f"), float("nan")])
def test_a_metric_that_returns_no_score_is_named_at_once(world, program, result):
    optimizer = ACE(lambda gold, pred: result, reflection_lm=world.reflection_lm, progress=False, num_threads=1)
    with pytest.raises(MetricError, match="metric <lambda> must return"):
        compiled(world, program, optimizer, trainset=world.examples())
    assert (world.task.calls, world.reflection.calls) == (1, 0)


def test_a_metric_that_always_raises_is_an_error(world, program):
    optimizer = ACE(lambda gold, pred: 1 / 0, reflection_lm=world.reflection_lm, progress=False)
    with pytest.raises(MetricError, match="ZeroDivisionError"):
        compiled(world, program, optimizer, trainset=world.examples())
    assert world.task.calls == 3


def test_reflections_that_always_fail_end_with_an_error_and_not_a_quiet_seed(world, program):
    world.reflect = lambda prompt: ValueError("no reflection today")
    optimizer = ace(world)
    better = compiled(world, program, optimizer, trainset=world.examples())
    assert optimizer.last_result.stop_reason == "error"
    assert "no reflection today" in optimizer.last_result.error
    assert better.dump_state() == program.dump_state()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_epochs": 0}, "max_epochs must be an int of at least 1, got 0"),
        ({"max_playbook_tokens": -1}, "max_playbook_tokens must be"),
        ({"scope": "module"}, "scope must be"),
        ({"patience": 0}, "patience must be"),
    ],
)
def test_wrong_arguments_are_named_before_any_call(world, kwargs, message):
    with pytest.raises(ValueError, match=message):
        ace(world, **kwargs)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"aggregation": "scan"}, r"aggregation must be an object; Combee\(ACE\(\.\.\.\), aggregation=.* got str"),
        ({"playbook": "Be brief."}, "playbook must be a Playbook or a mapping .* got str"),
        ({"playbook": {"self": "Be brief."}}, "playbook must be a Playbook or a mapping .* got str"),
        ({"embedder": [[1.0]]}, "embedder must be a function from texts to vectors, got list"),
        ({"count_tokens": 4}, "count_tokens must be a function .* got int"),
        ({"budget": 50}, "budget must be a Budget, got int"),
        ({"retry": 3}, "retry must be a RetryPolicy, got int"),
    ],
)
def test_arguments_of_another_type_are_named_before_any_call(world, kwargs, message):
    with pytest.raises(TypeError, match=message):
        ace(world, **kwargs)


def test_wrong_data_is_named_before_any_call(world, program):
    rows = [dspy.Example(question="code of fig?", answer="x")]
    with pytest.raises(ValueError, match="with_inputs"):
        compiled(world, program, ace(world), trainset=rows)
    with pytest.raises(ValueError, match="trainset must"):
        compiled(world, program, ace(world))
    with pytest.raises(ValueError, match="frozen must name"):
        compiled(world, program, ace(world, frozen=["other"]), trainset=world.examples())
    with pytest.raises(ValueError, match="teacher"):
        compiled(world, program, ace(world), trainset=world.examples(), teacher=program)
    with pytest.raises(TypeError):
        compiled(world, program, ace(world), trainset=world.examples(), max_bootstrapped_demos=3)
    assert world.task.calls == 0


def test_the_budget_caps_the_batch_and_the_best_so_far_is_returned(world, program):
    optimizer = ace(world, batch_size=50, budget=Budget(max_metric_calls=7))
    better = compiled(world, program, optimizer, trainset=world.examples(), valset=world.examples("apple", "fig"))
    result = optimizer.last_result
    assert world.task.calls == 7
    assert [record.batch_size for record in result.rounds] == [3]
    assert result.stop_reason == "budget"
    assert better is result.best_program


def test_a_budget_of_calls_ends_the_run_with_what_was_learned(world, program):
    optimizer = ace(world, budget=Budget(max_lm_calls=7))
    better = compiled(world, program, optimizer, trainset=world.examples())
    assert world.task.calls + world.reflection.calls == 7
    assert optimizer.last_result.stop_reason == "budget"
    assert len(Playbook.from_program(better)) == 2


def test_a_finished_run_resumes_without_any_call(world, program, tmp_path):
    kwargs = {"trainset": world.examples("apple", "fig"), "valset": world.examples("grape")}
    first = compiled(world, program, ace(world, log_dir=tmp_path), **kwargs)
    calls = world.task.calls, world.reflection.calls
    again = ace(world, log_dir=tmp_path)
    second = compiled(world, program, again, **kwargs)
    assert (world.task.calls, world.reflection.calls) == calls
    assert second.dump_state() == first.dump_state()
    assert Playbook.from_program(again.last_result.last_program).entries[0].record_ids == ("r1",)


def test_a_log_dir_of_another_run_is_refused(world, program, tmp_path):
    compiled(world, program, ace(world, log_dir=tmp_path), trainset=world.examples("apple"))
    with pytest.raises(ResumeMismatchError, match="trainset"):
        compiled(world, program, ace(world, log_dir=tmp_path), trainset=world.examples("fig"))


def test_an_interrupt_keeps_what_was_learned_and_the_run_goes_on_from_there(world, program, tmp_path):
    usual = world.answer_task
    world.answer_task = lambda prompt: KeyboardInterrupt() if "code of cherry?" in prompt else usual(prompt)
    optimizer = ace(world, log_dir=tmp_path, shuffle=False)
    with pytest.raises(KeyboardInterrupt):
        compiled(world, program, optimizer, trainset=world.examples())
    assert optimizer.last_result.stop_reason == "interrupted"
    assert len(Playbook.from_program(optimizer.last_result.best_program)) == 2
    world.answer_task = usual
    calls = world.task.calls
    resumed = compiled(world, program, ace(world, log_dir=tmp_path, shuffle=False), trainset=world.examples())
    assert world.task.calls - calls == 6
    whole = compiled(world, program, ace(world, shuffle=False), trainset=world.examples())
    assert Playbook.from_program(resumed) == Playbook.from_program(whole)
