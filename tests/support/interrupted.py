"""Ctrl-C, really pressed, while workers wait for their model."""

import os
import signal
import threading

import pytest


class PressedWhileBusy:
    """A script that holds its calls from a certain one on until four wait, Ctrl-C is pressed and was heard."""

    def __init__(self, reply, first_call):
        self.started = []
        """The numbers of the calls that began."""
        self.at_interrupt = 0
        """How many had begun when Ctrl-C was heard."""
        self._reply, self._first_call = reply, first_call
        self._lock = threading.Lock()
        self._busy, self._heard, self._go_on = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, prompt, number):
        with self._lock:
            self.started.append(number)
            waiting = sum(one >= self._first_call for one in self.started)
        if number >= self._first_call:
            if waiting >= 4:
                self._busy.set()
            self._go_on.wait(60)
        return self._reply(prompt, number)

    def during(self, work):
        """Do the work, and see that it ends in a KeyboardInterrupt and leaves the handler of SIGINT as it was."""
        presser = threading.Thread(target=self._press)
        before = signal.signal(signal.SIGINT, self._hear)
        try:
            presser.start()
            with pytest.raises(KeyboardInterrupt):
                work()
            presser.join()
            assert signal.getsignal(signal.SIGINT) == self._hear
        finally:
            signal.signal(signal.SIGINT, before)

    def _hear(self, number, frame):
        self._heard.set()
        raise KeyboardInterrupt

    def _press(self):
        self._busy.wait(60)
        os.kill(os.getpid(), signal.SIGINT)
        self._heard.wait(60)  # a signal is handled when the main thread runs again
        with self._lock:
            self.at_interrupt = len(self.started)
        self._go_on.set()
