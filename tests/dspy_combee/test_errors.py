import pickle

import pytest

from dspy_combee import errors


def test_exhausted_budget_is_no_exception_and_says_the_numbers():
    error = errors.BudgetExhausted("max_lm_calls", limit=20, spent=20)
    assert not isinstance(error, Exception)
    assert str(error) == "the budget is spent: max_lm_calls=20, used so far 20"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    "error", [errors.LMUnavailableError, errors.MetricError, errors.ResumeMismatchError, errors.LocalModelError]
)
def test_every_boundary_is_caught_by_the_base(error):
    with pytest.raises(errors.CombeeError):
        raise error("x")
