import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.seeding import branch_rng

paths = st.lists(st.one_of(st.text(max_size=5), st.integers()), max_size=4).map(tuple)


@given(seed=st.integers(), path=paths)
def test_same_path_gives_the_same_numbers(seed, path):
    assert branch_rng(seed, *path).random() == branch_rng(seed, *path).random()


@given(seed=st.integers(), first=paths, second=paths)
def test_other_path_gives_other_numbers(seed, first, second):
    same = branch_rng(seed, *first).random() == branch_rng(seed, *second).random()
    assert same == (first == second and [type(part) for part in first] == [type(part) for part in second])


def test_another_process_draws_the_same_numbers():
    code = "from dspy_combee.seeding import branch_rng; print(branch_rng(7, 'round', 3).random())"
    environment = {"PYTHONHASHSEED": "12", "PYTHONPATH": ":".join(path for path in sys.path if path) or "."}
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert float(printed.stdout) == branch_rng(7, "round", 3).random() == 0.7434579260482825


@pytest.mark.parametrize("arguments", [("7",), (1.5,), (True,), (1, None), (1, 2.0)])
def test_other_types_are_refused(arguments):
    with pytest.raises(TypeError, match="must be"):
        branch_rng(*arguments)
