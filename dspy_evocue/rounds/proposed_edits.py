"""What a proposal comes to as an edit: a text, or a skill of primitive operations on what a predictor returns.

A skill is checked before anything is run; the checker's words go back to the proposer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dspy_evocue.edits import Edit, InstructionEdit
from dspy_evocue.proposal_checks import ProposedEdit


def edit_of(proposed: ProposedEdit) -> Edit:
    """Return the edit that a proposal comes to while no rule is fitted to it.

    Raises:
        ValueError: When its skill cannot be read.
        SkillError: When its skill is not sound.
    """
    scope: Any = proposed.scope
    if proposed.skill is None:
        at: Any = proposed.at[0] if len(proposed.at) == 1 else proposed.at
        return InstructionEdit(at=at, text=proposed.text, scope=scope)
    from dspy_evocue.control.skill_edit import SkillEdit
    from dspy_evocue.control.skills import operation_from_dict

    written = proposed.skill.get("operations")
    if (
        not isinstance(written, Sequence)
        or isinstance(written, str)
        or not all(isinstance(one, Mapping) for one in written)
    ):
        raise ValueError(
            f'a skill must read {{"operations": [{{"operation": ..., "instruction": ...}}]}}, got {proposed.skill!r}'
        )
    try:
        operations = tuple(map(operation_from_dict, written))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an operation of the skill cannot be read: {type(error).__name__}: {error}") from error
    return SkillEdit(at=proposed.at, operations=operations, scope=scope)


def edit_problems(proposed: ProposedEdit) -> tuple[str, ...]:
    """Return why a proposal comes to no edit, as sentences for its author; empty when it does."""
    from dspy_evocue.control.errors import SkillError

    try:
        edit_of(proposed)
    except (ValueError, TypeError, SkillError) as error:
        text = str(error)
        return (f"{text[:1].upper()}{text[1:].rstrip('.')}.",)
    return ()


def skill_problems(proposed: ProposedEdit) -> tuple[str, ...]:
    """Return what is wrong with a proposal's skill; of an instruction, `LMProposer` finds the problems by itself."""
    return () if proposed.skill is None or not proposed.at else edit_problems(proposed)


def edit_length(edit: Edit) -> int:
    """Return the number of an edit's operations: 1 for a text."""
    return len(getattr(edit, "operations", ())) or 1


def operations_text() -> str:
    """Return what a proposer is told about the operations of a skill."""
    from dspy_evocue.control.operations import describe_operations
    from dspy_evocue.control.revising import REVISING_OPERATIONS

    return (
        "In place of an instruction an edit may be a skill: operations on what the predictor has just returned (the "
        'draft), before the program sees it. Write skill = {"operations": [{"operation": "revise", "instruction": '
        '"..."}, ...]}, 1 to 6 of them, and say in text what it is for. An operation may have "branches": '
        '[{"outcome": "valid", "target": "success"}, ...] to a later position, "success" or "failure". Each operation '
        "costs a model call at every entry.\n" + describe_operations(REVISING_OPERATIONS)
    )
