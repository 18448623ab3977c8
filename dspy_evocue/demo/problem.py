"""What a tour needs to know of a world: the agent, its tasks, its score, and how the world is put back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dspy

from dspy_evocue.demo.claims import IDEAS, ClaimsDesk, claims_clerk, claims_environment, claims_metric, claims_tasks
from dspy_evocue.demo.office import OfficeDesk, office_agent, office_environment, office_metric, office_tasks
from dspy_evocue.environments import Environment


@dataclass(frozen=True, slots=True)
class Problem:
    """A world with an agent in it."""

    about: str
    """What the reader should know, in a few sentences."""
    agent: dspy.Module
    metric: Callable[..., Any]
    environment: Environment
    tasks: Callable[[int], list[dspy.Example]]
    """Returns so many tasks, all of them different."""
    knowledge: tuple[str, ...] = ()
    """Ideas that somebody had; nobody has tested them."""


def office_problem() -> Problem:
    """Return the office desk: a `dspy.ReAct` agent with five tools."""
    desk = OfficeDesk()
    return Problem(
        about=(
            "A dspy.ReAct agent handles tickets of an office desk (calendar, expenses, tickets). The desk has a "
            "convention that no tool and no ticket mentions, and that must be obeyed late in the episode."
        ),
        agent=office_agent(desk),
        metric=office_metric(desk),
        environment=office_environment(desk),
        tasks=office_tasks,
    )


def claims_problem() -> Problem:
    """Return the claims desk: an agent of two predictor calls, short enough for a small model."""
    desk = ClaimsDesk()
    return Problem(
        about=(
            "An agent of two calls of one predictor handles expense claims: it names the claim, reads it, and writes "
            "the note that settles it. Accounting has a convention for travel claims that nothing mentions before. "
            "Colleagues have ideas what it could be; nobody has tested them."
        ),
        agent=claims_clerk(desk),
        metric=claims_metric(desk),
        environment=claims_environment(desk),
        tasks=claims_tasks,
        knowledge=IDEAS,
    )
