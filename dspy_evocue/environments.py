"""The tools' world, and the three ways to bring it back to a checkpoint.

1. *Recorded observations* (no environment): tools before the checkpoint are not called, their results come from the
   tape. Right for tools without state; for others the control check of the trial notices.
2. *Re-execution* (`snapshot` returns None): the recorded tool calls run again in a fresh world, each result verified.
3. *Snapshot and restore*: the world is copied before every call of the recording, and put back.

Tools are usually methods of a stateful object. The helpers here give every run its own copy of that object and make
the tools act on it, so that many trials can share one program.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from dspy.dsp.utils.settings import settings

from dspy_evocue.errors import EnvironmentFault

ENVIRONMENT_KEY = "_evocue_environment"
"""Where DSPy's settings carry the environment of the current run."""


@runtime_checkable
class Environment(Protocol):
    """The world that a program's tools act on. Called by one run at a time; every run starts with `reset`."""

    def reset(self, example: Any) -> None:
        """Bring the world to the state in which a run on this example starts."""
        ...

    def snapshot(self) -> Any:
        """Return a token for the state as it is now; None when it can only be reached by acting again."""
        ...

    def restore(self, token: Any) -> None:
        """Bring back the state of a token, any number of times, in any run of this environment or a fork of it."""
        ...


@runtime_checkable
class ForkingEnvironment(Environment, Protocol):
    """An environment of which many runs can have one each at the same time."""

    def fork(self) -> ForkingEnvironment:
        """Return an environment of the same kind with a world of its own."""
        ...

    def bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a tool's function as it acts on this world; the function itself when it has nothing to do with it."""
        ...

    def counterpart(self, original: Any) -> Any:
        """Return what stands in this world for an object of the original one; the original when nothing does."""
        ...


def current_world(original: Any) -> Any:
    """Return what stands for an object in the run that is going on; the object itself outside of one.

    Metrics that look at the world, and tools that are no methods, reach the world of their own run through it:

    Example:
        ```python
        def metric(example, prediction, trace=None):
            return current_world(desk).is_settled(example.ticket)
        ```
    """
    environment = settings.get(ENVIRONMENT_KEY)
    return original if environment is None else environment.counterpart(original)


def deepcopy_environment(*objects: Any, reset: Callable[..., None] | None = None) -> ForkingEnvironment:
    """Return an environment for tools that are methods of deep-copyable objects.

    Args:
        objects: The objects; they are copied as they are now, and never touched.
        reset: Called with the copies and the example at the start of each run, to set the scene for it.
    """
    if not objects:
        raise ValueError("deepcopy_environment needs at least one object, got none")
    try:
        pristine = _Copies.of(objects)
    except Exception as error:
        raise EnvironmentFault(
            f"the objects of a deepcopy_environment must be deep-copyable, got {type(error).__name__}: {error}"
        ) from error
    return _DeepcopyEnvironment(pristine, reset)


def reexecuting_environment(factory: Callable[..., Any]) -> ForkingEnvironment:
    """Return an environment for tools that are methods of objects which can be made anew but not copied.

    Args:
        factory: Called with the example (or with nothing, if it takes nothing) at the start of each run; returns a
            fresh object, or a tuple of them. A tool that is a method of an object of the same class acts on it.
    """
    if not callable(factory):
        raise TypeError(f"the factory of a reexecuting_environment must be callable, got {factory!r}")
    return _ReexecutingEnvironment(factory)


class _Copies:
    """Copies of some objects, and of all that hangs on them, by the identity of the originals."""

    def __init__(self, roots: tuple[Any, ...], by_original: dict[int, Any], originals: list[Any]) -> None:
        self.roots = roots
        self.by_original = by_original
        self.originals = originals  # kept alive: their ids are keys

    @classmethod
    def of(cls, objects: tuple[Any, ...]) -> _Copies:
        memo: dict[int, Any] = {}
        roots = copy.deepcopy(objects, memo)
        kept = memo.pop(id(memo), [])
        by_original = {key: value for key, value in memo.items() if hasattr(value, "__dict__")}
        by_original.update({id(original): root for original, root in zip(objects, roots, strict=True)})
        return cls(roots, by_original, [objects, kept])

    def again(self) -> _Copies:
        """Return copies of the copies, still by the identity of the first originals."""
        roots, by_original = copy.deepcopy((self.roots, self.by_original))
        return _Copies(roots, by_original, self.originals)


class _DeepcopyEnvironment:
    def __init__(self, pristine: _Copies, set_scene: Callable[..., None] | None) -> None:
        self._pristine = pristine
        self._set_scene = set_scene
        self._current = pristine.again()

    def reset(self, example: Any) -> None:
        self._current = self._pristine.again()
        if self._set_scene is not None:
            self._set_scene(*self._current.roots, example)

    def snapshot(self) -> Any:
        return self._current.again()

    def restore(self, token: Any) -> None:
        if not isinstance(token, _Copies):
            raise EnvironmentFault(f"restore needs what snapshot returned, got {type(token).__name__}")
        self._current = token.again()

    def fork(self) -> ForkingEnvironment:
        return _DeepcopyEnvironment(self._pristine, self._set_scene)

    def counterpart(self, original: Any) -> Any:
        return self._current.by_original.get(id(original), original)

    def bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return _rebound(function, self.counterpart)


class _ReexecutingEnvironment:
    def __init__(self, factory: Callable[..., Any]) -> None:
        self._factory = factory
        self._takes_example = len(inspect.signature(factory).parameters) > 0
        self._objects: tuple[Any, ...] = ()

    def reset(self, example: Any) -> None:
        made = self._factory(example) if self._takes_example else self._factory()
        self._objects = made if isinstance(made, tuple) else (made,)

    def snapshot(self) -> Any:
        return None

    def restore(self, token: Any) -> None:
        raise EnvironmentFault("a reexecuting environment has no snapshots to restore")

    def fork(self) -> ForkingEnvironment:
        return _ReexecutingEnvironment(self._factory)

    def counterpart(self, original: Any) -> Any:
        held = [value for made in self._objects for value in vars(made).values()] if self._objects else []
        return next((made for made in (*self._objects, *held) if type(made) is type(original)), original)

    def bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return _rebound(function, self.counterpart)


def _rebound(function: Callable[..., Any], counterpart: Callable[[Any], Any]) -> Callable[..., Any]:
    if isinstance(function, functools.partial):
        inner = _rebound(function.func, counterpart)
        return function if inner is function.func else functools.partial(inner, *function.args, **function.keywords)
    if inspect.ismethod(function):
        owner = counterpart(function.__self__)
        return function if owner is function.__self__ else getattr(owner, function.__func__.__name__)
    if not inspect.isfunction(function) and not inspect.isclass(function):
        return counterpart(function)
    return function
