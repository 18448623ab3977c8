"""Parse Python source from several threads.

CPython 3.11 keeps the depth of the tree that it builds in one place for the whole process: when two threads parse at
once, one of them may get a `SystemError` ("AST constructor recursion depth mismatch"; fixed in 3.12). Nothing is wrong
with the source then, so it is parsed again; the lock keeps our own parsing apart.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_lock = threading.Lock()
_ATTEMPTS = 20

Result = TypeVar("Result")


def parse_source(code: str) -> ast.Module:
    """Return the syntax tree of a module.

    Raises:
        SyntaxError: the code is not valid.
    """
    return _again(ast.parse, code)


def literal(text: str) -> Any:
    """Return the value of a Python literal.

    Raises:
        ValueError: the text is no literal.
        SyntaxError: the text is no expression.
    """
    return _again(ast.literal_eval, text)


def _again(function: Callable[[str], Result], text: str) -> Result:
    for _ in range(_ATTEMPTS - 1):
        try:
            with _lock:
                return function(text)
        except SystemError:
            continue
    with _lock:
        return function(text)
