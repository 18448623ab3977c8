"""Every DSPy signature of Combee over GEPA. Wordings were chosen by `benchmarks/lesson_extraction.py`."""

from __future__ import annotations

import dspy
from pydantic import BaseModel, Field


class ExtractedLesson(BaseModel):
    """One specific rule."""

    record_id: str = Field(description="the id of the record that teaches it")
    rule: str = Field(description="the whole rule in one sentence: When <its condition>, <what follows from it>")


class ExtractLessons(dspy.Signature):
    """List the specific rule that the feedback of each record teaches: one lesson for each record, none left out.

    State the whole condition of a rule and copy codes, labels, names and numbers exactly. Leave out general advice that
    would fit any task.
    """

    records: str = dspy.InputField(desc="the records, each headed by its [record id]")
    lessons: list[ExtractedLesson] = dspy.OutputField(desc="one lesson for each record, in the order of the records")


class ReviseLessons(dspy.Signature):
    """Tidy a numbered list of rules without losing any of them.

    Answer with operations, one a line; rules that you do not mention stay as they are:
    `MERGE 2, 5: one text that says everything both rules say` when rules overlap,
    `DROP 4` when another rule says all that rule 4 says,
    `GROUP 1, 3: heading` to put related rules together.
    Keep every code, label, name, number and condition in a merged text.
    """

    rules: str = dspy.InputField(desc="the rules, one a line, each with its number")
    operations: str = dspy.OutputField(desc="one operation a line, or NONE")


class ReviseContradictingLessons(dspy.Signature):
    """Tidy a numbered list of rules without losing any of them.

    Answer with operations, one a line; rules that you do not mention stay as they are:
    `MERGE 2, 5: one text that says everything both rules say` when rules overlap,
    `DROP 4` when another rule says all that rule 4 says,
    `GROUP 1, 3: heading` to put related rules together.
    Keep every code, label, name, number and condition in a merged text.
    Some pairs may contradict each other. Where they do, `DROP` the side with less evidence; where both can hold, keep
    both, or `MERGE` them into one text that says when each holds.
    """

    rules: str = dspy.InputField(desc="the rules, one a line, each with its number")
    contradictions: str = dspy.InputField(desc="pairs of numbers, each side with the records that taught it")
    operations: str = dspy.OutputField(desc="one operation a line, or NONE")


class CombineInstructions(dspy.Signature):
    """Combine several proposed instructions for an assistant into one.

    Each proposal improves the current instruction in the light of other experience. Write one instruction that keeps
    every specific rule, fact, code, number and strategy of all proposals, and says each of them once.
    """

    current_instruction: str = dspy.InputField(desc="the instruction that the assistant works under")
    proposals: str = dspy.InputField(desc="the proposals, each headed by its number")
    new_instruction: str = dspy.OutputField(desc="the combined instruction and nothing else")
