"""Where work runs: the protocol that hides threads from the rest of the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Result]):
    """What became of one item: a value or an error, never both."""

    index: int
    """The position of the item in the sequence that was given."""
    value: Result | None
    error: Exception | None
    seconds: float
    """Wall time of this item alone, waiting for a free worker not counted."""


class Executor(Protocol):
    """Run one function over many items at once.

    - Every call runs in a copy of the caller's context, so `dspy.context(...)` holds inside.
    - A call that raises an `Exception` becomes an outcome with that error; the others go on.
    - On `KeyboardInterrupt` or any other `BaseException`, no further item is started, and it is raised again after
      `on_done` has seen what had finished.
    """

    @property
    def num_workers(self) -> int:
        """How many items run at once at most."""
        ...

    def run(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        on_done: Callable[[Outcome[Result]], None] | None = None,
    ) -> list[Outcome[Result]]:
        """Return one outcome an item, in the order of the items; `on_done` is called as each one finishes."""
        ...
