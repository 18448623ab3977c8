"""The explicit controller: programs whose control flow is data, and the skills that structural edits add to them."""

from dspy_evocue.control.check import check_skill
from dspy_evocue.control.draft import Draft, DraftState
from dspy_evocue.control.errors import (
    ControlError,
    DraftStateError,
    GraphError,
    RoutingError,
    SkillError,
    WorldError,
)
from dspy_evocue.control.faults import SkillProblem
from dspy_evocue.control.graph import ControlGraph
from dspy_evocue.control.machine import Limits
from dspy_evocue.control.operations import ERROR, OPERATIONS, describe_operations
from dspy_evocue.control.performing import Observation
from dspy_evocue.control.program import ControlProgram
from dspy_evocue.control.skills import Branch, Return, Skill, SkillOperation, returns_to
from dspy_evocue.control.wiring import Condition, Edge, Node
from dspy_evocue.control.worlds import World, WorldEnvironment

__all__ = [
    "ERROR",
    "OPERATIONS",
    "Branch",
    "Condition",
    "ControlError",
    "ControlGraph",
    "ControlProgram",
    "Draft",
    "DraftState",
    "DraftStateError",
    "Edge",
    "GraphError",
    "Limits",
    "Node",
    "Observation",
    "Return",
    "RoutingError",
    "Skill",
    "SkillError",
    "SkillOperation",
    "SkillProblem",
    "World",
    "WorldEnvironment",
    "WorldError",
    "check_skill",
    "describe_operations",
    "returns_to",
]
