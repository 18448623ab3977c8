import ast
import threading

import pytest

from dspy_combee.runtime.python_syntax import literal, parse_source

DEEP = "x = " + "(" * 60 + "1" + ")" * 60 + "\n" + "f(a(b(c(d(1)))))\n" * 40


def test_many_threads_may_parse_at_once_beside_others_that_do_not_use_the_lock():
    failures = []
    stop = threading.Event()

    def elsewhere():
        while not stop.is_set():
            try:
                ast.literal_eval("[" * 40 + "]" * 40)
            except SystemError:
                continue

    def here():
        try:
            for _ in range(60):
                parse_source(DEEP)
                assert literal("[1, {'a': (2, 3)}]") == [1, {"a": (2, 3)}]
        except (SystemError, AssertionError, RecursionError) as error:
            failures.append(error)

    other = threading.Thread(target=elsewhere)
    other.start()
    threads = [threading.Thread(target=here) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    other.join()
    assert failures == []


def test_what_is_no_python_is_said_at_once():
    with pytest.raises(SyntaxError):
        parse_source("x = (")
    with pytest.raises(ValueError, match="malformed"):
        literal("f(1)")
