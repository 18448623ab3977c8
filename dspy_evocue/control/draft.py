"""The draft: action text that has been written and not yet executed (EvoCUE, draft states).

Pure: knows neither dspy nor a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class DraftState(str, Enum):
    """What stands between the model's words and the world."""

    EMPTY = "empty"
    """No action is pending."""
    PENDING_VALID = "pending-valid"
    """An action is pending and nothing is known to be wrong with it."""
    PENDING_INVALID = "pending-invalid"
    """An action is pending that must not be executed as it is."""

    def __str__(self) -> str:
        # The format of a mixed-in enum differs between Python 3.11 and 3.12.
        return self.value


ANY_DRAFT = (DraftState.EMPTY, DraftState.PENDING_VALID, DraftState.PENDING_INVALID)
PENDING = (DraftState.PENDING_VALID, DraftState.PENDING_INVALID)


@dataclass(frozen=True, slots=True)
class Draft:
    """Unexecuted action text with what is wrong with it."""

    text: str = ""
    """The action as it would be executed; empty when no action is pending."""
    problem: str = ""
    """Why it must not be executed as it is; empty when nothing is known to be wrong."""
    is_pending: bool = False
    """Whether there is an action at all: a model may write a blank one, which is pending and invalid."""

    def __post_init__(self) -> None:
        if not self.is_pending and (self.text or self.problem):
            raise ValueError(f"an empty draft must have no text and no problem, got {self.text!r}, {self.problem!r}")

    @classmethod
    def pending(cls, text: str, problem: str = "") -> Draft:
        """Return the pending draft of this text; a blank text is invalid whatever `problem` says."""
        if not text.strip():
            return cls(text, problem or "the action is blank", is_pending=True)
        return cls(text, problem, is_pending=True)

    @property
    def state(self) -> DraftState:
        """The draft state, which is all that the checker knows of a draft."""
        if not self.is_pending:
            return DraftState.EMPTY
        return DraftState.PENDING_INVALID if self.problem else DraftState.PENDING_VALID
