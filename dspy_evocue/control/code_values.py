"""The values, operators and functions that an agent's code may use, and what a value weighs. Pure."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

MAX_SIZE = 20_000
"""The most items of a value with all that is inside it; ten characters of a text weigh as much as one item."""
MAX_DIGITS = 30
"""The most digits of a whole number."""

Function = Callable[..., Any]


class CodeError(Exception):
    """What went wrong in the agent's code, in the words that the agent is shown."""


def weigh(value: Any) -> int:
    """Return how much a value weighs with all that is inside it, each mention counted; refuse one too heavy."""
    weight, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            weight += 1 + len(one) // 10
        elif isinstance(one, (list, tuple)):
            weight += 1 + len(one)
            waiting.extend(one)
        elif isinstance(one, dict):
            weight += 1 + len(one)
            waiting.extend([*one.keys(), *one.values()])
        elif isinstance(one, int) and abs(one) >= 10**MAX_DIGITS:
            raise CodeError(f"A number must not have more than {MAX_DIGITS} digits.")
        if weight > MAX_SIZE:
            raise CodeError(f"A value must not have more than {MAX_SIZE} items, with all that is inside it.")
    return weight


def operate(op: ast.operator, left: Any, right: Any) -> Any:
    """Return what a binary operator makes of two values; refuse a result that would be too large before it is made."""
    if type(op) not in BINARY:
        raise CodeError(f"The operator {type(op).__name__} is not allowed here.")
    if isinstance(op, ast.Mod) and isinstance(left, str):
        raise CodeError("The operator % is not allowed on texts here; use an f-string.")
    if isinstance(op, ast.Mult):
        for items, times in ((left, right), (right, left)):
            if isinstance(items, (str, list, tuple)) and isinstance(times, int) and len(items) * times > MAX_SIZE:
                raise CodeError("The result would be too large.")
    return BINARY[type(op)](left, right)


def bounded(value: int, most: int) -> int:
    """Return a whole number that is within `most` of zero; refuse another."""
    if not isinstance(value, int) or abs(value) > most:
        raise CodeError(f"A range must stay within {most}, got {value!r}.")
    return value


BINARY: Mapping[type, Function] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
COMPARE: Mapping[type, Function] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
UNARY: Mapping[type, Function] = {ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos}
METHODS: Mapping[type, tuple[str, ...]] = {
    str: ("lower", "upper", "strip", "split", "startswith", "endswith", "replace", "join", "title"),
    list: ("append", "extend", "index", "count"),
    dict: ("get", "keys", "values", "items"),
}
FUNCTIONS: Mapping[str, Function] = {
    "len": len,
    "sum": lambda numbers: sum(numbers),
    "min": min,
    "max": max,
    "abs": abs,
    "round": lambda number, digits=0: round(number, bounded(digits, 15)) if digits else round(number),
    "sorted": lambda items, reverse=False: sorted(items, reverse=reverse),
    "list": list,
    "dict": dict,
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "range": lambda *bounds: list(range(*(bounded(bound, MAX_SIZE) for bound in bounds))),
    "enumerate": lambda items: list(enumerate(items)),
    "zip": lambda *lists: list(zip(*lists, strict=False)),
    "any": any,
    "all": all,
}
