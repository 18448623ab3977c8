"""Whether a skill may be compiled into a graph, and if not, why (EvoCUE, static checks before any run).

First the form (operations and nodes that exist, branches that go forward), then the draft states, by following every
run of the program with the skill in it. Pure: knows neither dspy nor a model.
"""

from __future__ import annotations

from dspy_evocue.control.faults import SkillProblem, find_problems
from dspy_evocue.control.graph import ControlGraph
from dspy_evocue.control.skills import Skill


def check_skill(skill: Skill, graph: ControlGraph) -> tuple[SkillProblem, ...]:
    """Return every problem of the skill on this graph; empty when it is sound.

    Sound means: in no run, whatever the models say and the features are, does an operation start with a draft that it
    does not accept, or a skill end in a way that it declares no return for. The rest of the program is checked with
    it, since a skill may return with a draft that a later node refuses.

    Returns:
        One problem each: `str(problem)` is one sentence, and `problem.trace` is a run from the start of the program to
        the fault (empty when the form is wrong, so that nothing could be run).
    """
    return find_problems(skill, graph.wiring, graph.operations)
