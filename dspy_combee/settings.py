"""What a user asked of a run, checked and in one record, for the parts that carry it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dspy_combee.aggregation.base import Aggregation
from dspy_combee.batch_size import BatchSizeController
from dspy_combee.runtime.budget import Budget
from dspy_combee.runtime.execution.base import Executor

OnInterrupt = Literal["raise", "return"]
Form = Literal["lessons", "rewrite"]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of one `compile`, as `Combee` checked them."""

    batch_size: int | None
    """None lets the controller decide."""
    controller: BatchSizeController
    aggregation: Aggregation
    form: Form
    executor: Executor
    """Where aggregation calls run."""
    budget: Budget
    seed: int
    log_dir: str | None
    progress: bool
    patience: int | None
    frozen: tuple[str, ...]
    max_instruction_chars: int
    on_interrupt: OnInterrupt
    clock: Callable[[], float]
