"""A small interpreter for the code that an agent writes: a part of Python, over an API, within limits.

Nothing is handed to Python's own `exec` or `eval`. The code is parsed, and a node that is not in the tables below is
refused; names are those of the code itself, an attribute is an app's function or a listed method of a text, list or
dictionary. Every value is paid for in steps by its weight, and steps, weights, numbers and output are bounded, so that
no code can hang or fill the process. Pure: knows neither dspy nor a model.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dspy_combee.runtime.python_syntax import parse_source
from dspy_evocue.control.code_values import (
    COMPARE,
    FUNCTIONS,
    MAX_SIZE,
    METHODS,
    UNARY,
    CodeError,
    Function,
    operate,
    weigh,
)

MAX_CODE = 20_000
"""The most characters of one piece of code."""
MAX_STEPS = 100_000
"""The most that one piece of code may take: one a node that is evaluated, and the weight of each value on the way."""
MAX_OUTPUT = 10_000


class _Break(Exception):
    """A `break` on its way to its loop."""


class _Continue(Exception):
    """A `continue` on its way to its loop."""


def find_problem(code: str) -> str:
    """Return why the code could not be run at all, in one sentence; empty when it could."""
    if len(code) > MAX_CODE:
        return f"The code must not have more than {MAX_CODE} characters, got {len(code)}."
    try:
        tree = parse_source(code)
    except SyntaxError as error:
        return f"Syntax error in line {error.lineno}: {error.msg}."
    except ValueError as error:
        return f"The code cannot be read: {error}."
    except (RecursionError, MemoryError):
        return "The code is nested too deeply."
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr)) and not hasattr(_Run, f"_{type(node).__name__.lower()}"):
            return f"Line {node.lineno}: {type(node).__name__} is not allowed here."
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            return f"Line {node.lineno}: {node.attr} is not allowed here."
    return ""


def run_code(code: str, variables: dict[str, Any], apps: Mapping[str, Mapping[str, Function]]) -> str:
    """Run the code and return what it printed.

    Args:
        code: A part of Python; `apis.app.function(name=value)` calls the API.
        variables: The variables of earlier pieces; changed in place.
        apps: The functions of each app by name. They are given plain values and must return plain values.

    Raises:
        CodeError: When the code cannot be run, fails, or goes beyond a limit; what ran before stays done.
    """
    if problem := find_problem(code):
        raise CodeError(problem)
    run = _Run(variables, apps)
    try:
        run.block(parse_source(code).body)
    except (_Break, _Continue):
        raise CodeError("break and continue must be inside a loop.") from None
    except RecursionError:
        raise CodeError("The code is nested too deeply.") from None
    return run.printed


@dataclass
class _Run:
    """One piece of code on its way: `_<node name>` evaluates or executes the node of that name."""

    variables: dict[str, Any]
    apps: Mapping[str, Mapping[str, Function]]
    printed: str = ""
    steps: int = 0

    def block(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self.visit(statement)

    def visit(self, node: ast.AST) -> Any:
        self._charge(1)
        try:
            value = getattr(self, f"_{type(node).__name__.lower()}")(node)
            self._charge(weigh(value))
            return value
        except (CodeError, _Break, _Continue, RecursionError):
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise CodeError(f"Line {getattr(node, 'lineno', '?')}: {type(error).__name__}: {error}") from error

    def _charge(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise CodeError(f"The code took more than {MAX_STEPS} steps.")

    def _expr(self, node: ast.Expr) -> None:
        self.visit(node.value)

    def _pass(self, node: ast.Pass) -> None:
        pass

    def _break(self, node: ast.Break) -> None:
        raise _Break

    def _continue(self, node: ast.Continue) -> None:
        raise _Continue

    def _assign(self, node: ast.Assign) -> None:
        value = self.visit(node.value)
        for target in node.targets:
            self.bind(target, value)

    def _augassign(self, node: ast.AugAssign) -> None:
        current = self.visit(_as_load(node.target))
        self.bind(node.target, self._weighed(operate(node.op, current, self.visit(node.value))))

    def bind(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.variables[target.id] = value
        elif isinstance(target, ast.Subscript):
            holder = self.visit(target.value)
            holder[self.visit(target.slice)] = value
            self._weighed(holder)
        elif isinstance(target, (ast.Tuple, ast.List)):
            values = list(value)
            if len(values) != len(target.elts):
                raise ValueError(f"expected {len(target.elts)} values, got {len(values)}")
            for one, item in zip(target.elts, values, strict=True):
                self.bind(one, item)
        else:
            raise CodeError(f"Line {target.lineno}: cannot assign to this.")

    def _if(self, node: ast.If) -> None:
        self.block(node.body if self.visit(node.test) else node.orelse)

    def _for(self, node: ast.For) -> None:
        for item in list(self.visit(node.iter)):
            self.bind(node.target, item)
            try:
                self.block(node.body)
            except _Break:
                return
            except _Continue:
                continue
        self.block(node.orelse)

    def _while(self, node: ast.While) -> None:
        while self.visit(node.test):
            try:
                self.block(node.body)
            except _Break:
                return
            except _Continue:
                continue
        self.block(node.orelse)

    def _constant(self, node: ast.Constant) -> Any:
        if not isinstance(node.value, (str, int, float, bool, type(None))):
            raise CodeError(f"Line {node.lineno}: {type(node.value).__name__} is not allowed here.")
        return node.value

    def _name(self, node: ast.Name) -> Any:
        if node.id not in self.variables:
            raise CodeError(f"Line {node.lineno}: name {node.id!r} is not defined.")
        return self.variables[node.id]

    def _list(self, node: ast.List) -> list[Any]:
        return [self.visit(one) for one in node.elts]

    def _tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self.visit(one) for one in node.elts)

    def _dict(self, node: ast.Dict) -> dict[Any, Any]:
        if any(key is None for key in node.keys):
            raise CodeError(f"Line {node.lineno}: ** is not allowed here.")
        return {self.visit(key): self.visit(value) for key, value in zip(node.keys, node.values, strict=True) if key}

    def _subscript(self, node: ast.Subscript) -> Any:
        return self.visit(node.value)[self.visit(node.slice)]

    def _slice(self, node: ast.Slice) -> slice:
        return slice(*(part and self.visit(part) for part in (node.lower, node.upper, node.step)))

    def _binop(self, node: ast.BinOp) -> Any:
        return operate(node.op, self.visit(node.left), self.visit(node.right))

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        if type(node.op) not in UNARY:
            raise CodeError(f"Line {node.lineno}: this operator is not allowed here.")
        return UNARY[type(node.op)](self.visit(node.operand))

    def _boolop(self, node: ast.BoolOp) -> Any:
        value: Any = None
        for one in node.values:
            value = self.visit(one)
            if bool(value) == isinstance(node.op, ast.Or):
                return value
        return value

    def _compare(self, node: ast.Compare) -> bool:
        left = self.visit(node.left)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.visit(right_node)
            if not COMPARE[type(op)](left, right):
                return False
            left = right
        return True

    def _ifexp(self, node: ast.IfExp) -> Any:
        return self.visit(node.body if self.visit(node.test) else node.orelse)

    def _joinedstr(self, node: ast.JoinedStr) -> str:
        return "".join([str(self.visit(part)) for part in node.values])

    def _formattedvalue(self, node: ast.FormattedValue) -> str:
        if node.format_spec is not None or node.conversion != -1:
            raise CodeError(f"Line {node.lineno}: formats are not allowed in an f-string here.")
        return str(self.visit(node.value))

    def _listcomp(self, node: ast.ListComp) -> list[Any]:
        if len(node.generators) != 1:
            raise CodeError(f"Line {node.lineno}: a list comprehension must have one 'for' here.")
        return self._comprehended(node.generators[0], node.elt)

    def _generatorexp(self, node: ast.GeneratorExp) -> list[Any]:
        if len(node.generators) != 1:
            raise CodeError(f"Line {node.lineno}: a generator must have one 'for' here.")
        return self._comprehended(node.generators[0], node.elt)

    def _comprehended(self, loop: ast.comprehension, element: ast.expr) -> list[Any]:
        outer, results = dict(self.variables), []
        try:
            for item in list(self.visit(loop.iter)):
                self.bind(loop.target, item)
                if all(self.visit(test) for test in loop.ifs):
                    results.append(self.visit(element))
        finally:
            self.variables.clear()
            self.variables.update(outer)
        return results

    def _attribute(self, node: ast.Attribute) -> Any:
        raise CodeError(f"Line {node.lineno}: .{node.attr} can only be called, as in apis.app.{node.attr}(...).")

    def _call(self, node: ast.Call) -> Any:
        function = self._called(node.func)
        if any(isinstance(one, ast.Starred) for one in node.args) or any(one.arg is None for one in node.keywords):
            raise CodeError(f"Line {node.lineno}: * and ** are not allowed here.")
        positional = [self.visit(one) for one in node.args]
        named = {str(one.arg): self.visit(one.value) for one in node.keywords}
        return function(*positional, **named)

    def _called(self, node: ast.expr) -> Function:
        if isinstance(node, ast.Name):
            if node.id == "print":
                return self._print
            if node.id in FUNCTIONS:
                return FUNCTIONS[node.id]
            raise CodeError(f"Line {node.lineno}: there is no function {node.id!r}.")
        if isinstance(node, ast.Attribute):
            return self._api(node) or self._method(node)
        raise CodeError(f"Line {node.lineno}: this cannot be called.")

    def _api(self, node: ast.Attribute) -> Function | None:
        app = node.value
        if not (isinstance(app, ast.Attribute) and isinstance(app.value, ast.Name) and app.value.id == "apis"):
            return None
        if app.attr not in self.apps:
            raise CodeError(f"Line {node.lineno}: there is no app {app.attr!r}; there is {', '.join(self.apps)}.")
        if node.attr not in self.apps[app.attr]:
            known = ", ".join(self.apps[app.attr])
            raise CodeError(f"Line {node.lineno}: {app.attr} has no function {node.attr!r}; it has {known}.")
        return self.apps[app.attr][node.attr]

    def _method(self, node: ast.Attribute) -> Function:
        owner = self.visit(node.value)
        if node.attr not in METHODS.get(type(owner), ()):
            raise CodeError(f"Line {node.lineno}: {type(owner).__name__} has no {node.attr!r} here.")
        method = getattr(owner, node.attr)

        def call(*positional: Any, **named: Any) -> Any:
            longest = max((len(one) for one in positional if isinstance(one, (str, list, tuple))), default=0)
            if node.attr in ("replace", "join") and (1 + len(owner)) * (1 + longest) > 10 * MAX_SIZE:
                raise CodeError(f"Line {node.lineno}: the text would be too long.")
            result = method(*positional, **named)
            self._weighed(owner)
            return list(result) if node.attr in ("keys", "values", "items") else result

        return call

    def _weighed(self, value: Any) -> Any:
        self._charge(weigh(value))
        return value

    def _print(self, *values: Any, sep: str = " ", end: str = "\n") -> None:
        self.printed += str(sep).join(map(str, values)) + str(end)
        if len(self.printed) > MAX_OUTPUT:
            raise CodeError(f"The code printed more than {MAX_OUTPUT} characters.")


def _as_load(target: ast.expr) -> ast.expr:
    """Return the target of an augmented assignment as an expression to read."""
    if not isinstance(target, (ast.Name, ast.Subscript)):
        raise CodeError(f"Line {target.lineno}: cannot assign to this.")
    return target
