"""The DSPy signatures of the primitive operations: what each model call is shown and asked for.

An operation may be given another signature: its input fields must be of those that the table lets it read, and its
last output field is what it writes (the text, the problem, the note); `check_goals` has two lists.
"""

from __future__ import annotations

import dspy


class WriteCode(dspy.Signature):
    """Work on the task step by step by writing Python code that is run against an API, one short piece at a time.

    You see the task and every piece of code that was run so far with what it printed. Write only the next piece: print
    what you need to see, and do not guess what an API returns. Variables keep their values. When the task is done,
    finish it in the way that the task says.
    """

    task: str = dspy.InputField(desc="what to do, and the API")
    history: str = dspy.InputField(desc="the code that was run so far, and what came back")
    notes: str = dspy.InputField(desc="notes to yourself; may be empty")
    code: str = dspy.OutputField(desc="the next piece of Python code, nothing else")


class ReviseCode(dspy.Signature):
    """Look at a piece of Python code that is about to be run. Return it corrected, or exactly as it is."""

    task: str = dspy.InputField(desc="what to do, and the API")
    history: str = dspy.InputField(desc="the code that was run so far, and what came back")
    notes: str = dspy.InputField(desc="notes to yourself; may be empty")
    draft: str = dspy.InputField(desc="the code that has not been run yet")
    problem: str = dspy.InputField(desc="what is known to be wrong with it; may be empty")
    code: str = dspy.OutputField(desc="the code to run instead, nothing else")


class ValidateAction(dspy.Signature):
    """Say whether an action that is about to be executed may be executed as it is."""

    task: str = dspy.InputField(desc="what to do")
    history: str = dspy.InputField(desc="the actions that were executed so far, and what came back")
    draft: str = dspy.InputField(desc="the action that has not been executed yet")
    problem: str = dspy.OutputField(desc="why it must not be executed as it is; empty when it may")


class Reflect(dspy.Signature):
    """Write one short note that will help with the next steps of the task; leave it empty when there is none."""

    task: str = dspy.InputField(desc="what to do")
    history: str = dspy.InputField(desc="the actions that were executed so far, and what came back")
    notes: str = dspy.InputField(desc="the notes so far")
    note: str = dspy.OutputField(desc="the new note")


class CheckGoals(dspy.Signature):
    """List what the task requires, and say which requirements the history already shows to be satisfied.

    A requirement is observed only if an observation in the history shows it; intending to do it is not enough.
    """

    task: str = dspy.InputField(desc="what to do")
    history: str = dspy.InputField(desc="the actions that were executed so far, and what came back")
    observed: list[str] = dspy.OutputField(desc="requirements that an observation shows as satisfied")
    missing: list[str] = dspy.OutputField(desc="requirements that no observation shows as satisfied")
