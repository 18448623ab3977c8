"""The exceptions of `dspy_combee`, one class for each boundary where a run can fail.

Wrong arguments are not here: they are `ValueError` and `TypeError`, raised before any model call.
"""

from __future__ import annotations


class CombeeError(Exception):
    """Base of every error that `dspy_combee` raises on its own account."""


class LMUnavailableError(CombeeError):
    """The language model failed so often that scores would describe the outage and not the program."""


class MetricError(CombeeError):
    """The metric raised, or returned something that is not a score."""


class ReflectionError(CombeeError):
    """The reflection model's reply holds nothing that can be used."""


class ExecutionError(CombeeError):
    """The place where work runs (a pool, a cluster) failed, not the work itself."""


class RunLogError(CombeeError):
    """The files of a run cannot be read or written."""


class ResumeMismatchError(CombeeError):
    """The directory belongs to a run with another program, other data or another configuration."""


class LocalModelError(CombeeError):
    """The embedded model cannot be fetched, started or reached. Base of the more specific ones."""


class BudgetExhausted(BaseException):
    """The budget of a run is spent: no further model call may start.

    It derives from `BaseException` because it is a decision about the whole run, like `KeyboardInterrupt`, and has to
    get through code that treats an `Exception` as the failure of one step: `dspy.ReAct` turns a tool's error into an
    observation and goes on, `dspy.Evaluate` scores a crashed example 0.0 and goes on. The optimizer that set the
    budget catches it and returns the best program so far.
    """

    def __init__(self, limit_name: str, *, limit: float, spent: float) -> None:
        """Name the limit as `Budget` spells it, its value, and what was spent when the next call was refused."""
        self.limit_name = limit_name
        self.limit = limit
        self.spent = spent
        super().__init__(limit_name, limit, spent)

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild from the same arguments in another process; keyword-only arguments need the help."""
        return _rebuild_budget_exhausted, (self.limit_name, self.limit, self.spent)

    def __str__(self) -> str:
        """Say the limit and the numbers."""
        return f"the budget is spent: {self.limit_name}={self.limit:g}, used so far {self.spent:g}"


def _rebuild_budget_exhausted(limit_name: str, limit: float, spent: float) -> BudgetExhausted:
    return BudgetExhausted(limit_name, limit=limit, spent=spent)
