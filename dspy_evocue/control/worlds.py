"""Interactive worlds: what an agent that writes code acts on, and how EvoCUE restores one for a trial.

A world is opened for one run. `code_world` has a small one of this project, `appworld` an adapter for AppWorld.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from dspy_evocue.control.errors import WorldError


@runtime_checkable
class World(Protocol):
    """One episode of an interactive world. Used by one thread at a time.

    Everything that `execute` and `instruction` return is public: the agent and the learner may see it. What `evaluate`
    knows is not; only its number leaves it.
    """

    @property
    def instruction(self) -> str:
        """What to do, with whatever the agent must know to act: the API, how to finish."""
        ...

    def execute(self, code: str) -> str:
        """Run a piece of code; return what it printed or what went wrong, as the agent sees it, without raising."""
        ...

    def is_complete(self) -> bool:
        """Say whether the agent has declared the task done."""
        ...

    def evaluate(self) -> float | None:
        """Return the score of the episode as it stands, from 0 to 1; None when it cannot be scored. Changes nothing."""
        ...

    def save_state(self) -> Any:
        """Return a token for the present state of the world, variables of the code included."""
        ...

    def load_state(self, token: Any) -> None:
        """Go back to the state of a token of this world; the token stays good."""
        ...

    def close(self) -> None:
        """Free what the world holds. It may be called twice."""
        ...


FAILURE_PREFIX = "Execution failed."
"""How the observation of an action that failed begins, in every world of this package (and in AppWorld)."""


class WorldEnvironment:
    """A world as EvoCUE's environment: reset for an example, take a snapshot, go back to it.

    The program opens its world through `open`, so that both see the same one. Each thread has a world of its own.

    Args:
        open_world: Opens a fresh world from the inputs of an example, given as keywords.

    Example:
        ```python
        environment = WorldEnvironment(open_code_world)
        program = ControlProgram.code_agent(environment.open, inputs=("task_id",))
        paired_trial(program, edit, example, metric, environment=environment)
        ```
    """

    def __init__(self, open_world: Callable[..., World]) -> None:
        self._open_world = open_world
        self._held = threading.local()

    def open(self, **inputs: Any) -> World:
        """Return the world that was reset or restored for this run, or a fresh one when there is none."""
        world = getattr(self._held, "world", None)
        if world is None:
            return self._open_world(**inputs)
        return _Borrowed(world)

    def reset(self, example: Any) -> None:
        """Open a fresh world for the example, in place of the one before."""
        self.release()
        self._held.world = self._open_world(**dict(example.inputs()))

    def snapshot(self) -> Any:
        """Return a token for the present state of this thread's world."""
        return self._current().save_state()

    def restore(self, token: Any) -> None:
        """Go back to the state of a token."""
        self._current().load_state(token)

    def release(self) -> None:
        """Close this thread's world; the next `open` opens a fresh one."""
        world = getattr(self._held, "world", None)
        if world is not None:
            self._held.world = None
            world.close()

    def _current(self) -> World:
        world = getattr(self._held, "world", None)
        if world is None:
            raise WorldError("reset(example) must come before snapshot and restore, got none in this thread")
        return world


class _Borrowed:
    """The environment's world in the hands of one run, which may end without closing it."""

    def __init__(self, world: World) -> None:
        self.instruction = world.instruction
        self.execute = world.execute
        self.is_complete = world.is_complete
        self.evaluate = world.evaluate
        self.save_state = world.save_state
        self.load_state = world.load_state

    def close(self) -> None:
        """Leave the world open: it belongs to the environment."""
