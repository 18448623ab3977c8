"""The interpreter runs what agents write, and nothing that could hang, fill or leave the process."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_evocue.control.code_values import CodeError
from dspy_evocue.control.interpreter import find_problem, run_code

APPS = {"desk": {"add": lambda a, b: a + b, "fail": lambda: {}["missing"]}}


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("print(1 + 2 * 3, 7 // 2, -4, not True)", "7 3 -4 False\n"),
        ("x = [1, 2]\nx.append(3)\nx += [4]\nprint(x[1:], len(x), sum(x))", "[2, 3, 4] 4 10\n"),
        ("for i in range(5):\n    if i == 1:\n        continue\n    if i == 3:\n        break\n    print(i)", "0\n2\n"),
        ("n = 0\nwhile n < 3:\n    n += 1\nelse:\n    print('end', n)", "end 3\n"),
        ("d = {'a': 1}\nd['b'] = 2\nprint(d.get('c', 0), [k for k, v in d.items() if v > 1])", "0 ['b']\n"),
        ("a, (b, c) = 1, [2, 3]\nprint(f'{a}-{c}', 'x' if b == 2 else 'y')", "1-3 x\n"),
        ("print(1 < 2 < 3, 2 in [1], 'a' and '', 0 or 'z', None is None)", "True False  z True\n"),
        ("print(any(i > 1 for i in [1, 2]), sorted([2, 1], reverse=True), max(1, 5))", "True [2, 1] 5\n"),
        ("print(apis.desk.add(a=1, b=2))", "3\n"),
    ],
)
def test_the_supported_part_of_python_means_what_it_means_in_python(code, printed):
    assert run_code(code, {}, APPS) == printed


@pytest.mark.parametrize(
    "code",
    [
        "import os",
        "def f(): pass",
        "lambda: 1",
        "class A: pass",
        "x = ().__class__",
        "with x: pass",
        "try:\n    pass\nexcept ValueError:\n    pass",
        "(y := 1)",
        "print(*[1])",
        "f'{1:99999999}'",
        "'%d' % 1",
        "b'bytes'",
        "2 ** 2",
        "{1, 2}",
        "open('x')",
        "x.y = 1",
        "[1].sort()",
        "''.format(1)",
        "apis.desk",
        "global x",
        "x: int = 1",
        "del x",
    ],
)
def test_what_is_not_supported_is_refused(code):
    with pytest.raises(CodeError):
        run_code(code, {"x": 1}, APPS)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("while True:\n    pass", "more than 100000 steps"),
        ("x = 9\nfor i in range(99):\n    x = x * x", "more than 30 digits"),
        ("x = 'a' * 10000000", "too large"),
        ("a = [1]\nfor i in range(60):\n    a = [a, a]", "more than 20000 items"),
        ("a = []\na.append(a)", "more than 20000 items"),
        ("t = (1,)\nfor i in range(60):\n    t = (t, t)\nd = {t: 1}", "more than 20000 items"),
        ("x = ('a' * 20000).join(list(range(2000)))", "too long"),
        ("x = ('a' * 20000).replace('a', 'b' * 20000)", "too long"),
        ("round(5, -99999999)", "must stay within"),
        ("range(99999999)", "must stay within"),
        ("for i in range(999):\n    print('a' * 99)", "printed more than"),
        ("x = 1\n" * 9000, "more than 20000 characters"),
        ("-" * 15000 + "1", "nested too deeply"),
    ],
)
def test_no_code_can_hang_or_fill_the_process(code, reason):
    with pytest.raises(CodeError, match=reason):
        run_code(code, {}, APPS)


def test_what_ran_before_an_error_stays_done_and_the_error_says_where():
    variables = {}
    with pytest.raises(CodeError, match=r"Line 2: name 'y' is not defined"):
        run_code("x = 1\nprint(y)", variables, APPS)
    assert variables == {"x": 1}


def test_errors_of_an_api_function_and_of_wrong_names_reach_the_agent_as_text():
    with pytest.raises(CodeError, match="KeyError: 'missing'"):
        run_code("apis.desk.fail()", {}, APPS)
    with pytest.raises(CodeError, match="desk has no function 'sub'; it has add, fail"):
        run_code("apis.desk.sub()", {}, APPS)
    with pytest.raises(CodeError, match="there is no app 'mail'; there is desk"):
        run_code("apis.mail.send()", {}, APPS)


def test_a_comprehension_leaves_no_variable_behind():
    variables = {}
    run_code("x = [i for i in [1, 2]]", variables, APPS)
    assert variables == {"x": [1, 2]}


@given(st.text(alphabet="xy=+-*()[]{}:'\",.\n 0123456789ifornwhlepasd", max_size=60))
def test_any_text_at_all_ends_in_output_or_a_code_error(code):
    with contextlib.suppress(CodeError):
        assert isinstance(run_code(code, {}, APPS), str)


def test_a_static_problem_is_named_without_running_anything():
    assert find_problem("print('a'") == "Syntax error in line 1: '(' was never closed."
    assert find_problem("x = 1\nimport os") == "Line 2: Import is not allowed here."
    assert find_problem("print(1)") == ""
