import dataclasses
import enum
import json
import os
import subprocess
import sys
from datetime import date

import dspy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.runtime.stable_json import stable_json


class Colour(enum.Enum):
    RED = 1


class Row(pydantic.BaseModel):
    names: set[str]


@dataclasses.dataclass
class Point:
    x: object


class Opaque:
    pass


def example():
    fields = {"question": "q", "tags": {"b", "a", "c"}, "when": date(2024, 1, 2), "model": Row(names={"x", "y"})}
    return dspy.Example(**fields, function=example, thing=Opaque(), raw=b"1").with_inputs("question")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [2.5, None, True]}, '{"a": [2.5, null, true], "b": 1}'),
        ({1: "int"}, '{"[1]": "int"}'),
        ({3, 1, 2}, "[1, 2, 3]"),
        (Colour.RED, '"Colour.RED"'),
        (Point(x=(1, "a")), '{"x": [1, "a"]}'),
        (Row(names={"b", "a"}), '{"names": ["a", "b"]}'),
        (date(2024, 1, 2), '"2024-01-02"'),
        (dspy.Example(a=1), '{"a": 1}'),
        (dspy.Example(a=1).with_inputs("a"), '{"fields": {"a": 1}, "inputs": ["a"]}'),
    ],
)
def test_value_is_shown_by_its_contents(value, text):
    assert stable_json(value) == text


def test_no_memory_address_gets_in():
    assert "0x" not in stable_json([Opaque(), lambda: None, Opaque().__init__, object()])


def test_arrays_are_shown_whole():
    import numpy

    first, second = numpy.zeros(5000), numpy.zeros(5000)
    second[2500] = 1
    assert stable_json(first) != stable_json(second)
    assert stable_json(numpy.float64(0.5)) == "0.5"


def test_another_process_gives_the_same_text():
    code = "import test_stable_json as t; print(t.stable_json([t.example(), t.example()]))"
    paths = os.pathsep.join([os.getcwd(), os.path.dirname(__file__)])
    printed = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert json.loads(printed[0])[0]["fields"]["tags"] == ["a", "b", "c"]


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
)


@given(value=values)
def test_what_is_json_already_comes_back_unchanged(value):
    assert json.loads(stable_json(value)) == value


@given(value=st.dictionaries(st.text(), values, max_size=4))
def test_order_of_keys_does_not_matter(value):
    assert stable_json(dict(reversed(value.items()))) == stable_json(value)
