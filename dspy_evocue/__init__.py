"""EvoCUE: learn at which call site of a DSPy program a lesson acts, with evidence that it helped there."""

from dspy_evocue.artifact import attach, load
from dspy_evocue.call_sites import CallSite
from dspy_evocue.edits import InstructionEdit
from dspy_evocue.observer import mark_node
from dspy_evocue.rules import FeatureTest, Rule

__all__ = [
    "CallSite",
    "FeatureTest",
    "InstructionEdit",
    "Rule",
    "attach",
    "load",
    "mark_node",
]
