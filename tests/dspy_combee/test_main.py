"""The demo's command line, as a user calls it."""

import os
import subprocess
import sys

import pytest


def run_demo(*arguments: str, tmp_path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dspy_combee", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DSPY_CACHEDIR": str(tmp_path / "cache"), **environment},
    )


@pytest.fixture(scope="module")
def fast_tour(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tour")
    report = directory / "report.html"
    return run_demo("--fast", "--report", str(report), tmp_path=directory), report


def test_fast_tour_says_that_it_is_scripted(fast_tour):
    tour, _ = fast_tour
    assert tour.returncode == 0, tour.stderr[-2000:]
    assert "SCRIPTED" in tour.stdout.splitlines()[0]


def test_fast_tour_shows_score_before_rounds_sources_and_score_after(fast_tour):
    tour, _ = fast_tour
    assert "Before: 0 of 48 right" in tour.stdout
    assert "After:  48 of 48 right" in tour.stdout
    assert "Batch size" in tour.stdout
    learned = [line for line in tour.stdout.splitlines() if line.strip().startswith("+- If")]
    assert len(learned) == 16
    assert all("<- message" in line for line in learned)


def test_fast_tour_compares_with_plain_gepa_at_its_own_batch(fast_tour):
    tour, _ = fast_tour
    assert "Plain dspy.GEPA, batches of 3" in tour.stdout


def test_report_is_written_where_the_user_wants_it(fast_tour):
    _, report = fast_tour
    assert "T-29" in report.read_text(encoding="utf-8")


def test_model_that_cannot_be_reached_ends_the_demo_with_a_clear_error(tmp_path):
    tour = run_demo("--lm", "local/nonsense", tmp_path=tmp_path)
    assert tour.returncode == 2
    assert "local/default" in tour.stderr
    assert "Traceback" not in tour.stderr


def test_a_model_that_fails_is_an_error_in_a_line_and_no_score_of_zero(tmp_path):
    tour = run_demo("--lm", "nosuch/model", tmp_path=tmp_path)
    assert tour.returncode == 1
    assert "Before:" not in tour.stdout
    assert "LMUnavailableError: the model cannot be asked: [nosuch/model]" in tour.stderr
    assert "Traceback" not in tour.stderr
