import json
import os
import signal
import subprocess
import sys
import threading

import dspy
import pytest

from dspy_combee.errors import ResumeMismatchError, RunLogError
from dspy_combee.runtime.execution.threads import ThreadExecutor
from dspy_combee.runtime.run_log import (
    Fingerprint,
    RunLog,
    check_fingerprint,
    difference,
    fingerprint_run,
    read_with_fallback,
    write_atomically,
)


def test_records_come_back_in_order(tmp_path):
    log = RunLog(tmp_path / "new" / "run")
    assert list(log.read()) == []
    records = [{"step": 1, "text": "a\nb\u2028 🙂 \ud800"}, {"step": 2, "score": None}]
    for record in records:
        log.append(record)
    assert list(log.read()) == list(RunLog(tmp_path / "new" / "run").read()) == records


def test_records_of_many_threads_are_all_whole(tmp_path):
    log = RunLog(tmp_path)
    ThreadExecutor(8).run(lambda number: log.append({"number": number, "filler": "x" * 5000}), range(60))
    assert sorted(record["number"] for record in log.read()) == list(range(60))


def test_torn_last_line_is_skipped_with_a_message_and_swallows_nothing(tmp_path, caplog):
    log = RunLog(tmp_path)
    log.append({"step": 1})
    with open(log.path, "ab") as file:
        file.write(b'{"step": 2, "te')
    assert [record["step"] for record in RunLog(tmp_path).read()] == [1]
    assert "line 2 is no whole record and is skipped" in caplog.text
    RunLog(tmp_path).append({"step": 3})
    assert [record["step"] for record in RunLog(tmp_path).read()] == [1, 3]


@pytest.mark.parametrize("record", [["a"], None, {"value": object()}, {"value": {1, 2}}])
def test_what_is_no_json_record_is_refused_and_nothing_is_written(tmp_path, record):
    log = RunLog(tmp_path)
    with pytest.raises(TypeError):
        log.append(record)
    assert not log.path.exists()


def test_directory_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunLogError, match="directory of a run must be writable"):
        RunLog(tmp_path / "file" / "run")


ENDLESS_WRITER = """
import sys, threading
from dspy_combee.runtime.run_log import RunLog, write_atomically
log = RunLog(sys.argv[1])
for number in range(10**9):
    log.append({"number": number, "filler": "x" * 20000})
    write_atomically(sys.argv[1] + "/state.json", '{"number": %d, "filler": "%s"}' % (number, "x" * 20000))
    print(number, flush=True)
"""


@pytest.mark.parametrize("steps", [1, 7])
def test_nothing_that_was_reported_is_lost_when_the_process_is_killed(tmp_path, steps):
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", ENDLESS_WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        for _ in range(steps):
            reported = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        reported = max([reported, *(int(line) for line in process.stdout if line.endswith("\n"))])
    numbers = [record["number"] for record in RunLog(tmp_path).read()]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > reported
    assert read_with_fallback(tmp_path / "state.json")["number"] >= reported


def test_file_is_replaced_as_a_whole_and_the_one_before_it_is_kept(tmp_path):
    path = tmp_path / "deep" / "state.json"
    write_atomically(path, "1")
    write_atomically(path, "2")
    assert (path.read_text(), (tmp_path / "deep" / "state.json.previous").read_text()) == ("2", "1")
    assert sorted(os.listdir(path.parent)) == ["state.json", "state.json.previous"]


@pytest.mark.parametrize("damage", ["", '{"step": ', "\0\0\0", None])
def test_damaged_or_missing_file_falls_back_to_the_one_before_it_with_a_message(tmp_path, caplog, damage):
    path = tmp_path / "state.json"
    write_atomically(path, '{"step": 1}')
    write_atomically(path, '{"step": 2}')
    assert read_with_fallback(path) == {"step": 2}
    assert caplog.text == ""
    if damage is None:
        path.unlink()
    else:
        path.write_text(damage)
    assert read_with_fallback(path) == {"step": 1}
    assert "using the version before it" in caplog.text


def test_file_without_a_version_to_fall_back_to_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_with_fallback(tmp_path / "state.json")
    (tmp_path / "state.json").write_text('{"half')
    with pytest.raises(RunLogError, match="must be a JSON file"):
        read_with_fallback(tmp_path / "state.json")


def run_of(instructions="Answer.", names=("predict",), train=("a", "b"), val=("c",), **config):
    program = dspy.Module()
    for name in names:
        setattr(program, name, dspy.Predict(dspy.Signature("question -> answer", instructions)))
    rows = [
        [dspy.Example(question=text, answer=object()).with_inputs("question") for text in part] for part in (train, val)
    ]
    return fingerprint_run(program, trainset=rows[0], valset=rows[1], config=config)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ()),
        ({"instructions": "Answer well."}, ("seed instructions",)),
        ({"names": ("other",)}, ("predictor names",)),
        ({"train": ("b", "a")}, ("trainset",)),
        ({"val": ("c", "d")}, ("valset",)),
        ({"seed": 1}, ("config seed",)),
    ],
)
def test_another_run_is_refused_by_the_names_of_what_changed(tmp_path, changes, names):
    first, second = run_of(seed=0), run_of(**{"seed": 0, **changes})
    assert check_fingerprint(tmp_path, first) is False
    assert check_fingerprint(tmp_path, first) is True
    assert difference(first, second) == names
    if names:
        with pytest.raises(ResumeMismatchError, match=f"but these changed: {', '.join(names)}"):
            check_fingerprint(tmp_path, second)


def test_parts_that_come_and_go_are_differences():
    assert difference(Fingerprint.of({"a": 1, "b": 2}), Fingerprint.of({"b": 2, "c": 3})) == ("a", "c")


def test_unreadable_fingerprint_is_an_error(tmp_path):
    (tmp_path / "fingerprint.json").write_text("[]")
    with pytest.raises(RunLogError, match="must hold a JSON object, got list"):
        check_fingerprint(tmp_path, run_of())


def test_concurrent_writers_leave_a_whole_file(tmp_path):
    path, texts = tmp_path / "state.json", [json.dumps([number] * 3000) for number in range(4)]
    start = threading.Barrier(4)

    def write(text):
        start.wait()
        for _ in range(5):
            write_atomically(path, text)

    outcomes = ThreadExecutor(4).run(write, texts)
    assert [outcome.error for outcome in outcomes] == [None] * 4
    assert path.read_text() in texts
