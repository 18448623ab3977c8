import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.batch_size import BatchSizeController, Observation
from dspy_combee.report.charts import HEIGHT, WIDTH, ScorePoint, delay_chart, front_chart, score_chart
from dspy_combee.report.html import score_history

NUMBERS = re.compile(r"-?\d+(?:\.\d+)?")


def points_of(svg: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.-]+)" cy="([\d.-]+)"', svg)]


@given(
    scores=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8),
    until=st.floats(0, 1e6),
)
def test_every_candidate_is_drawn_inside_the_chart(scores, until):
    svg = score_chart([ScorePoint(i * 10.0, s, "x") for i, s in enumerate(scores)], until=until, axis_title="calls")
    marks = points_of(svg)
    assert len(marks) == len(scores)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in marks)


def test_line_follows_the_best_score_and_never_falls():
    points = [ScorePoint(0, 0.2, "a"), ScorePoint(10, 0.5, "b"), ScorePoint(20, 0.4, "c"), ScorePoint(30, 0.9, "d")]
    svg = score_chart(points, until=40, axis_title="metric calls")
    path = re.search(r' d="([^"]+)"', svg).group(1)
    heights = [float(y) for y in re.findall(r"V([\d.]+)", path)]
    marks = points_of(svg)
    assert heights == [marks[1][1], marks[3][1]]
    assert "best 0.900" in svg


def test_scores_are_placed_by_metric_calls_where_they_were_counted(result):
    xs = [x for x, _ in points_of(score_history(result))]
    assert len(xs) == 2
    share = (xs[1] - 80) / (xs[0] - 80)
    assert share == pytest.approx(48 / 40, abs=0.01)
    uncounted = replace(result, rounds=tuple(replace(one, metric_calls=None) for one in result.rounds))
    assert ">round</text>" in score_history(uncounted)


def test_missing_scores_leave_nothing_to_draw():
    assert score_chart([ScorePoint(0, math.nan, "x")], until=1, axis_title="calls") == ""


def test_delay_chart_shows_profile_curve_and_pick(result):
    svg = delay_chart(result.fit)
    assert len(points_of(svg)) == 5
    assert f"pick {result.fit.batch_size}" in svg
    assert 'class="line"' in svg
    heights = [y for _, y in points_of(svg)]
    assert heights == sorted(heights)


def test_delay_chart_of_a_fallback_shows_what_was_timed():
    controller = BatchSizeController()
    state = controller.observe(controller.start(), batch_size=4, seconds=1.0)
    svg = delay_chart(controller.fit(state))
    assert len(points_of(svg)) == 1
    assert 'class="line"' not in svg
    assert delay_chart(controller.fit(controller.start())) == ""


@given(st.lists(st.floats(1e-4, 1e5), min_size=3, max_size=5))
def test_delay_chart_stays_inside_for_any_timings(seconds):
    controller = BatchSizeController(candidates=(4, 8, 16, 32, 64), cap=200)
    state = controller.start()
    for size, taken in zip((4, 8, 16, 32, 64), seconds, strict=False):
        state = replace(state, observations=(*state.observations, Observation(size, taken)))
    svg = delay_chart(controller.fit(state))
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points_of(svg))
    assert "nan" not in svg


def test_the_front_is_drawn_through_what_nothing_cheaper_beats():
    points = [ScorePoint(10, 0.5, "a: 50"), ScorePoint(100, 0.4, "b: 40"), ScorePoint(1000, 0.9, "c: 90")]
    chart = front_chart(points, axis_title="seconds", score_title="kept")
    assert len(points_of(chart)) == 3
    names = re.findall(r">([abc])</text>", chart)
    assert names == ["a", "c"]
    assert front_chart([], axis_title="seconds") == ""
