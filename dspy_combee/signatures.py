"""Every DSPy signature of Combee over GEPA. Wordings were chosen by `benchmarks/lesson_extraction.py`."""

from __future__ import annotations

import dspy


class ExtractLessons(dspy.Signature):
    """List every specific rule that the feedback in these records teaches.

    Each record shows what an assistant was given, what it answered, and feedback on the answer. Write one line a
    rule, in the form `[record id] rule`, and go through the records one by one so that none is left out. State the
    whole condition under which the rule holds and copy codes, labels, names and numbers exactly. Cite several ids
    when several records teach the same rule. Leave out general advice that would fit any task, and rules that are
    known already.
    """

    task: str = dspy.InputField(desc="the instruction that the assistant works under")
    known_rules: str = dspy.InputField(desc="rules that it has learned already")
    records: str = dspy.InputField(desc="the records, each headed by its [record id]")
    rules: str = dspy.OutputField(desc="one line a rule: [record id] rule")


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


class CombineInstructions(dspy.Signature):
    """Combine several proposed instructions for an assistant into one.

    Each proposal improves the current instruction in the light of other experience. Write one instruction that keeps
    every specific rule, fact, code, number and strategy of all proposals, and says each of them once.
    """

    current_instruction: str = dspy.InputField(desc="the instruction that the assistant works under")
    proposals: str = dspy.InputField(desc="the proposals, each headed by its number")
    new_instruction: str = dspy.OutputField(desc="the combined instruction and nothing else")
