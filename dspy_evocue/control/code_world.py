"""A small code world: invoices to pay over an API, with a house rule that the API does not mention.

Written by this project for its tests, figures and notebook. The house rule (every payment must carry its invoice's
reference in the form "number/vendor") acts late: long after the first piece of code, when the first payment is made.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from dspy_evocue.control.code_values import CodeError
from dspy_evocue.control.errors import WorldError
from dspy_evocue.control.interpreter import find_problem, run_code
from dspy_evocue.control.worlds import FAILURE_PREFIX

TaskKind = Literal["report", "direct", "search"]

HOUSE_RULE = "Every call of apis.payments.pay must be given reference='<invoice number>/<vendor>'."
"""What an agent must know to get the paying tasks right, in the words of a lesson."""

_API = """Write Python; print what you need to see. The API:
apis.invoices.search(vendor) -> the invoices of a vendor, each with number, vendor, amount and status
apis.invoices.show(number) -> one invoice
apis.payments.pay(number, reference='') -> a receipt
apis.supervisor.complete_task(answer) -> ends the task"""

_VENDORS = ("Alder", "Birch", "Cedar", "Elm", "Maple", "Rowan", "Willow", "Yew")


@dataclass(frozen=True, slots=True)
class CodeTask:
    """One task of the code world; everything but the instruction and the API is hidden from the agent."""

    task_id: str
    kind: TaskKind
    """ "report" pays nothing, "direct" pays one invoice that it names, "search" pays all open ones of a vendor."""
    instruction: str
    invoices: tuple[tuple[str, str, int, str], ...]
    """Number, vendor, amount and status ("open" or "paid") of each invoice."""
    to_pay: tuple[str, ...]
    answer: int


def make_task(task_id: str) -> CodeTask:
    """Return the task of this id, "<kind>-<seed>"; the same id is always the same task.

    Raises:
        ValueError: When the id has another form.
    """
    kind, _, seed = task_id.partition("-")
    if kind not in ("report", "direct", "search") or not seed.isdigit():
        raise ValueError(f"a task id must be report-<n>, direct-<n> or search-<n>, got {task_id!r}")
    rng = random.Random(task_id)
    vendor, other = rng.sample(_VENDORS, 2)
    open_count = rng.randint(2, 5)
    numbers = rng.sample(range(100, 1000), 9)
    invoices = tuple(
        (f"i{number}", vendor if place <= open_count else other, rng.randint(10, 900), "open" if place else "paid")
        for place, number in enumerate(numbers)
    )
    open_ones = tuple(one for one in invoices if one[1] == vendor and one[3] == "open")
    if kind == "report":
        return CodeTask(
            task_id,
            "report",
            f"How much do the open invoices of {vendor} come to in all? Give the sum as the answer.",
            invoices,
            (),
            sum(one[2] for one in open_ones),
        )
    if kind == "direct":
        number, _, amount, _ = open_ones[0]
        return CodeTask(
            task_id,
            "direct",
            f"Pay invoice {number} of {vendor}, {amount} in all, and give its amount as the answer.",
            invoices,
            (number,),
            amount,
        )
    return CodeTask(
        task_id,
        "search",
        f"Pay every open invoice of {vendor}, one at a time, and give the sum as the answer.",
        invoices,
        tuple(one[0] for one in open_ones),
        sum(one[2] for one in open_ones),
    )


@dataclass
class _Books:
    """What a run changes."""

    status: dict[str, str]
    payments: list[tuple[str, str]] = field(default_factory=list)
    answer: Any = None
    is_complete: bool = False
    variables: dict[str, Any] = field(default_factory=dict)


class CodeWorld:
    """One episode of the code world; see `worlds.World` for the methods."""

    def __init__(self, task: CodeTask) -> None:
        """Open a fresh episode of the task."""
        self.task = task
        self._books = _Books(status={number: status for number, _, _, status in task.invoices})

    @property
    def instruction(self) -> str:
        """The task and the API; the house rule is in neither."""
        return f"{self.task.instruction}\n\n{_API}"

    def execute(self, code: str) -> str:
        """Run a piece of code in the small interpreter and return what it printed, or what went wrong."""
        if self._books.is_complete:
            return f"{FAILURE_PREFIX} The task has been completed; nothing more can be run."
        try:
            return run_code(code, self._books.variables, self._apps()).rstrip() or "(no output)"
        except CodeError as error:
            return f"{FAILURE_PREFIX} {error}"

    def is_complete(self) -> bool:
        """Say whether `complete_task` was called."""
        return self._books.is_complete

    def evaluate(self) -> float:
        """Return 1.0 for the right answer and exactly the right payments, each with its reference, else 0.0."""
        vendors = {number: vendor for number, vendor, _, _ in self.task.invoices}
        wanted = sorted((number, f"{number}/{vendors[number]}") for number in self.task.to_pay)
        is_right = self._books.is_complete and self._books.answer == self.task.answer
        return float(is_right and sorted(self._books.payments) == wanted)

    def save_state(self) -> _Books:
        """Return a copy of everything that a run changes."""
        return copy.deepcopy(self._books)

    def load_state(self, token: Any) -> None:
        """Go back to a copy that `save_state` made."""
        if not isinstance(token, _Books):
            raise WorldError(f"a token must come from save_state of a code world, got {type(token).__name__}")
        self._books = copy.deepcopy(token)

    def close(self) -> None:
        """Do nothing: the world holds no resources."""

    def _apps(self) -> dict[str, dict[str, Callable[..., Any]]]:
        return {
            "invoices": {"search": self._search, "show": self._show},
            "payments": {"pay": self._pay},
            "supervisor": {"complete_task": self._complete},
        }

    def _search(self, vendor: str) -> list[dict[str, Any]]:
        return [self._show(number) for number, owner, _, _ in self.task.invoices if owner == vendor]

    def _show(self, number: str) -> dict[str, Any]:
        for known, vendor, amount, _ in self.task.invoices:
            if known == number:
                return {"number": number, "vendor": vendor, "amount": amount, "status": self._books.status[number]}
        raise CodeError(f"There is no invoice {number!r}.")

    def _pay(self, number: str, reference: str = "") -> str:
        invoice = self._show(number)
        if invoice["status"] != "open":
            raise CodeError(f"Invoice {number} is {invoice['status']}.")
        self._books.status[number] = "paid"
        self._books.payments.append((number, reference))
        return f"paid {invoice['amount']} for {number}"

    def _complete(self, answer: Any = None) -> str:
        self._books.answer, self._books.is_complete = answer, True
        return "completed"


def check_code(draft: str) -> str:
    """Return why the small interpreter could not run the code at all; what `code_agent(check=...)` takes."""
    return find_problem(draft)


def open_code_world(task_id: str) -> CodeWorld:
    """Open a fresh episode of the task with this id; what `ControlProgram.code_agent` takes."""
    return CodeWorld(make_task(task_id))
