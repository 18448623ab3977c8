"""A copy that carries edits has parameters of its own, whatever kind they are."""

import dspy

from dspy_evocue import CallSite, InstructionEdit, attach
from dspy_evocue.control import ControlGraph, ControlProgram, Edge, Node


def test_a_copy_has_a_graph_of_its_own():
    program = ControlProgram(
        ControlGraph(
            nodes=(Node("write", "draft"), Node("stop", "stop")), edges=(Edge("write", "stop"),), start="write"
        ),
        parts={"draft": dspy.Predict("task -> action")},
    )
    copied = attach(program, InstructionEdit(at=CallSite("*", "draft"), text="Lesson."))
    assert copied.control is not program.control
    assert copied.control.graph == program.control.graph
