import os
import signal
import threading

import pytest

from dspy_combee.runtime.interrupt import notice_interrupt


def test_the_function_is_called_before_the_interrupt_is_raised():
    heard = []
    with pytest.raises(KeyboardInterrupt), notice_interrupt(lambda: heard.append("now")):
        os.kill(os.getpid(), signal.SIGINT)
    assert heard == ["now"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_users_own_handler_is_called_and_put_back():
    heard = []
    own = lambda number, frame: heard.append("own")  # noqa: E731
    before = signal.signal(signal.SIGINT, own)
    try:
        with notice_interrupt(lambda: heard.append("ours")):
            os.kill(os.getpid(), signal.SIGINT)
        assert heard == ["ours", "own"]
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_nothing_is_done_in_another_thread():
    seen = []

    def run():
        with notice_interrupt(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
