import io
import sys
import threading

import tqdm

from dspy_combee.runtime.quiet import quiet_progress


def test_bars_are_dropped_and_other_text_passes(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    with quiet_progress():
        for _ in tqdm.tqdm(range(3)):
            pass
        sys.stderr.write("kept\n")
    assert out.getvalue() == "kept\n"


def test_nothing_is_touched_when_bars_are_wanted(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    with quiet_progress(enabled=False):
        for _ in tqdm.tqdm(range(3)):
            pass
    assert "3/3" in out.getvalue()


def test_the_streams_are_put_back_when_the_last_user_leaves():
    before = sys.stdout, sys.stderr
    inside, leave = threading.Barrier(2), threading.Event()

    def hold():
        with quiet_progress():
            inside.wait(20)
            leave.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    with quiet_progress():
        inside.wait(20)
    assert sys.stdout is not before[0]
    leave.set()
    thread.join()
    assert (sys.stdout, sys.stderr) == before
