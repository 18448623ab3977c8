"""Every prompt of the EvoCUE learner: typed DSPy signatures, and the records that their fields hold.

A user replaces a prompt by passing another signature with the same fields. The texts speak of public information
only; what goes into the fields is decided in `residual_goals.py`, `knowledge.py` and `proposer.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import dspy
from pydantic import BaseModel, Field, create_model


class JudgedRequirement(BaseModel):
    """A requirement of the task, and whether the history shows that it is satisfied."""

    requirement: str = Field(description="one thing that the task asks for, in one sentence")
    status: Literal["observed", "missing"] = Field(description="observed only if a step shows that it is satisfied")
    step: int | None = Field(default=None, description="the number of the step that shows it; null when missing")


class WrittenCard(BaseModel):
    """A short requirement learned from an episode, with its source."""

    requirement: str = Field(description="what such tasks require, in one sentence that names no task")
    source_tasks: list[str] = Field(description="the ids of the episodes that show it")


class FragmentWanted(BaseModel):
    """A part of an episode to be shown in full."""

    task: str = Field(description="the id of a listed episode")
    first_step: int = Field(default=1, description="the number of the first step")
    last_step: int | None = Field(default=None, description="the number of the last step; null for the end")


class CandidateEdit(BaseModel):
    """A candidate edit of the agent's control program."""

    expected_effect: str = Field(description="what the agent does wrong, and what it will do instead, in one sentence")
    text: str = Field(
        description="the instruction to the agent, one or two sentences for any task: When <condition>, <what to do>"
    )
    at: list[str] = Field(
        description='the entries on which it acts, each as "source -> target"; one target may have several entries'
    )
    scope: Literal["call", "next_action", "skill"] = Field(
        default="call",
        description="call: this call; next_action: until the next action; skill: until the enclosing module ends",
    )
    cited_tasks: list[str] = Field(default_factory=list, description="the ids of the episodes that motivate it")
    skill: dict[str, Any] | None = Field(
        default=None, description="for a skill instead of an instruction: its operations as described; otherwise null"
    )


def naming_entries(signature: Any, entries: Sequence[str]) -> Any:
    """Return the signature with the entries that a candidate may choose named in the candidate's own description.

    A small model takes an id from elsewhere for an entry when the list stands in another field only. A signature whose
    candidates are of the user's own type is returned as it is.
    """
    if signature.output_fields["candidates"].annotation != list[CandidateEdit] or not entries:
        return signature
    choice = " or ".join(f'"{entry}"' for entry in entries)
    at = Field(description=f"the entries on which it acts, at least one of: {choice}")
    narrowed = create_model("CandidateEdit", __base__=CandidateEdit, __doc__=CandidateEdit.__doc__, at=(list[str], at))
    return signature.with_updated_fields("candidates", type_=list[narrowed])


class FindResidualGoals(dspy.Signature):
    """List what the task requires, and mark what the history shows as satisfied.

    Go through the task sentence by sentence, and through the conventions that the observations mention. A requirement
    is observed only if a numbered step shows that it is satisfied; saying so is not enough. Everything else is missing.
    """

    task: str = dspy.InputField(desc="what the agent was asked to do")
    history: str = dspy.InputField(desc="what the agent wrote and saw, as numbered steps")
    final_score: str = dspy.InputField(desc="the score after the end")
    requirements: list[JudgedRequirement] = dspy.OutputField()


class WriteKnowledgeCards(dspy.Signature):
    """Write down what tasks like these require, as short cards that each cite the episodes that show it.

    Prefer requirements that are easily overlooked. A card must hold for other tasks of the same kind, so it names no
    task, no person and no value that belongs to one episode only.
    """

    episodes: str = dspy.InputField(desc="past episodes with their ids, numbered steps and final scores")
    max_cards: int = dspy.InputField()
    cards: list[WrittenCard] = dspy.OutputField()


class ChooseFragments(dspy.Signature):
    """Choose the parts of past episodes that you need to read in full before you propose a change to the agent.

    Choose few: where good and bad episodes part, and where an unsatisfied requirement should have been met.
    """

    index: str = dspy.InputField(desc="episodes with outcomes and residual goals, and what was tried before")
    max_fragments: int = dspy.InputField()
    fragments: list[FragmentWanted] = dspy.OutputField()


class ProposeEdits(dspy.Signature):
    """Propose edits to the agent's control program: an instruction that the agent reads at one of its call sites.

    The model and the tools are fixed. What matters is *where* a lesson acts: on the first entry of a predictor it is
    read once, before anything was observed; on a recurring entry it is read again at each later step. Attach each
    lesson to the entry at which the agent makes the decision that went wrong. Write what to do and when, in one or two
    sentences that make sense for other tasks of the same kind. Do not repeat an edit that was tried before.
    """

    index: str = dspy.InputField(desc="episodes with outcomes and residual goals, and what was tried before")
    call_sites: str = dspy.InputField(desc="the entries of this program, with how often they were used")
    operations: str = dspy.InputField(
        desc="the operations that a skill may use; empty when only instructions are possible"
    )
    fragments: str = dspy.InputField(desc="parts of the episodes in full")
    untested_evidence: str = dspy.InputField(desc="ideas and cards that nobody has tested here")
    max_candidates: int = dspy.InputField()
    candidates: list[CandidateEdit] = dspy.OutputField(desc="the most promising first")


class ReviseEdits(dspy.Signature):
    """Revise proposed edits after a check that ran nothing: return each of them, corrected where the feedback asks.

    Keep what is right. Move an edit to other entries when the feedback shows that it is not read when it is needed.
    """

    call_sites: str = dspy.InputField(desc="the entries of this program, with how often they were used")
    operations: str = dspy.InputField(
        desc="the operations that a skill may use; empty when only instructions are possible"
    )
    proposed: list[CandidateEdit] = dspy.InputField()
    feedback: str = dspy.InputField(desc="what the check says of each, by number")
    candidates: list[CandidateEdit] = dspy.OutputField(desc="as many as were proposed, in the same order")
