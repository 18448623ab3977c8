import math
import threading

import dspy
import numpy as np
import pytest

from dspy_combee.errors import MetricError
from dspy_combee.metrics import MetricCall, five_argument_metric, read_score


@pytest.mark.parametrize(
    ("result", "value", "feedback", "has_feedback"),
    [
        (0.5, 0.5, "", False),
        (True, 1.0, "", False),
        (3, 3.0, "", False),
        (np.float64(0.25), 0.25, "", False),
        (np.float32(0.25), 0.25, "", False),
        (dspy.Prediction(score=0.5), 0.5, "", False),
        (dspy.Prediction(score=False, feedback="no"), 0.0, "no", True),
        (dspy.Prediction(score=0.5, feedback=None), 0.5, "", False),
        ({"score": 1.0, "feedback": "f"}, 1.0, "f", True),
        ({"score": 1}, 1.0, "", False),
    ],
)
def test_what_is_a_score_is_read(result, value, feedback, has_feedback):
    score = read_score(result, metric_name="m")
    assert (score.value, score.feedback, score.has_feedback) == (value, feedback, has_feedback)
    assert score.raw is result


@pytest.mark.parametrize(
    "result", [None, "0.5", b"1", (0.5, "f"), [], {"feedback": "f"}, dspy.Prediction(score="1"), object()]
)
def test_what_is_no_score_is_refused_with_the_metric_and_the_example(result):
    with pytest.raises(MetricError, match=r"metric m must return a number.* for valset\[3\]"):
        read_score(result, metric_name="m", where="valset[3]")


@pytest.mark.parametrize("result", [math.nan, math.inf, dspy.Prediction(score=math.nan)])
def test_scores_that_are_not_finite_are_refused(result):
    with pytest.raises(MetricError, match="must return a finite score"):
        read_score(result, metric_name="m")


def one(gold):
    return 1.0


def four(gold, pred, trace, extra):
    return 1.0


@pytest.mark.parametrize("metric", [one, four])
def test_metrics_with_other_numbers_of_arguments_are_refused(metric):
    with pytest.raises(TypeError, match="must take 2, 3 or 5 of the arguments"):
        MetricCall(metric)


def test_a_metric_gets_only_the_arguments_it_takes():
    seen = []
    for metric in (
        lambda gold, pred: seen.append((gold, pred)) or 1.0,
        lambda gold, pred, trace=None: seen.append((gold, pred, trace)) or 1.0,
        lambda *everything: seen.append(everything) or 1.0,
    ):
        MetricCall(metric)("g", "p", "t", "n", "s")
    assert seen == [("g", "p"), ("g", "p", "t"), ("g", "p", "t", "n", "s")]


def test_a_broken_metric_is_called_once_however_many_threads_ask():
    calls, barrier, errors = [], threading.Barrier(8), []
    call = MetricCall(lambda gold, pred: calls.append(gold))

    def ask():
        barrier.wait(20)
        try:
            call("g", "p")
        except MetricError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(calls), len(errors)) == (1, 8)


def test_a_metric_of_five_arguments_is_left_as_it_is():
    def five(gold, pred, trace=None, pred_name=None, pred_trace=None):
        return 1.0

    assert five_argument_metric(five) is five
    wrapped = five_argument_metric(lambda gold, pred: float(gold == pred))
    assert wrapped("a", "a", None, "name", None) == 1.0
    dspy.GEPA(metric=wrapped, max_metric_calls=1, instruction_proposer=lambda **_: {})
