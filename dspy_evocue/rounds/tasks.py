"""Which task serves for what: tasks to learn from, and tasks that only confirm, never the same ones.

The two pools are fixed for the whole run, so that no confirmation rests on a task that any proposal or trial has
seen. Within a pool, a round takes the tasks that were used least.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dspy_combee.seeding import branch_rng
from dspy_evocue.trials import task_name

logger = logging.getLogger(__name__)

MIN_LEARNING = 3
"""Fewer tasks cannot support any rule."""


@dataclass(frozen=True, slots=True)
class Task:
    """One example under the name that records use for it."""

    task_id: str
    example: Any


@dataclass(frozen=True, slots=True)
class TaskPools:
    """The tasks of a run by what they serve for."""

    learning: tuple[Task, ...]
    """Proposals and trials come from these."""
    confirmation: tuple[Task, ...]
    """These decide, and nothing else."""
    notes: tuple[str, ...] = ()
    """What the user should know before anything is spent."""


@dataclass(frozen=True, slots=True)
class ConfirmationPair:
    """One place of a confirmation: a task, and which sample of it."""

    number: int
    """From 1, in the order in which the criterion sees them."""
    task: Task
    sample: int
    """0 for the first run of the task in this confirmation."""


def split_tasks(
    trainset: Sequence[Any],
    valset: Sequence[Any] | None,
    *,
    trial_tasks: int,
    confirmation_tasks: int,
    max_rounds: int,
    seed: int,
) -> TaskPools:
    """Split the examples into the two pools.

    Args:
        trainset: Checked examples.
        valset: Checked examples that only confirm; None to hold some of the trainset out.
        trial_tasks: Wanted for the trials of a round.
        confirmation_tasks: Wanted for the confirmation of a round.
        max_rounds: With enough examples each round confirms on tasks of its own.
        seed: Decides the order.

    Raises:
        ValueError: When there are too few different tasks for any evidence.
    """
    notes: list[str] = []
    tasks = _distinct(trainset, "trainset", notes)
    branch_rng(seed, "tasks", "trainset").shuffle(tasks)
    held_out = [] if valset is None else _distinct(valset, "valset", notes)
    known = {task.task_id for task in tasks}
    confirming = [task for task in held_out if task.task_id not in known]
    if len(confirming) < len(held_out):
        notes.append(
            f"{len(held_out) - len(confirming)} of {len(held_out)} valset tasks are in the trainset too: they cannot "
            "confirm and are left out of the valset."
        )
    if confirming:
        branch_rng(seed, "tasks", "valset").shuffle(confirming)
        learning = tasks
    else:
        count = _confirmation_share(len(tasks), trial_tasks, confirmation_tasks, max_rounds)
        confirming, learning = tasks[:count], tasks[count:]
    if len(learning) < MIN_LEARNING or not confirming:
        raise ValueError(
            f"there must be at least {MIN_LEARNING} different tasks to learn from and 1 other to confirm on, "
            f"got {len(tasks)} in the trainset and {len(held_out)} in the valset"
        )
    if len(learning) < trial_tasks:
        notes.append(f"{trial_tasks} trial tasks are wanted, there are {len(learning)} to learn from.")
    if len(confirming) < confirmation_tasks:
        notes.append(
            f"{confirmation_tasks} confirmation tasks are wanted, {len(confirming)} are left that no proposal or "
            "trial uses: they are run several times, which says less about new tasks."
        )
    for note in notes:
        logger.warning("%s", note)
    return TaskPools(tuple(learning), tuple(confirming), tuple(notes))


def draw_learning(pools: TaskPools, *, round_number: int, count: int) -> tuple[Task, ...]:
    """Return the tasks that a round records and tries, those that earlier rounds have not used first."""
    return _turn(pools.learning, (round_number - 1) * count, min(count, len(pools.learning)))


def draw_confirmation(pools: TaskPools, *, round_number: int, pairs: int) -> tuple[ConfirmationPair, ...]:
    """Return the places of a round's confirmation; a task comes again only when all others have come."""
    distinct = min(pairs, len(pools.confirmation))
    tasks = _turn(pools.confirmation, (round_number - 1) * distinct, distinct)
    return tuple(ConfirmationPair(place + 1, tasks[place % distinct], place // distinct) for place in range(pairs))


def _turn(tasks: tuple[Task, ...], start: int, count: int) -> tuple[Task, ...]:
    return tuple(tasks[(start + offset) % len(tasks)] for offset in range(count))


def _confirmation_share(total: int, trial_tasks: int, confirmation_tasks: int, max_rounds: int) -> int:
    trial_tasks = max(trial_tasks, MIN_LEARNING)
    wanted = trial_tasks + confirmation_tasks
    if total < wanted:
        return max(1, min(total - MIN_LEARNING, total * confirmation_tasks // wanted))
    # Twice the number, because a sequential criterion may ask for so many pairs; for each round, if there are enough.
    return min(2 * confirmation_tasks * max_rounds, max(confirmation_tasks, (total - trial_tasks) // 2))


def _distinct(examples: Sequence[Any], name: str, notes: list[str]) -> list[Task]:
    by_id: dict[str, Task] = {}
    for example in examples:
        task_id = task_name(example)
        by_id.setdefault(task_id, Task(task_id, example))
    if len(by_id) < len(examples):
        notes.append(
            f"{len(examples) - len(by_id)} of {len(examples)} {name} examples have the same inputs as another one and "
            "are left out: a task cannot confirm what it has taught."
        )
    return list(by_id.values())
