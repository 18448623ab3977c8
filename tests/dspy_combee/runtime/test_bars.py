"""Bars of several threads, some of which empty the set of open bars as DSPy does."""

import io
import threading

from tqdm import tqdm

from dspy_combee.runtime.bars import share_progress_bars


def test_a_bar_closes_though_another_thread_has_emptied_the_set_of_bars():
    share_progress_bars()
    bar = tqdm(total=1, file=io.StringIO())
    tqdm._instances.clear()
    tqdm._instances.remove(bar)
    bar.close()


def test_bars_can_be_walked_while_others_open_and_close():
    share_progress_bars()
    first, second = (tqdm(total=1, file=io.StringIO(), disable=False) for _ in range(2))
    seen = []
    for bar in tqdm._instances:
        tqdm._instances.clear()
        seen.append(bar)
    assert {id(bar) for bar in seen} >= {id(first), id(second)}
    first.close()
    second.close()


def test_the_set_of_bars_is_replaced_once():
    threads = [threading.Thread(target=share_progress_bars) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bars = tqdm._instances
    share_progress_bars()
    assert tqdm._instances is bars
