"""What calls itself pure imports neither dspy nor a file that does."""

import ast
from pathlib import Path

import dspy_evocue.control

FOLDER = Path(dspy_evocue.control.__file__).parent
OURS = ("dspy", "dspy_evocue", "dspy_combee")
PURE_ELSEWHERE = {"dspy_evocue.rules", "dspy_evocue.call_sites", "dspy_combee.runtime.python_syntax"}


FILES = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in FOLDER.glob("[a-z]*.py")}


def imports(tree):
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return found


def test_pure_files_import_only_pure_files_and_the_standard_library():
    pure = {name for name, tree in FILES.items() if "Pure" in (ast.get_docstring(tree) or "")}
    assert {"graph", "machine", "reach", "check", "interpreter"} <= pure
    allowed = {f"dspy_evocue.control.{name}" for name in pure} | PURE_ELSEWHERE | {"dspy_evocue.control.errors"}
    for name in pure:
        foreign = {module for module in imports(FILES[name]) if module.split(".")[0] in OURS}
        assert foreign <= allowed, (name, foreign - allowed)


def test_only_the_code_agent_and_the_program_know_each_other():
    needs = {
        name: {module.rsplit(".", 1)[-1] for module in imports(tree) if module.startswith("dspy_evocue.control.")}
        for name, tree in FILES.items()
    }
    ordered = set()
    while ready := {name for name in needs if name not in ordered and needs[name] <= ordered}:
        ordered |= ready
    assert set(needs) - ordered == {"code_agent", "program"}
