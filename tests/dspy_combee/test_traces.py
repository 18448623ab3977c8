import json
import tracemalloc

import dspy
import pytest

from dspy_combee.learners.base import Trajectory
from dspy_combee.traces import TraceMapping, TraceReader

ROW = {"inputs": {"question": "2+2?"}, "output": {"answer": "5"}, "score": 0, "feedback": "wrong", "steps": ["think"]}


def test_rows_become_trajectories_with_inputs_steps_output_score_and_feedback():
    (trajectory,) = TraceReader([ROW])
    assert trajectory.record_id == "t1"
    assert trajectory.example.inputs().toDict() == {"question": "2+2?"}
    assert trajectory.prediction.answer == "5"
    assert (trajectory.score, trajectory.feedback) == (0.0, "wrong")
    assert trajectory.trace == (("1", {}, {"text": "think"}),)


def test_a_mapping_finds_nested_fields_several_fields_and_computed_ones():
    row = {
        "meta": {"reward": 0.5},
        "task": "t",
        "files": "f",
        "messages": [{"role": "agent", "content": "ls"}],
        "gold": "g",
    }
    mapping = TraceMapping(
        inputs=("task", "files"),
        steps="messages",
        output=lambda row: row["messages"][-1]["content"],
        score="meta.reward",
        feedback=None,
        labels="gold",
    )
    (trajectory,) = TraceReader([row], mapping)
    assert trajectory.example.inputs().toDict() == {"task": "t", "files": "f"}
    assert trajectory.example.labels().toDict() == {"output": "g"}
    assert trajectory.trace == (("agent", {}, {"content": "ls"}),)
    assert (trajectory.prediction.output, trajectory.score) == ("ls", 0.5)


def test_a_broken_line_is_reported_and_skipped(tmp_path, caplog):
    lines = [
        json.dumps(ROW),
        '{"inputs": {"que',
        json.dumps({"x": 1}),
        json.dumps({**ROW, "score": "high"}),
        json.dumps(ROW),
    ]
    (tmp_path / "runs.jsonl").write_text("\n".join(lines))
    reader = TraceReader(tmp_path / "runs.jsonl")
    assert [trajectory.record_id for trajectory in reader] == ["t1", "t5"]
    assert [skipped.row for skipped in reader.skipped] == [1, 2, 3]
    assert "must have inputs" in reader.skipped[1].reason
    assert "Trace 1 is skipped" in caplog.text


def test_a_row_is_skipped_whatever_reading_it_raises(tmp_path):
    (tmp_path / "runs.jsonl").write_text("\n".join(["[" * 100_000, json.dumps({**ROW, "score": 10**400})]))
    assert list(TraceReader(tmp_path / "runs.jsonl")) == []
    rows = [{**ROW, "passed": 0}, {**ROW, "passed": 2}]
    reader = TraceReader(rows, TraceMapping(score=lambda row: 1 / row["passed"]))
    assert [trajectory.score for trajectory in reader] == [0.5]
    assert "ZeroDivisionError" in reader.skipped[0].reason


def test_a_row_is_the_line_of_its_file_whatever_stands_between(tmp_path):
    (tmp_path / "runs.jsonl").write_text(json.dumps(ROW) + "\n\nbroken\n" + json.dumps(ROW), encoding="utf-8-sig")
    reader = TraceReader(tmp_path / "runs.jsonl")
    assert [trajectory.record_id for trajectory in reader] == ["t1", "t4"]
    assert [skipped.row for skipped in reader.skipped] == [2]


def test_any_field_name_and_a_step_of_three_texts_are_read():
    (trajectory,) = TraceReader([{"inputs": {"base": "b", "self": "s"}, "steps": [("search", "who", "nobody")]}])
    assert trajectory.example.inputs().toDict() == {"base": "b", "self": "s"}
    assert trajectory.trace == (("search", {"input": "who"}, {"output": "nobody"}),)


def test_an_example_that_does_not_say_what_its_inputs_are_is_reported():
    example = dspy.Example(question="q", answer="a")
    reader = TraceReader([(example, None), Trajectory("t", example), (example.with_inputs("question"), None)])
    assert [trajectory.record_id for trajectory in reader] == ["t3"]
    assert "with_inputs" in reader.skipped[1].reason


def test_a_missing_score_is_not_zero():
    (trajectory,) = TraceReader([{"inputs": "x"}])
    assert trajectory.score is None
    assert trajectory.example.inputs().toDict() == {"input": "x"}


def test_many_traces_are_never_held_as_a_whole():
    def rows():
        for number in range(10_000):
            yield {"inputs": {"question": f"{number}" * 1_000}, "output": "x", "score": 1}

    tracemalloc.start()
    count = sum(1 for _ in TraceReader(rows()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 10_000
    assert peak < 2_000_000


def test_dspys_own_traces_are_read():
    example = dspy.Example(question="q", answer="a").with_inputs("question")
    predictor = dspy.Predict("question -> answer")
    prediction = dspy.Prediction(answer="b")
    rows = [
        (example, prediction, [(predictor, {"question": "q"}, prediction)], dspy.Prediction(score=0.0, feedback="no")),
        {"inputs": {"question": "q"}},
        Trajectory("other", example, prediction, 1.0),
    ]
    first, second, third = TraceReader(rows)
    assert first.trace == ((predictor, {"question": "q"}, {"answer": "b"}),)
    assert (first.score, first.feedback) == (0.0, "no")
    assert (second.record_id, third.record_id, third.score) == ("t2", "t3", 1.0)


def test_a_reader_can_be_read_again(tmp_path):
    (tmp_path / "runs.jsonl").write_text(json.dumps(ROW) + "\nbroken\n")
    reader = TraceReader(tmp_path / "runs.jsonl")
    assert len(list(reader)) == len(list(reader)) == 1
    assert reader.skipped_count == 1


def test_what_is_no_source_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*missing\.jsonl"):
        TraceReader("missing.jsonl")
    with pytest.raises(FileNotFoundError, match="must be a file of JSON lines"):
        TraceReader(tmp_path)
    with pytest.raises(TypeError, match="must be a path or an iterable"):
        TraceReader(5)
    with pytest.raises(TypeError, match="one split of a data set, got a mapping of train, test"):
        TraceReader({"train": [ROW], "test": []})
