"""Parse Python source from several threads.

CPython 3.11 keeps the depth of the tree that it builds in one place for the whole process: when another thread parses
while the garbage collector runs in the middle of a tree, one of them gets a `SystemError` ("AST constructor recursion
depth mismatch", python/cpython#106905; fixed in 3.11.8, and 3.12 no longer collects there). Nothing is wrong with the
source then, so it is parsed again; the lock keeps those who take it apart.

DSPy parses too: the text of a signature at every step of `dspy.ReAct`, and replies. An error there is a run that fails
for nothing and scores 0, so whoever starts threads in which programs run calls `share_parser` first.
"""

from __future__ import annotations

import ast
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_lock = threading.RLock()  # taken twice by one thread where a finalizer parses, and once the parser is shared
_ATTEMPTS = 20
_shared: list[Any] = []

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


def share_parser() -> None:
    """Make `ast.parse` bear calls by several threads, for the rest of the process, where Python's own does not."""
    if not (3, 11) <= sys.version_info < (3, 11, 8):
        return
    with _lock:
        if ast.parse not in _shared:
            _shared.append(_kept_apart(ast.parse))
            ast.parse = _shared[-1]


def _kept_apart(parse: Callable[..., Result]) -> Callable[..., Result]:
    @functools.wraps(parse)
    def parse_apart(*arguments: Any, **options: Any) -> Result:
        return _again(parse, *arguments, **options)

    return parse_apart


def _again(function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    for _ in range(_ATTEMPTS - 1):
        try:
            with _lock:
                return function(*arguments, **options)
        except SystemError:
            continue
    with _lock:
        return function(*arguments, **options)
