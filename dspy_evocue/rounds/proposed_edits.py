"""What a proposal comes to as an edit: a text, or a skill of primitive operations.

On an explicit controller a skill runs on an edge of its graph; on any other program, between a predictor's output and
the program seeing it. Either is checked before anything is run; the checker's words go back to the proposer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from dspy_evocue.edits import Edit, InstructionEdit
from dspy_evocue.proposal_checks import ProposedEdit
from dspy_evocue.rules import Rule

Part = TypeVar("Part")


def edit_of(proposed: ProposedEdit, program: Any) -> Edit:
    """Return the edit that a proposal comes to on this program while no further rule is fitted to it.

    Raises:
        ValueError: When its skill cannot be read.
        SkillError: When its skill is not sound.
    """
    from dspy_evocue.control.graph_skill_edit import GraphSkillEdit
    from dspy_evocue.control.program import ControlProgram
    from dspy_evocue.control.skill_edit import SkillEdit
    from dspy_evocue.control.skills import operation_from_dict, return_from_dict

    scope: Any = proposed.scope
    at: Any = proposed.at[0] if len(proposed.at) == 1 else proposed.at
    if proposed.skill is None:
        return InstructionEdit(at=at, text=proposed.text, scope=scope)
    operations = _read(proposed.skill, "operations", operation_from_dict, _OPERATIONS_FORM)
    if not isinstance(program, ControlProgram):
        return SkillEdit(at=at, operations=operations, scope=scope)
    returns = _read(proposed.skill, "returns", return_from_dict, _RETURNS_FORM)
    return GraphSkillEdit(at=at, operations=operations, returns=returns, scope=scope, when=_condition(proposed.skill))


_OPERATIONS_FORM = '{"operations": [{"operation": ..., "instruction": ...}]}'
_RETURNS_FORM = '{"returns": [{"status": "success", "draft": "pending-valid", "target": a node}]}'


def _read(
    skill: Mapping[str, Any], name: str, read: Callable[[Mapping[str, Any]], Part], form: str
) -> tuple[Part, ...]:
    written: Any = skill.get(name)
    is_list = isinstance(written, Sequence) and not isinstance(written, str)
    if not is_list or not all(isinstance(one, Mapping) for one in written):
        raise ValueError(f"a skill must read {form}, got {dict(skill)!r}")
    try:
        return tuple(map(read, written))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the skill's {name} cannot be read: {type(error).__name__}: {error}") from error


def _condition(skill: Mapping[str, Any]) -> Rule:
    written = skill.get("when") or {}
    if not isinstance(written, Mapping) or not all(isinstance(value, str) for value in written.values()):
        raise ValueError(f'a start condition must read {{"when": {{feature: value}}}}, got {written!r}')
    return Rule.of(**{str(name): value for name, value in written.items()})


def edit_problems(proposed: ProposedEdit, program: Any) -> tuple[str, ...]:
    """Return why a proposal comes to no edit of this program, as sentences for its author; empty when it does."""
    from dspy_evocue.control.graph_skill_edit import GraphSkillEdit, find_edit_problems
    from dspy_evocue.control.program import require_edits

    try:
        edit = edit_of(proposed, program)
        if isinstance(edit, GraphSkillEdit):
            if problems := find_edit_problems(edit, program.graph):
                return problems
            require_edits(program, [edit], graph=program.graph)
    except (ValueError, TypeError) as error:
        text = str(error)
        return (f"{text[:1].upper()}{text[1:].rstrip('.')}.",)
    return ()


def fit_together(program: Any, edits: Sequence[Edit]) -> bool:
    """Say whether the program can carry all of these edits at once: skills on one graph must be sound together."""
    from dspy_evocue.control.errors import SkillError
    from dspy_evocue.control.program import require_edits

    on_edges = [edit for edit in edits if edit.acts_on == "edge"]
    if not on_edges:
        return True
    try:
        require_edits(program, on_edges, graph=program.graph)
    except SkillError:
        return False
    return True


def skill_problems(proposed: ProposedEdit, program: Any) -> tuple[str, ...]:
    """Return what is wrong with a proposal's skill; of an instruction, `LMProposer` finds the problems by itself."""
    return () if proposed.skill is None or not proposed.at else edit_problems(proposed, program)


def edit_length(edit: Edit) -> int:
    """Return the number of an edit's operations: 1 for a text."""
    return len(getattr(edit, "operations", ())) or 1


def operations_text(program: Any) -> str:
    """Return what a proposer is told about skills on this program: their form, and what each operation does."""
    from dspy_evocue.control.operations import describe_operations
    from dspy_evocue.control.program import ControlProgram
    from dspy_evocue.control.revising import REVISING_OPERATIONS

    if isinstance(program, ControlProgram):
        return f"{_ON_EDGES}\n{program.describe()}\nThe operations:\n{describe_operations(program.graph.operations)}"
    return f"{_ON_PREDICTIONS}\n{describe_operations(REVISING_OPERATIONS)}"


_BRANCHES = (
    'An operation may have "branches": [{"outcome": "valid", "target": "success"}, ...] to a later position, "success" '
    'or "failure"'
)
_ON_PREDICTIONS = (
    "In place of an instruction an edit may be a skill: operations on what the predictor has just returned (the "
    'draft), before the program sees it. Write skill = {"operations": [{"operation": "revise", "instruction": '
    f'"..."}}, ...]}}, 1 to 6 of them, and say in text what it is for. {_BRANCHES}. Each operation costs a model call '
    "at every entry."
)
_ON_EDGES = (
    "In place of an instruction an edit may be a skill: 1 to 6 operations that run on an edge of the program's graph, "
    "before control reaches the edge's target. Name the edge in at, say in text what the skill is for, and write "
    'skill = {"operations": [{"operation": "revise", "instruction": "..."}, ...], "returns": [{"status": "success" or '
    '"failure", "draft": a draft state, "target": a node}, ...], "when": {feature: value}}. '
    f'{_BRANCHES}; a branch may also ask for a "draft" state. After a reply that cannot be read the skill ends in '
    "failure. Declare a return for each status and each draft state in which the skill can end. The start condition "
    "(when, at most two features) may be left out: trials find out when the skill helps. Every operation takes a step "
    "of the run's own budget, and one that a model performs a model call."
)
