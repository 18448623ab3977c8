import json
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_evocue.memory import FILE_NAME, MemoryRecord, TrialMemory


def candidate(edit_id="e1", **content):
    content = {"text": "Press the brake.", "at": ["tool:* -> react"], "scope": "call", "round": 1, **content}
    return MemoryRecord(f"round 1/candidate/{edit_id}", "candidate", edit_id, "p0", content)


def trial(task, before, after, edit_id="e1", **content):
    content = {"task_id": task, "before": before, "after": after, "status": "applied", **content}
    return MemoryRecord(f"round 1/trial/{edit_id}/{task}", "trial", edit_id, "p0", content)


def decision(edit_id="e1", *, accepted=False, reason="too few gains"):
    content = {"stage": "confirmation", "accepted": accepted, "reason": reason}
    return MemoryRecord(f"round 1/decision/{edit_id}", "decision", edit_id, "p0", content)


def test_what_is_remembered_is_found_by_a_later_process(tmp_path):
    records = [candidate(), trial("t1", 0.0, 1.0), decision()]
    memory = TrialMemory(tmp_path)
    for record in records:
        memory.remember(record)
    again = TrialMemory(tmp_path)
    assert again.resumed == 3
    assert again.records() == tuple(records)
    assert again.find("round 1/trial/e1/t1") == records[1]
    assert again.index() == memory.index()


def test_the_first_record_of_a_step_stands(tmp_path):
    memory = TrialMemory(tmp_path)
    first = memory.remember(trial("t1", 0.0, 1.0))
    assert memory.remember(trial("t1", 1.0, 0.0)) is first
    assert len((tmp_path / FILE_NAME).read_text().splitlines()) == 1


def test_a_record_reads_the_same_before_and_after_a_resume(tmp_path):
    memory = TrialMemory(tmp_path)
    content = {"at": ("a -> b",), "scores": [1.0]}
    kept = memory.remember(MemoryRecord("k", "candidate", "e1", "p0", content))
    content["scores"].append(2.0)
    assert kept == TrialMemory(tmp_path).find("k")
    assert kept.content == {"at": ["a -> b"], "scores": [1.0]}


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    memory = TrialMemory()
    memory.remember(candidate())
    assert memory.find(candidate().key) is not None
    assert list(tmp_path.iterdir()) == []


def test_a_torn_last_line_is_skipped_and_written_over(tmp_path):
    memory = TrialMemory(tmp_path)
    memory.remember(candidate())
    whole = json.dumps(trial("t1", 0.0, 1.0).to_dict())
    with open(tmp_path / FILE_NAME, "a") as file:
        file.write(whole[: len(whole) // 2])
    resumed = TrialMemory(tmp_path)
    assert resumed.resumed == 1
    resumed.remember(trial("t1", 0.0, 1.0))
    assert TrialMemory(tmp_path).records() == (candidate(), trial("t1", 0.0, 1.0))


def test_a_killed_process_loses_no_record_that_it_was_told_is_kept(tmp_path):
    script = (
        "import sys\n"
        "from dspy_evocue.memory import MemoryRecord, TrialMemory\n"
        "memory = TrialMemory(sys.argv[1])\n"
        "for number in range(100000):\n"
        "    memory.remember(MemoryRecord(str(number), 'trial', 'e1', '', {'text': 'x' * 500}))\n"
        "    print(number, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        told += [int(line) for line in process.stdout.read().split()]
    kept = [int(record.key) for record in TrialMemory(tmp_path).records()]
    assert kept[: len(told)] == told
    assert len(kept) <= len(told) + 1


def test_threads_remember_each_step_once(tmp_path):
    memory = TrialMemory(tmp_path)

    def remember_all():
        for number in range(30):
            memory.remember(trial(f"t{number}", 0.0, 1.0))

    threads = [threading.Thread(target=remember_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(memory.records()) == 30
    assert TrialMemory(tmp_path).resumed == 30


def test_the_index_tells_what_where_how_it_went_and_what_was_decided():
    memory = TrialMemory()
    for record in (
        candidate(expected_effect="it brakes"),
        trial("t1", 0.0, 1.0),
        trial("t2", 0.0, None, status="unresolved"),
        decision(),
    ):
        memory.remember(record)
    assert memory.index().split("\n") == [
        "- e1 (round 1) on tool:* -> react, scope call: Press the brake.",
        "  expected: it brakes",
        "  trials: 1 better, 0 worse, 0 equal, 1 missing (1 unresolved)",
        "  confirmation: not accepted. too few gains",
    ]


def test_the_metrics_own_words_never_reach_index_or_details():
    memory = TrialMemory()
    memory.remember(candidate(feedback="LABEL-7"))
    memory.remember(trial("t1", 0.0, 1.0, feedback=["LABEL-7", "LABEL-7"], features={"phase": "late"}, site="a -> b"))
    assert "LABEL-7" not in memory.index() + memory.details("e1")
    assert memory.details("e1") == "trial on t1: applied, 0 -> 1; at a -> b; phase is late"
    assert memory.records("e1", kind="trial")[0].content["feedback"] == ["LABEL-7", "LABEL-7"]


@given(st.integers(0, 40), st.integers(100, 2000))
def test_the_index_is_bounded_and_shows_the_latest(edits, room):
    memory = TrialMemory()
    for number in range(edits):
        memory.remember(candidate(f"e{number}", text="word " * (number % 7)))
    index = memory.index(max_chars=room)
    assert len(index) <= room
    shown = index.count("- e")
    if shown < edits:
        assert f"({edits - shown} earlier edits are left out here)" in index
    if shown:
        assert index.startswith(f"- e{edits - 1} ")


def test_what_is_no_record_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must have a key and an edit id"):
        MemoryRecord("", "trial", "e1")
    with pytest.raises(ValueError, match="kind must be one of candidate, trial, confirmation, decision, got 'guess'"):
        MemoryRecord("k", "guess", "e1")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="a memory record must have 'edit_id'"):
        MemoryRecord.from_dict({"key": "k", "kind": "trial"})
    memory = TrialMemory(tmp_path)
    with pytest.raises(TypeError):
        memory.remember(MemoryRecord("k", "trial", "e1", content={"score": object()}))
    assert memory.records() == ()
