"""Parse the agent's code in many threads at once. Pure."""

from __future__ import annotations

import ast
import threading

_ONE_AT_A_TIME = threading.Lock()
_ATTEMPTS = 5


def parse_code(code: str) -> ast.Module:
    """Return what `ast.parse` does.

    Before Python 3.13 all threads share the parser's count of its own depth: a switch between two of them in the middle
    makes it raise `SystemError` for code that is right. So ours take turns, and try again where another's came between.
    """
    for _ in range(_ATTEMPTS):
        try:
            with _ONE_AT_A_TIME:
                return ast.parse(code)
        except SystemError:
            continue
    return ast.parse(code)
