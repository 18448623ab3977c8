import threading

import dspy
import pytest

from dspy_combee.testing import scripted_lm


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_may_configure_whoever_did_before_it(turn):
    assert dspy.settings.lm is None
    thread = threading.Thread(target=dspy.configure, kwargs={"lm": scripted_lm(["a"]), "num_threads": 3})
    thread.start()
    thread.join()
    assert dspy.settings.num_threads == 3


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_a_cache_of_its_own(turn):
    lm = scripted_lm(["a"], cache=True)
    assert lm("q") == lm("q") == ["a"]
    assert lm.engine.calls == 1


@pytest.mark.parametrize("turn", [1, 2])
def test_context_that_a_test_leaves_open_is_closed(turn):
    assert "left_open" not in dspy.settings
    dspy.context(left_open=True).__enter__()
