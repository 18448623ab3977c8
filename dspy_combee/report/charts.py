"""Two small charts as inline SVG: validation score by metric calls, and the delay curve with the pick. Pure.

They need no script, no font and no library, and take their colours from the page around them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dspy_combee.batch_size import DelayFit
from dspy_combee.report.markup import Html, element, join, text
from dspy_combee.report.units import score_text, seconds_text

WIDTH, HEIGHT = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 20, 16, 46


@dataclass(frozen=True, slots=True)
class ScorePoint:
    """A scored candidate."""

    position: float
    """Metric calls (or rounds) up to its validation."""
    score: float
    label: str
    """What a pointer on it shows."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """Maps values to positions along one side of the chart."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(v) if self.is_log else v for v in (self.low, self.high, value))
        share = (at - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def score_chart(points: Sequence[ScorePoint], *, until: float, axis_title: str) -> Html:
    """Draw the validation scores of all candidates and the best one so far.

    Args:
        points: The candidates in the order in which they were scored, the student first; an empty chart without any.
        until: Where the run ended on the horizontal axis.
        axis_title: What the horizontal axis counts.
    """
    shown = [point for point in points if math.isfinite(point.score)]
    if not shown:
        return Html("")
    scores = [point.score for point in shown]
    low, high = (0.0, 1.0) if min(scores) >= 0 and max(scores) <= 1 else _padded(min(scores), max(scores))
    across = _Axis(0, max(until, shown[-1].position, 1), _LEFT, WIDTH - _RIGHT)
    up = _Axis(low, high, HEIGHT - _BOTTOM, _TOP)
    best = shown[0]
    path = [f"M{across(best.position)} {up(best.score)}"]
    for point in shown[1:]:
        if point.score > best.score:
            best = point
            path.append(f"H{across(point.position)} V{up(point.score)}")
    path.append(f"H{across(max(until, shown[-1].position))}")
    marks = [_mark(across(point.position), up(point.score), point.label) for point in shown]
    line = element("path", d=" ".join(path), classes="line")
    end = _label(WIDTH - _RIGHT, up(best.score) + (16 if up(best.score) < 40 else -8), f"best {score_text(best.score)}")
    frame = _frame(across, up, _ticks(across), _ticks(up), axis_title, "validation score")
    return _svg("Validation score over the run", join([frame, line, *marks, end]))


def delay_chart(fit: DelayFit) -> Html:
    """Draw the profiled delays, the fitted curve and the pick, both axes logarithmic; empty without profiled sizes."""
    profiled = [(one.batch_size, one.seconds / one.batch_size) for one in fit.profile]
    if not profiled:
        return Html("")
    sizes = [*(size for size, _ in profiled), fit.batch_size]
    curve = _curve(fit, min(sizes), max(sizes))
    delays = [delay for _, delay in profiled] + [delay for _, delay in curve]
    across = _Axis(min(sizes) / 1.2, max(sizes) * 1.2, _LEFT, WIDTH - _RIGHT, is_log=True)
    up = _Axis(min(delays) / 1.3, max(delays) * 1.3, HEIGHT - _BOTTOM, _TOP, is_log=True)
    marks = [
        _mark(across(size), up(delay), f"batch {size}: {seconds_text(delay)} an example, {seconds_text(one.seconds)}")
        for (size, delay), one in zip(profiled, fit.profile, strict=True)
    ]
    line = element("path", d=_path(across, up, curve), classes="line") if curve else Html("")
    at = across(fit.batch_size)
    pick = element("line", x1=at, x2=at, y1=_TOP, y2=HEIGHT - _BOTTOM, classes="pick")
    is_left = at > WIDTH / 2
    name = _label(at + (-6 if is_left else 6), _TOP + 10, f"pick {fit.batch_size}", "end" if is_left else "start")
    size_ticks = [(float(size), str(size)) for size, _ in profiled]
    delay_ticks = [(value, seconds_text(value)) for value in _log_ticks(up.low, up.high)]
    frame = _frame(across, up, size_ticks, delay_ticks, "batch size (log)", "time an example (log)")
    return _svg("Delay of an epoch by batch size", join([frame, pick, line, *marks, name]))


def front_chart(points: Sequence[ScorePoint], *, axis_title: str, score_title: str = "score") -> Html:
    """Draw what was reached against what it took, the latter logarithmic; the front of the best is a line.

    Args:
        points: Each setting with its cost (above 0) as position; an empty chart without any.
        axis_title: What the horizontal axis counts.
        score_title: What the vertical axis counts.
    """
    shown = [point for point in points if math.isfinite(point.score) and point.position > 0]
    if not shown:
        return Html("")
    positions = [point.position for point in shown]
    across = _Axis(min(positions) / 1.3, max(positions) * 1.3, _LEFT, WIDTH - _RIGHT, is_log=True)
    up = _Axis(0.0, max(1.0, *(point.score for point in shown)), HEIGHT - _BOTTOM, _TOP)
    front: list[ScorePoint] = []
    for point in sorted(shown, key=lambda point: (point.position, -point.score)):
        if not front or point.score > front[-1].score:
            front.append(point)
    marks = [_mark(across(point.position), up(point.score), point.label) for point in shown]
    names = [_label(across(one.position), up(one.score) - 9, one.label.partition(":")[0], "middle") for one in front]
    line = element("path", d=_path(across, up, [(one.position, one.score) for one in front]), classes="line")
    ticks = [(value, f"{value:,.6g}") for value in _log_ticks(across.low, across.high)]
    frame = _frame(across, up, ticks, _ticks(up), axis_title, score_title)
    return _svg(f"{score_title} by {axis_title}", join([frame, line, *marks, *names]))


def _curve(fit: DelayFit, low: float, high: float) -> list[tuple[float, float]]:
    if fit.curve is None:
        return []
    steps = [low * (high / low) ** (step / 48) for step in range(49)]
    return [(size, fit.curve.delay_at(size)) for size in steps]


def _path(across: _Axis, up: _Axis, points: Iterable[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{across(x)} {up(y)}" for x, y in points)


def _svg(title: str, content: Html) -> Html:
    name = element("title", text(title))
    return element("svg", name, content, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", classes="chart")


def _frame(
    across: _Axis,
    up: _Axis,
    across_ticks: Sequence[tuple[float, str]],
    up_ticks: Sequence[tuple[float, str]],
    across_title: str,
    up_title: str,
) -> Html:
    bottom = HEIGHT - _BOTTOM
    parts = [element("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=bottom, y2=bottom, classes="axis")]
    for value, name in up_ticks:
        at = up(value)
        parts.append(element("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=at, y2=at, classes="grid"))
        parts.append(_label(_LEFT - 8, at + 4, name))
    parts.extend(_label(across(value), bottom + 18, name, "middle") for value, name in across_ticks)
    parts.append(_label((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 8, across_title, "middle"))
    turned = f"translate(14 {(bottom + _TOP) / 2:g}) rotate(-90)"
    parts.append(element("text", text(up_title), transform=turned, text_anchor="middle"))
    return join(parts)


def _mark(x: float, y: float, label: str) -> Html:
    return element("circle", element("title", text(label)), cx=x, cy=y, r=4.5, classes="mark")


def _label(x: float, y: float, words: str, anchor: str = "end") -> Html:
    return element("text", text(words), x=x, y=y, text_anchor=anchor)


def _padded(low: float, high: float) -> tuple[float, float]:
    room = (high - low) * 0.15 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def _ticks(axis: _Axis) -> list[tuple[float, str]]:
    """Return about four round values within the axis, with their names."""
    rough = (axis.high - axis.low) / 4
    magnitude = 10 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough)
    first = math.ceil(axis.low / step - 1e-9)
    last = math.floor(axis.high / step + 1e-9)
    return [(number * step, f"{number * step:,.6g}") for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return one, two and five times the powers of ten within the range, thinned to at most six."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
        if len(ticks) <= 6:
            break
    return ticks or [low, high]
