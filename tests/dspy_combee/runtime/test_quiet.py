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


def test_the_bar_of_the_whole_run_stays_when_it_is_wanted(monkeypatch):
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with quiet_progress(keep_main_bar=True):
        for _ in tqdm.tqdm(range(3)):
            pass
        for _ in tqdm.tqdm(range(2), file=sys.stdout):
            pass
    assert "3/3" in err.getvalue()
    assert out.getvalue() == ""


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
