"""The code agent: the six-node controller with its parts, for any interactive world (EvoCUE, the controller)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import dspy

from dspy_combee.runtime.python_syntax import parse_source
from dspy_evocue.control.code_agent_graph import code_agent_graph
from dspy_evocue.control.machine import Limits
from dspy_evocue.control.parts import Part
from dspy_evocue.control.performing import Observation
from dspy_evocue.control.program import ControlProgram
from dspy_evocue.control.signatures import CheckGoals, Reflect, ReviseCode, WriteCode
from dspy_evocue.control.worlds import FAILURE_PREFIX, World


def build_code_agent(
    open_world: Callable[..., World],
    *,
    inputs: tuple[str, ...] | None = None,
    parts: Mapping[str, Part] | None = None,
    check: Callable[..., str] | None = None,
    features: Mapping[str, Callable[..., str]] | None = None,
    limits: Limits | None = None,
    completion_marker: str = "complete_task",
    program_class: type[ControlProgram] = ControlProgram,
) -> ControlProgram:
    """Return a program that works on a world's task by writing code: start, prepare, pre_commit, commit, route, stop.

    Its prediction has `completed` (whether the agent declared the task done), `score` (the world's evaluation, or None)
    and the account that every controller gives. A world is opened for each run and closed at its end.

    Args:
        open_world: Opens a fresh world; called with the program's inputs as keywords.
        inputs: The names of the program's inputs; None for the parameters of `open_world`.
        parts: Parts in place of the default ones: "draft", "revise", "reflect", "check_goals" (DSPy modules whose last
            output is what they write), or "validate" (a module, or a function of the draft).
        check: What says why a piece of code must not be run, empty when it may; None for a check of Python's syntax.
            A "validate" part replaces it.
        features: More features for start conditions, besides the built-in ones and "completion": whether the code that
            is pending would declare the task done ("called"), a piece already did ("seen"), or neither ("none").
        limits: What one run may spend.
        completion_marker: The text by which such code is known.
        program_class: The class to make.

    Example:
        ```python
        agent = ControlProgram.code_agent(open_code_world)
        agent = agent.with_instruction("recurring", "prepare", "Print what you get before you use it.")
        agent(task_id="search-1").score
        ```
    """
    names = tuple(inspect.signature(open_world).parameters) if inputs is None else tuple(inputs)
    if not names or "inputs" in names:
        raise ValueError("inputs must be given where open_world does not name its parameters, got none")

    def start(**view: Any) -> dict[str, Any]:
        world = open_world(**{name: view[name] for name in names})
        return {"world": world, "task": world.instruction}

    def completion(draft: str, history: str) -> str:
        if completion_marker in draft:
            return "called"
        return "seen" if completion_marker in history else "none"

    return program_class(
        code_agent_graph(),
        {
            "draft": dspy.Predict(WriteCode),
            "revise": dspy.Predict(ReviseCode),
            "reflect": dspy.Predict(Reflect),
            "check_goals": dspy.Predict(CheckGoals),
            "validate": check or find_syntax_error,
            "commit": _execute,
            "start": start,
            "route": _route,
            "stop": _score,
            **(parts or {}),
        },
        inputs=names,
        features={"completion": completion, **(features or {})},
        limits=limits,
        on_end=_close,
    )


def find_syntax_error(draft: str) -> str:
    """Return why the code is not Python, in one sentence; empty when it is."""
    try:
        parse_source(draft)
    except SyntaxError as error:
        return f"Syntax error in line {error.lineno}: {error.msg}."
    except ValueError as error:
        return f"The code cannot be read: {error}."
    except (RecursionError, MemoryError):
        return "The code is nested too deeply."
    return ""


def _execute(draft: str, world: World) -> Observation:
    text = world.execute(draft)
    return Observation(text, succeeded=not text.startswith(FAILURE_PREFIX))


def _route(world: World) -> str:
    return "finished" if world.is_complete() else "continue"


def _score(world: World) -> dict[str, Any]:
    return {"completed": world.is_complete(), "score": world.evaluate()}


def _close(world: World | None) -> None:
    if world is not None:
        world.close()
