"""Equal values share a fingerprint in every process, and different ones do not."""

import dataclasses
import subprocess
import sys

import dspy
import pydantic
from hypothesis import given
from hypothesis import strategies as st

from dspy_evocue.fingerprints import fingerprint

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_a_value_and_its_copy_are_the_same(value):
    assert fingerprint(value) == fingerprint(dspy.Example(x=value).copy().x)


@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_the_order_of_keys_does_not_count(values):
    assert fingerprint(values) == fingerprint(dict(reversed(values.items())))


class Model(pydantic.BaseModel):
    name: str
    items: list[int] = []


@dataclasses.dataclass
class Record:
    name: str


class Plain:
    pass


def test_objects_count_by_what_they_hold():
    for make in (Model, Record, lambda name: dspy.Prediction(name=name), lambda name: dspy.Example(name=name)):
        assert fingerprint(make(name="a")) == fingerprint(make(name="a"))
        assert fingerprint(make(name="a")) != fingerprint(make(name="b"))
    assert fingerprint(Plain()) == fingerprint(Plain())
    assert fingerprint({"a", "b"}) == fingerprint({"b", "a"})
    assert fingerprint(b"a") != fingerprint(b"b")
    assert fingerprint(1) != fingerprint("1")


def test_the_frames_of_a_traceback_do_not_count_but_the_error_does():
    text = 'Traceback (most recent call last):\n  File "{}", line 1, in f\n    g()\nLookupError: {}'
    assert fingerprint(text.format("a.py", "x")) == fingerprint(text.format("b.py", "x"))
    assert fingerprint(text.format("a.py", "x")) != fingerprint(text.format("a.py", "y"))


def test_another_process_gives_the_same():
    code = "from dspy_evocue.fingerprints import fingerprint; print(fingerprint({'a': [1, 2.5, 'x', None]}))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=_root())
    assert printed.stdout.strip() == fingerprint({"a": [1, 2.5, "x", None]})


def _root():
    from pathlib import Path

    return Path(__file__).parents[2]
