"""The claims desk: an agent so short that a small model on a laptop's processor can carry it.

One predictor is entered twice: from the start, to name the claim, and from the tool that reads it, to write the note.
Accounting wants a code in the notes of travel claims and says so only when it returns one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import dspy

from dspy_evocue.environments import ForkingEnvironment, current_world, deepcopy_environment

CODE = "KST-7"
"""What accounting wants to see."""
IDEAS = (
    "When the claim is about travel, put the code KST-7 into the note.",
    "Thank accounting at the end of the note.",
)
"""What colleagues suppose; the first is right where the note is written, and of no use where the claim is named."""
_TRAVEL = ("train to Bonn", "hotel in Graz", "taxi to the airport", "flight to Oslo", "night bus to Lyon")
_OTHER = ("printer paper", "coffee beans", "a desk lamp", "two keyboards", "book on statistics")


@dataclass(slots=True)
class ClaimsDesk:
    """Claims and the notes that settle them. Its tools are its methods; it can be deep-copied."""

    claims: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def read_claim(self, number: str) -> str:
        """Read a claim."""
        return self.claims.get(number, f"error: there is no claim {number}")

    def settle_claim(self, number: str, note: str) -> str:
        """Settle a claim with a note for accounting."""
        if number not in self.claims:
            return f"error: there is no claim {number}"
        self.notes[number] = note
        if "travel" in self.claims[number] and CODE not in note:
            return f"Returned by accounting: the note on a travel claim must contain the code {CODE}."
        return f"{number} settled."


class WriteNote(dspy.Signature):
    """Handle an expense claim. If nothing was read yet, answer with the claim's number only.

    Once the claim was read, answer with a short note for accounting: what it is for, and the amount.
    """

    request: str = dspy.InputField()
    read_so_far: str = dspy.InputField()
    answer: str = dspy.OutputField(desc="the claim's number, or the note")


class ClaimsClerk(dspy.Module):
    """Name the claim, read it, write the note."""

    def __init__(self, desk: ClaimsDesk) -> None:
        """Take the desk's tools."""
        super().__init__()
        self.clerk = dspy.Predict(WriteNote)
        self.read_claim = dspy.Tool(desk.read_claim)
        self.settle_claim = dspy.Tool(desk.settle_claim)

    def forward(self, request: str) -> dspy.Prediction:
        """Handle one claim."""
        named = self.clerk(request=request, read_so_far="(nothing)").answer
        number = next((word.strip(".:,") for word in str(named).split() if word.startswith("C-")), str(named))
        claim = self.read_claim(number=number)
        note = self.clerk(request=request, read_so_far=claim).answer
        remark = self.settle_claim(number=number, note=str(note))
        return dspy.Prediction(note=note, remark=remark)


def claims_clerk(desk: ClaimsDesk) -> dspy.Module:
    """Return the agent."""
    return ClaimsClerk(desk)


def claims_environment(desk: ClaimsDesk) -> ForkingEnvironment:
    """Return the environment that gives every run a desk of its own, with its task's claim on it."""

    def lay_out(own: ClaimsDesk, example: Any) -> None:
        own.claims = {example.number: example.claim}
        own.notes = {}

    return deepcopy_environment(desk, reset=lay_out)


def claims_metric(desk: ClaimsDesk) -> Any:
    """Return the metric: 1 when the claim is settled with its amount in the note, and accounting is content."""

    def settled(example: Any, prediction: Any, trace: Any = None) -> float:
        note = current_world(desk).notes.get(example.number, "")
        return float(str(example.euros) in note and (not example.is_travel or CODE in note))

    return settled


def claims_tasks(count: int, *, seed: int = 0) -> list[dspy.Example]:
    """Return tasks; `request` is their only input. Three of four are about travel."""
    rng = random.Random(seed)
    return [_task(f"C-{seed * 1000 + 101 + index}", index % 4 != 3, rng) for index in range(count)]


def _task(number: str, is_travel: bool, rng: random.Random) -> dspy.Example:
    euros, purpose = rng.randrange(11, 400), rng.choice(_TRAVEL if is_travel else _OTHER)
    claim = f"{number}, {'travel' if is_travel else 'office'}: {euros} euros for {purpose}."
    return dspy.Example(
        request=f"Please settle claim {number}.", number=number, claim=claim, euros=euros, is_travel=is_travel
    ).with_inputs("request")
