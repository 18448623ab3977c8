"""Copy a program so that the copy can carry edits: its modules are new, everything outside DSPy is shared.

A deep copy would also copy what the tools act on (a client, a database, an environment), so that the copy would act on
another world than the user's. Tools that are methods of the program itself are rebound to the copy.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable
from typing import Any

import dspy
from dspy.predict.parameter import Parameter

from dspy_evocue.swapping import SWAP_LOCK

logger = logging.getLogger(__name__)


def copy_program(program: Any) -> Any:
    """Return a copy of the program with modules, other parameters, lists, dictionaries and bound tools of its own.

    Tools that refer to the original in a way that cannot be rebound (a function that closed over it) are named in a
    warning of the logger.
    """
    copier = _Copier()
    with SWAP_LOCK:
        copied = copier.copy(program)
    copier.report_unbound(program)
    return copied


class _Copier:
    def __init__(self) -> None:
        self.copies: dict[int, Any] = {}
        self.kept_alive: list[Any] = []
        self.functions: list[Callable[..., Any]] = []

    def copy(self, value: Any) -> Any:
        if id(value) in self.copies:
            return self.copies[id(value)]
        if isinstance(value, dspy.Module):
            return self._copy_module(value)
        if isinstance(value, Parameter):
            return self._remember(value, copy.copy(value))
        if type(value) in (list, tuple, set):
            return self._remember(value, type(value)(self.copy(item) for item in value))
        if type(value) is dict:
            return self._remember(value, {key: self.copy(item) for key, item in value.items()})
        if isinstance(value, dspy.Tool):
            function = self.copy(value.func)
            return (
                value if function is value.func else self._remember(value, value.model_copy(update={"func": function}))
            )
        if inspect.ismethod(value) and isinstance(value.__self__, dspy.Module):
            return self._remember(value, getattr(self.copy(value.__self__), value.__func__.__name__))
        if inspect.isfunction(value):
            self.functions.append(value)
        return value

    def _copy_module(self, module: Any) -> Any:
        copied = self._remember(module, module.__class__.__new__(module.__class__))
        for name, value in vars(module).items():
            # history belongs to the original's own runs; callbacks are the user's objects
            vars(copied)[name] = [] if name == "history" else list(value) if name == "callbacks" else self.copy(value)
        return copied

    def _remember(self, original: Any, copied: Any) -> Any:
        self.copies[id(original)] = copied
        self.kept_alive.append(original)
        return copied

    def report_unbound(self, program: Any) -> None:
        """Warn about functions that hold on to a copied module."""
        modules = {id(original) for original in self.kept_alive if isinstance(original, dspy.Module)}
        for function in self.functions:
            held = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
            if any(id(value) in modules for value in held):
                logger.warning(
                    "The function %s of %s refers to the original program and cannot be rebound to its copy.",
                    function.__qualname__,
                    type(program).__name__,
                )


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
