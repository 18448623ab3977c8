"""What is wrong with a skill on a wiring, one sentence a problem: first its form, then its draft states.

Pure: knows neither dspy nor a model. `check.check_skill` is the door to this file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dspy_evocue.control.compile import compile_skill, exit_name, matching_edges, node_name
from dspy_evocue.control.operations import OPERATIONS
from dspy_evocue.control.reach import StateProblem, TraceStep, explore
from dspy_evocue.control.skills import FAILURE, MAX_OPERATIONS, SUCCESS, Branch, Skill, SkillOperation
from dspy_evocue.control.wiring import Wiring


@dataclass(frozen=True, slots=True)
class SkillProblem:
    """One reason why a skill is refused."""

    sentence: str
    """What is wrong, in one sentence."""
    trace: tuple[TraceStep, ...] = ()
    """A run from the start of the program to the fault; empty when the skill has the wrong form to be run at all."""

    def __str__(self) -> str:
        return self.sentence


def find_problems(skill: Skill, wiring: Wiring, available: Sequence[str]) -> tuple[SkillProblem, ...]:
    """Return every problem of the skill on this wiring; empty when it may be compiled.

    Args:
        skill: The skill, sound or not.
        wiring: The program that it is for, with the skills that it already has.
        available: The primitive operations that the program has parts for.
    """
    form = find_form_problems(skill, wiring, available)
    if form:
        return tuple(SkillProblem(sentence) for sentence in form)
    compiled = compile_skill(wiring, skill)
    return tuple(
        SkillProblem(f"{_skill_sentence(skill, fault) or describe_fault(fault, compiled)}.", fault.trace)
        for fault in explore(compiled).problems
    )


def find_form_problems(skill: Skill, wiring: Wiring, available: Sequence[str]) -> tuple[str, ...]:
    """Return what keeps the skill from being compiled at all, one sentence each."""
    return tuple(
        (
            *_site_problems(skill, wiring),
            *_operation_problems(skill, available),
            *(
                problem
                for number, operation in enumerate(skill.operations, start=1)
                for problem in _branch_problems(number, operation, len(skill.operations))
            ),
            *_return_problems(skill, wiring),
        )
    )


def describe_fault(fault: StateProblem, wiring: Wiring) -> str:
    """Say in words, without a full stop, what goes wrong at a node."""
    node = wiring.node(fault.node)
    if fault.outcome is None:
        needs = " or ".join(map(str, node.row.requires))
        return f"{fault.node} ({node.row.name}) needs the draft to be {needs}, but can be reached with it {fault.draft}"
    if node.operation == "return":
        ended = node.name.removeprefix(f"{node.skill}.")
        return f"skill {node.skill} can end in {ended} with the draft {fault.draft}, but declares no return for that"
    return f"no edge leaves {fault.node} after {fault.outcome} with the draft {fault.draft}"


def _skill_sentence(skill: Skill, fault: StateProblem) -> str:
    """Say the fault in the skill's own words when it lies inside it; empty otherwise."""
    for status in (SUCCESS, FAILURE):
        if fault.node == exit_name(skill, status):
            return f"The skill can end in {status} with the draft {fault.draft}, but declares no return for that"
    for number, operation in enumerate(skill.operations, start=1):
        if fault.node == node_name(skill, number):
            needs = " or ".join(map(str, OPERATIONS[operation.operation].requires))
            return (
                f"Operation {number} ({operation.operation}) needs the draft to be {needs}, "
                f"but can be reached with it {fault.draft}"
            )
    return ""


def _site_problems(skill: Skill, wiring: Wiring) -> Iterator[str]:
    if not skill.skill_id:
        yield "A skill must have an id."
    if any(node.skill == skill.skill_id for node in wiring.nodes if node.skill):
        yield f"Another skill already has the id {skill.skill_id!r}."
    if not matching_edges(wiring, skill.source, skill.target):
        names = ", ".join(dict.fromkeys(edge.name for edge in wiring.edges if not edge.skill))
        yield f"There is no edge {skill.source} -> {skill.target}; the edges are {names}."


def _operation_problems(skill: Skill, available: Sequence[str]) -> Iterator[str]:
    count = len(skill.operations)
    if not 1 <= count <= MAX_OPERATIONS:
        yield f"A skill must have 1 to {MAX_OPERATIONS} operations, got {count}."
    for number, operation in enumerate(skill.operations, start=1):
        if operation.operation not in OPERATIONS:
            yield f"Operation {number} must be one of {', '.join(OPERATIONS)}, got {operation.operation!r}."
        elif operation.operation not in available:
            yield (
                f"Operation {number} ({operation.operation}) is not available in this program, "
                f"which has {', '.join(available) or 'none'}."
            )
        elif operation.instruction and "model" not in OPERATIONS[operation.operation].performers:
            yield f"Operation {number} ({operation.operation}) is performed by code and cannot be told anything."


def _branch_problems(number: int, operation: SkillOperation, count: int) -> Iterator[str]:
    for branch in operation.branches:
        yield from _target_problems(number, branch, count)
        row = OPERATIONS.get(operation.operation)
        if row is not None and branch.outcome is not None and branch.outcome not in row.outcomes:
            yield (
                f"A branch of operation {number} waits for {branch.outcome!r}, but {operation.operation} ends in "
                f"{', '.join(row.outcomes)}."
            )
    if sum(not branch.is_conditional for branch in operation.branches) > 1:
        yield f"Operation {number} has more than one unconditional branch."


def _target_problems(number: int, branch: Branch, count: int) -> Iterator[str]:
    target = branch.target
    if isinstance(target, str):
        if target not in (SUCCESS, FAILURE):
            yield (
                f"A branch of operation {number} must go to a later operation's number, '{SUCCESS}' or '{FAILURE}', "
                f"got {target!r}."
            )
    elif not isinstance(target, int) or isinstance(target, bool):
        yield f"A branch of operation {number} must go to a later operation's number, got {target!r}."
    elif target > count:
        yield f"A branch of operation {number} goes to operation {target}, but the skill has {count}."
    elif target <= number:
        yield f"A branch of operation {number} goes back to operation {target}; branches must go forward."


def _return_problems(skill: Skill, wiring: Wiring) -> Iterator[str]:
    own = [node.name for node in wiring.nodes if not node.skill]
    seen: set[tuple[str, str]] = set()
    for one in skill.returns:
        if one.status not in (SUCCESS, FAILURE):
            yield f"A return must be for '{SUCCESS}' or '{FAILURE}', got {one.status!r}."
        if one.target not in own:
            yield f"A return goes to {one.target!r}, which is not a node; the nodes are {', '.join(own)}."
        if (one.status, str(one.draft)) in seen:
            yield f"The skill declares two returns for {one.status} with the draft {one.draft}."
        seen.add((one.status, str(one.draft)))
