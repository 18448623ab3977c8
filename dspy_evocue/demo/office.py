"""The office desk: an agent handles tickets with a calendar, expenses and a ticket system.

The desk has a convention that no tool describes and no ticket mentions: an expense must be referenced on its ticket
before the ticket is closed. It can only be obeyed late, after the expense has its number, and only be learned from
what the desk says when it is too late.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import dspy

from dspy_evocue.environments import ForkingEnvironment, current_world, deepcopy_environment

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
_MEETINGS = ("budget review", "team retreat", "supplier visit", "job interview", "press briefing", "audit meeting")
_PURPOSES = ("catering", "train tickets", "a projector", "printed handouts", "a taxi", "flowers")


@dataclass(slots=True)
class Ticket:
    """One ticket of the desk."""

    number: str
    text: str
    notes: list[str] = field(default_factory=list)
    is_closed: bool = False


@dataclass(slots=True)
class OfficeDesk:
    """Three small apps that share a desk. Its tools are its methods; it can be deep-copied."""

    tickets: dict[str, Ticket] = field(default_factory=dict)
    bookings: list[tuple[str, str]] = field(default_factory=list)
    """(day, meeting)."""
    expenses: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Id -> (euros, purpose)."""

    def read_ticket(self, number: str) -> str:
        """Read a ticket of the ticket system."""
        ticket = self.tickets.get(number)
        return f"error: there is no ticket {number}" if ticket is None else f"{number}: {ticket.text}"

    def book_room(self, day: str, meeting: str) -> str:
        """Book a room in the calendar."""
        if day not in _DAYS:
            return f"error: {day} is no working day"
        self.bookings.append((day, meeting))
        return f"room booked on {day} for {meeting}"

    def file_expense(self, euros: int, purpose: str) -> str:
        """File an expense."""
        name = f"E-{len(self.expenses) + 41}"
        self.expenses[name] = (int(euros), purpose)
        return f"filed as {name}"

    def add_note(self, number: str, text: str) -> str:
        """Write a note on an open ticket."""
        ticket = self.tickets.get(number)
        if ticket is None or ticket.is_closed:
            return f"error: {number} takes no notes"
        ticket.notes.append(text)
        return f"noted on {number}"

    def close_ticket(self, number: str) -> str:
        """Close a ticket."""
        ticket = self.tickets.get(number)
        if ticket is None or ticket.is_closed:
            return f"error: {number} is not open"
        ticket.is_closed = True
        missing = self.unreferenced(ticket)
        remark = f" Returned by accounting: {', '.join(missing)} is not referenced on {number}." if missing else ""
        return f"{number} closed.{remark}"

    def unreferenced(self, ticket: Ticket) -> list[str]:
        """Return the expenses that no note of the ticket mentions."""
        return [name for name in self.expenses if not any(name in note for note in ticket.notes)]


def office_agent(desk: OfficeDesk, *, max_iters: int = 8) -> dspy.ReAct:
    """Return the agent: an ordinary `dspy.ReAct` program over the desk's tools."""
    tools = [desk.read_ticket, desk.book_room, desk.file_expense, desk.add_note, desk.close_ticket]
    signature: Any = "request -> answer"
    return dspy.ReAct(signature, tools=tools, max_iters=max_iters)


def office_environment(desk: OfficeDesk) -> ForkingEnvironment:
    """Return the environment that gives every run a desk of its own, with its task's ticket on it."""
    return deepcopy_environment(desk, reset=lay_out)


def office_metric(desk: OfficeDesk) -> Any:
    """Return the metric: 1 when the ticket is closed, its work is done, and accounting has nothing to say."""

    def settled(example: Any, prediction: Any, trace: Any = None) -> float:
        world: OfficeDesk = current_world(desk)
        ticket = world.tickets.get(example.number)
        done = (
            ticket is not None
            and ticket.is_closed
            and world.bookings == example.bookings
            and sorted(world.expenses.values()) == sorted(example.expenses)
        )
        return float(done and ticket is not None and not world.unreferenced(ticket))

    return settled


def office_tasks(count: int, *, seed: int = 0, plain_share: float = 0.25, shortcuts: int = 0) -> list[dspy.Example]:
    """Return tasks; `request` is their only input.

    Args:
        count: How many, distinct.
        seed: Decides which.
        plain_share: How many of them have no expense, so that the convention does not matter.
        shortcuts: How many have their ticket's text in the request, so that everything is decided on the first entry.
    """
    rng = random.Random(seed)
    plain = round(count * plain_share)
    kinds = ["plain"] * plain + ["shortcut"] * shortcuts + ["full"] * (count - plain - shortcuts)
    rng.shuffle(kinds)
    return [_task(f"T-{100 + seed * 1000 + index}", kind, rng) for index, kind in enumerate(kinds)]


def _task(number: str, kind: str, rng: random.Random) -> dspy.Example:
    day, meeting = rng.choice(_DAYS), rng.choice(_MEETINGS)
    euros, purpose = rng.randrange(10, 400), rng.choice(_PURPOSES)
    wishes = [] if kind == "shortcut" else [f"Book a room on {day} for the {meeting}."]
    wishes += [] if kind == "plain" else [f"File {euros} euros for {purpose}."]
    text = " ".join([*wishes, "Then close the ticket."])
    bookings = [] if kind == "shortcut" else [(day, f"the {meeting}")]
    expenses = [] if kind == "plain" else [(euros, purpose)]
    already = kind == "shortcut"
    request = f"Please handle ticket {number}."
    if already:
        request = f"Please close ticket {number}. Its expense of {euros} euros for {purpose} is filed as E-41."
    return dspy.Example(
        request=request,
        number=number,
        text=text,
        bookings=bookings,
        expenses=expenses,
        filed=expenses if already else [],
    ).with_inputs("request")


def lay_out(desk: OfficeDesk, example: Any) -> None:
    """Put one ticket on an empty desk."""
    desk.tickets = {example.number: Ticket(example.number, example.text)}
    desk.bookings = []
    desk.expenses = {f"E-{index + 41}": expense for index, expense in enumerate(example.filed)}
