import logging
import os
import signal
import subprocess
import sys
import textwrap

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.aggregation.scan import Scan
from dspy_combee.aggregation.single_pass import SinglePass
from dspy_combee.batch_size import BatchSizeController
from dspy_combee.errors import LMUnavailableError
from dspy_combee.learners.base import PromptLearner, TextUpdate
from dspy_combee.rounds import ExampleSource, FixedBatchSize, RoundSchedule, RoundsResult, run_rounds, spent_before
from dspy_combee.runtime.budget import Budget, Meter


def run(learner, program, words, options, *, batch=3, epochs=1, aggregation=None, **kwargs) -> RoundsResult:
    source = ExampleSource(words, epochs=epochs, shuffle=False)
    kwargs.setdefault("batch_sizes", FixedBatchSize(batch))
    return run_rounds(learner, program, source, aggregation=aggregation or SinglePass(), **options, **kwargs)


def test_a_learner_of_the_users_own_runs_under_the_scan(learner, program, words, options):
    assert isinstance(learner, PromptLearner)
    result = run(learner, program, words, options, batch=10, aggregation=Scan(duplication=1), valset=words)
    assert (result.stop_reason, result.seed_score, result.best_score) == ("perfect", 0.0, 1.0)
    assert len(learner.curated) == 3 + 1
    assert "<w9>" not in program.signature.instructions


def test_every_record_is_learned_from_once_and_in_one_commit_a_round(learner, program, words, options):
    result = run(learner, program, words, options, batch=4)
    assert [record.record_ids for record in result.rounds] == [
        ("r1", "r2", "r3", "r4"),
        ("r5", "r6", "r7", "r8"),
        ("r9", "r10"),
    ]
    assert sorted(learner.generated) == sorted(f"r{i}" for i in range(1, 11))
    assert [len(record.updates) for record in result.rounds] == [1, 1, 1]
    assert result.stop_reason == "completed"


@pytest.mark.parametrize(("batch", "expected"), [(3, [0, 2, 4]), (4, [0, 2, 3]), (7, [0, 1, 2]), (10, [0, 1])])
def test_validation_keeps_its_interval_when_the_batch_size_does_not_divide_it(
    learner, program, words, options, batch, expected
):
    unknown = [dspy.Example(word="never").with_inputs("word")]
    result = run(
        learner, program, words, options, batch=batch, valset=unknown, schedule=RoundSchedule(validate_every=5)
    )
    assert [validation.after_rounds for validation in result.validations] == expected


def test_the_end_is_validated_and_the_best_program_returned(learner, program, words, options):
    forgetful = learner.update
    learner.update = lambda p, update: forgetful(program, update)  # forgets all but the last round
    result = run(
        learner,
        program,
        words[:4],
        options,
        batch=2,
        valset=[words[0], words[1], words[2]],
        schedule=RoundSchedule(validate_every=2),
    )
    assert [round(validation.score, 2) for validation in result.validations] == [0.0, 0.67, 0.33]
    assert "<w1>" in result.program.signature.instructions
    assert "<w3>" in result.last_program.signature.instructions


def test_rollback_goes_on_from_the_best_program(learner, program, words, options):
    usual = learner.update
    learner.update = lambda current, found: program if "<w2>" in found.entries[0].text else usual(current, found)
    for rollback, last in ((True, 4), (False, 2)):
        schedule = RoundSchedule(validate_every=2, rollback=rollback)
        result = run(learner, program, words[:6], options, batch=2, valset=words[:6], schedule=schedule)
        assert [round(v.score * 6) for v in result.validations] == [0, 2, 0, last]


def test_a_rollback_tells_the_learner_what_is_discarded(learner, program, words, options):
    usual, told = learner.update, []
    learner.update = lambda current, found: program if "<w2>" in found.entries[0].text else usual(current, found)
    learner.going_back = lambda kept, discarded: told.append((kept, discarded)) or kept
    schedule = RoundSchedule(validate_every=2, rollback=True)
    run(learner, program, words[:6], options, batch=2, valset=words[:6], schedule=schedule)
    [(kept, discarded)] = told
    assert "<w1>" in kept.signature.instructions
    assert discarded is program


def test_patience_ends_a_run_that_does_not_improve(learner, program, words, options):
    unknown = [dspy.Example(word="never").with_inputs("word")]
    schedule = RoundSchedule(validate_every=1, patience=2)
    result = run(learner, program, words, options, batch=1, valset=unknown, schedule=schedule)
    assert result.stop_reason == "no_improvement"
    assert len(result.rounds) == 2
    assert result.program is program


def test_a_perfect_program_is_not_taught(learner, program, words, options):
    program.signature = program.signature.with_instructions("<w0>")
    result = run(learner, program, words, options, valset=words[:1])
    assert result.stop_reason == "perfect"
    assert learner.generated == ["v1"]


def test_one_failing_record_is_recorded_and_the_run_goes_on(learner, program, words, options):
    def fail(record_id):
        if record_id == "r2":
            raise ValueError("broken row")

    learner.before_generate = fail
    result = run(learner, program, words[:4], options, batch=4)
    assert result.rounds[0].errors == (("r2", "ValueError: broken row"),)
    assert result.rounds[0].scores == (0.0, None, 0.0, 0.0)
    assert "<w3>" in result.program.signature.instructions


def test_missing_scores_are_not_zero_in_a_validation(learner, program, words, options):
    program.signature = program.signature.with_instructions("<w0>")
    learner.before_generate = lambda record_id: 1 / 0 if record_id == "v2" else None
    result = run(learner, program, words[5:6], options, valset=[words[0], words[1], words[2], words[3]])
    assert result.validations[0].scores == (1.0, None, 0.0, 0.0)
    assert result.seed_score == pytest.approx(1 / 3)


def test_nothing_that_works_is_an_error_and_the_result_is_told_first(learner, program, words, options):
    def down(record_id):
        raise RuntimeError("429 too many requests")

    learner.before_generate = down
    told = []
    with pytest.raises(LMUnavailableError, match="429"):
        run(learner, program, words[:2], options, batch=1, on_result=told.append)
    with pytest.raises(LMUnavailableError, match="429"):
        run(learner, program, words, options, batch=1, on_result=told.append)
    assert [result.stop_reason for result in told] == ["error", "error"]
    assert len(told[1].rounds) == 2


def test_groups_that_always_fail_end_the_run_with_the_error(learner, program, words, options):
    learner.curate = lambda program, reflections: 1 / 0
    result = run(learner, program, words, options, batch=2)
    assert result.stop_reason == "error"
    assert "ZeroDivisionError" in result.error
    assert len(result.rounds) == 3


def test_a_run_too_short_for_that_ends_with_the_error_too_also_when_it_is_resumed(
    learner, program, words, options, tmp_path
):
    learner.curate = lambda program, reflections: 1 / 0
    for _ in range(2):
        result = run(learner, program, words, options, batch=len(words), log_dir=tmp_path)
        assert (len(result.rounds), result.stop_reason) == (1, "error")
        assert "ZeroDivisionError" in result.error


def test_the_controller_is_shown_full_rounds_only_and_picks_the_sizes(learner, program, words, options):
    ticks = iter(range(10_000))
    controller = BatchSizeController(candidates=(1, 2, 4))
    result = run(learner, program, words, options, epochs=2, batch_sizes=controller, clock=lambda: float(next(ticks)))
    assert [record.batch_size for record in result.rounds][:3] == [1, 2, 4]
    assert sum(record.batch_size for record in result.rounds) == 20


def test_the_last_validation_is_paid_for_out_of_the_budget(learner, program, words, options, caplog):
    meter = Meter(Budget(max_metric_calls=9))
    unknown = [dspy.Example(word=f"never{i}").with_inputs("word") for i in range(3)]
    result = run(learner, program, words, options, batch=50, valset=unknown, meter=meter)
    assert len(learner.generated) == 9
    assert meter.spend.metric_calls == 9
    assert result.stop_reason == "budget"
    assert "The budget of 9 metric calls is small" in caplog.text


def test_an_interrupt_starts_nothing_new_and_keeps_the_best_program(learner, program, words, options, tmp_path):
    def interrupt(record_id):
        if record_id == "r6":
            raise KeyboardInterrupt

    learner.before_generate = interrupt
    told = []
    with pytest.raises(KeyboardInterrupt):
        run(learner, program, words, options, batch=2, valset=words, log_dir=tmp_path, on_result=told.append)
    assert not any(record_id in learner.generated for record_id in ("r7", "r8", "r9", "r10"))
    assert told[0].stop_reason == "interrupted"
    assert len(told[0].rounds) == 2

    learner.before_generate = lambda record_id: None
    learner.generated.clear()
    result = run(learner, program, words, options, batch=2, valset=words, log_dir=tmp_path)
    assert result.best_score == 1.0
    assert not any(record_id in learner.generated for record_id in ("r1", "r2", "r3", "r4"))


def test_a_resumed_run_ends_as_one_that_was_never_stopped(learner, program, words, options, tmp_path):
    whole = run(learner, program, words, options, batch=3, epochs=2, log_dir=tmp_path / "whole")
    for stop_at in ("r2", "r5", "r14"):
        learner.before_generate = lambda record_id, stop=stop_at: stop_when(record_id == stop)
        with pytest.raises(KeyboardInterrupt):
            run(learner, program, words, options, batch=3, epochs=2, log_dir=tmp_path / stop_at)
        learner.before_generate = lambda record_id: None
        resumed = run(learner, program, words, options, batch=3, epochs=2, log_dir=tmp_path / stop_at)
        assert resumed.program.dump_state() == whole.program.dump_state()
        assert [r.record_ids for r in resumed.rounds] == [r.record_ids for r in whole.rounds]


def stop_when(is_time):
    if is_time:
        raise KeyboardInterrupt


def test_a_killed_process_loses_no_finished_record(tmp_path):
    code = textwrap.dedent(
        """
        import os, signal, sys
        import dspy
        sys.path.insert(0, sys.argv[2])
        from conftest import WordLearner
        from dspy_combee.aggregation.single_pass import SinglePass
        from dspy_combee.rounds import ExampleSource, FixedBatchSize, run_rounds
        from dspy_combee.runtime.execution.threads import ThreadExecutor

        learner, kill_at = WordLearner(), sys.argv[3]
        def before(record_id):
            if record_id == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        learner.before_generate = before
        words = [dspy.Example(word=f"w{i}").with_inputs("word") for i in range(6)]
        source = ExampleSource(words, shuffle=False)
        result = run_rounds(learner, dspy.Predict("word -> meaning"), source, aggregation=SinglePass(),
            executor=ThreadExecutor(1), batch_sizes=FixedBatchSize(6), log_dir=sys.argv[1])
        print(",".join(learner.generated), result.rounds[0].recalled, result.program.signature.instructions.count("<"))
        """
    )
    here = os.path.dirname(__file__)
    arguments = [sys.executable, "-c", code, str(tmp_path), here]
    killed = subprocess.run([*arguments, "r4"], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL
    resumed = subprocess.run([*arguments, "none"], capture_output=True, text=True, check=True)
    assert resumed.stdout.split() == ["r4,r5,r6", "3", "6"]


def test_a_torn_checkpoint_falls_back_to_the_one_before(learner, program, words, options, tmp_path):
    run(learner, program, words[:6], options, batch=2, log_dir=tmp_path)
    path = tmp_path / "checkpoint.json"
    path.write_text(path.read_text()[:40])
    learner.generated.clear()
    result = run(learner, program, words[:6], options, batch=2, log_dir=tmp_path)
    assert result.program.signature.instructions.count("<") == 6
    assert learner.generated == []  # the records of the round that was lost are still known


def test_what_was_spent_is_known_before_a_run_goes_on(learner, program, words, options, tmp_path):
    assert spent_before(tmp_path).metric_calls == 0
    run(learner, program, words, options, log_dir=tmp_path)
    assert spent_before(tmp_path).metric_calls == 10
    assert spent_before(None).metric_calls == 0


def test_a_resumed_run_says_where_it_goes_on_and_what_was_spent(learner, program, words, options, tmp_path, caplog):
    run(learner, program, words, options, log_dir=tmp_path)
    with caplog.at_level(logging.INFO):
        meter = Meter(already_spent=spent_before(tmp_path))
        run(learner, program, words, options, log_dir=tmp_path, meter=meter)
    said = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Resumed")]
    assert said == ["Resumed after round 4: 0 LM calls and 10 metric calls were spent already"]


def test_the_result_is_json_data(learner, program, words, options):
    import json

    told = json.loads(json.dumps(run(learner, program, words, options, valset=words).to_dict()))
    assert told["stop_reason"] == "perfect"
    assert told["rounds"][0]["updates"][0]["entries"][0] == ["learn <w0>", ["r1"]]


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 9), st.integers(0, 3))
def test_batches_cover_every_epoch_once_and_depend_on_the_position_alone(size, epochs, count, seed):
    source, seen, position = ExampleSource(range(size), epochs=epochs, seed=seed), [], 0
    while (batch := source.take(position, count)).items:
        assert batch == ExampleSource(range(size), epochs=epochs, seed=seed).take(position, count)
        assert len({(position + i) // size for i in range(len(batch.items))}) == 1
        seen.extend((batch.epoch, item) for item in batch.items)
        position += len(batch.items)
    assert sorted(seen) == [(epoch, item) for epoch in range(epochs) for item in range(size)]


def test_an_update_without_lines_changes_nothing(learner, program, words, options):
    learner.curate = lambda program, reflections: TextUpdate(())
    result = run(learner, program, words, options)
    assert result.program is program
    assert result.stop_reason == "completed"
