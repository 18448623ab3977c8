import ast
import gc
import threading
import time

import dspy
import pytest

from dspy_combee.runtime.execution.threads import ThreadExecutor
from dspy_combee.runtime.python_syntax import literal, parse_source, share_parser

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


@pytest.fixture
def interrupted_parsing():
    """Let the garbage collector start in the middle of a tree, and other threads go on while it runs."""

    def let_others_go_on(phase, info):
        time.sleep(0)

    usual = gc.get_threshold()
    gc.set_threshold(100)
    gc.callbacks.append(let_others_go_on)
    yield
    gc.callbacks.remove(let_others_go_on)
    gc.set_threshold(*usual)


def test_programs_in_several_threads_may_read_signatures_at_once(interrupted_parsing):
    text = ", ".join(f"field_{number}: dict[str, list[int]]" for number in range(20)) + " -> answer"
    outcomes = ThreadExecutor(6).run(lambda _: dspy.Signature(text), range(100))
    assert [outcome.error for outcome in outcomes if outcome.error is not None] == []


def test_the_parser_is_shared_once_and_parses_as_before():
    share_parser()
    parse = ast.parse
    share_parser()
    assert ast.parse is parse
    assert ast.dump(ast.parse("1", mode="eval")) == "Expression(body=Constant(value=1))"
    with pytest.raises(SyntaxError):
        ast.parse("x = (")
