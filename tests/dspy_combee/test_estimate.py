import dspy
import pytest

from dspy_combee.combee import Combee
from dspy_combee.estimate import calls_per_rollout


def rows(count):
    return [dspy.Example(question=f"q{n}", answer=str(n)).with_inputs("question") for n in range(count)]


def estimate(train=40, val=10, student=None, limit=200, **settings):
    base = dspy.GEPA(
        metric=lambda g, p, t=None, n=None, s=None: 1.0, max_metric_calls=limit, instruction_proposer=lambda **_: {}
    )
    student = student or dspy.Predict("question->answer")
    return Combee(base, **settings).estimate(student, trainset=rows(train), valset=rows(val))


def tool(query: str) -> str:
    """Look something up."""
    return query


@pytest.mark.parametrize(
    ("program", "calls"),
    [
        (dspy.Predict("a->b"), 1),
        (dspy.ChainOfThought("a->b"), 1),
        (dspy.ReAct("a->b", tools=[tool], max_iters=5), 6),
        (dspy.BestOfN(dspy.Predict("a->b"), N=3, reward_fn=lambda i, o: 1.0, threshold=1.0), None),
    ],
)
def test_calls_of_a_rollout_are_bounded_where_they_can_be(program, calls):
    found = calls_per_rollout(program)
    assert found is None if calls is None else found >= calls


def test_a_program_without_a_known_bound_has_no_total():
    program = dspy.BestOfN(dspy.Predict("question->answer"), N=3, reward_fn=lambda i, o: 1.0, threshold=1.0)
    found = estimate(student=program)
    assert (found.task_calls, found.lm_calls) == (None, None)


def test_larger_budgets_have_larger_bounds():
    small, large = estimate(limit=100), estimate(limit=400)
    assert small.metric_calls < large.metric_calls
    assert small.aggregation_calls <= large.aggregation_calls


def test_the_numbers_are_explained():
    found = estimate(batch_size=16)
    assert found.largest_batch == 16
    assert found.lm_calls == found.task_calls + found.aggregation_calls
    assert any("batches of 16 to 16 examples" in reason for reason in found.reasons)


def test_a_batch_is_capped_by_the_train_set():
    assert estimate(train=4, batch_size=50).largest_batch == 4
