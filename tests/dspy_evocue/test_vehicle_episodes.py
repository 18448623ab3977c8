"""A third party's episodes and checker: the lesson must be read late, and every way to restore agrees on it."""

import importlib

import dspy
import pytest

pytest.importorskip("bfcl_eval", reason="pip install --no-deps bfcl-eval==2026.3.23 mpmath==1.3.0")

vehicle = importlib.import_module("evocue_vehicle")

NUMBERS = (52, 53, 64, 76)
"""52 is the one whose engine is started at the first step."""


@pytest.fixture
def examples():
    return [vehicle.episode(number) for number in NUMBERS]


def test_the_official_checker_solves_none_a_few_all_all_by_where_the_lesson_is_read(examples):
    with dspy.context(lm=vehicle.driver_lm()):
        solved = vehicle.full_runs(examples, num_threads=2)
    assert solved == {"nowhere": 0, "first entry": 1, "recurring entry": 4, "everywhere": 4}


@pytest.mark.parametrize("way", ["re-execution", "snapshot and restore", "snapshots of one world"])
@pytest.mark.parametrize(("source", "gains"), [("START", [1, 0, 0, 0]), ("recurring", [1, 1, 1, 1])])
def test_paired_trials_from_checkpoints_agree(examples, way, source, gains):
    with dspy.context(lm=vehicle.driver_lm()):
        records = vehicle.trials(examples[:2] + examples[3:], source, way, num_threads=2)
    assert [record.gain for record in records] == gains[:3]
    assert {record.status for record in records} == {"applied"}


def test_recorded_observations_are_unresolved_where_the_world_was_not_restored(examples):
    with dspy.context(lm=vehicle.driver_lm()):
        records = vehicle.trials(examples[2:], "recurring", "recorded observations")
    assert {record.gain for record in records} <= {None, 1.0}
    assert all("control check" in record.reason for record in records if record.gain is None)
