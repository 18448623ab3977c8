"""A result for its reader: a compact view in a notebook, a page of its own as a file.

Both are plain HTML without script, font or network; both are safe for any text a model or a user has written, and
readable on a light and on a dark background.
"""

from __future__ import annotations

from collections.abc import Sequence

from dspy_combee.report import sections, style
from dspy_combee.report.charts import ScorePoint, delay_chart, score_chart
from dspy_combee.report.markup import Html, element, join, text, unfold
from dspy_combee.report.result import CombeeResult
from dspy_combee.report.units import count_text, score_text

NOTEBOOK_LINES = 20
NOTEBOOK_FEEDBACK_CHARS = 300
NOTEBOOK_ROUNDS = 12


def render_result(result: CombeeResult) -> str:
    """Return the view that a notebook shows: the numbers at once, the rest to be unfolded."""
    latest = result.rounds[-NOTEBOOK_ROUNDS:]
    name = f"The last {len(latest)} of {len(result.rounds)} rounds" if latest != result.rounds else "Rounds"
    lines = result.provenance.lines
    learned = sections.learned_lines(result.provenance, most_lines=NOTEBOOK_LINES, most_chars=NOTEBOOK_FEEDBACK_CHARS)
    parts = [
        element("b", text("Combee")),
        sections.headline(result),
        sections.warnings(result),
        sections.fit_sentence(result),
        element("p", text(sections.unused_sentence(result.provenance))),
        unfold(text(f"{count_text(len(lines), 'learned line')}, with their sources"), learned, is_open=len(lines) <= 8),
        unfold(text(name), sections.rounds_table(latest)),
        unfold(text("Spend by stage"), sections.spend_table(result)),
    ]
    return _styled(style.RESULT, parts)


def render_page(result: CombeeResult) -> str:
    """Return a whole page, with everything that the result holds."""
    content = [
        element("h1", text("What Combee learned")),
        sections.headline(result),
        sections.warnings(result),
        _section("Score", score_history(result)),
        _section("Learned lines", sections.learned_lines(result.provenance)),
        _section("Records without a line", sections.unused_records(result.provenance)),
        _section("Instructions, before and after", sections.diff_block(result.diff)),
        _section("Rounds", sections.rounds_table(result.rounds), sections.calls_of_rounds(result.rounds)),
        _section("Batch size", sections.fit_sentence(result), _delay(result)),
        _section("Spend", sections.spend_table(result)),
        _section("Settings", sections.settings_table(result)),
    ]
    body = _styled(style.PAGE + style.RESULT, content)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<title>Combee result</title></head><body>{body}</body></html>\n'
    )


def score_history(result: CombeeResult) -> Html:
    """Draw the validation scores over the metric calls, or over the rounds where the calls were not counted."""
    if result.seed_score is None:
        return element("p", text("No candidate was scored."), classes="soft")
    is_counted = all(one.metric_calls is not None for one in result.rounds)
    start = float(result.config.get("val_size", 0)) if is_counted else 0.0
    points = [ScorePoint(start, result.seed_score, f"the student: {score_text(result.seed_score)}")]
    until = start
    for one in result.rounds:
        until = float(one.metric_calls or 0) if is_counted else float(one.number)
        if one.val_score is not None:
            label = f"round {one.number}, batch {one.batch_size}: {score_text(one.val_score)}"
            points.append(ScorePoint(until, one.val_score, label))
    return score_chart(points, until=until, axis_title="metric calls" if is_counted else "round")


def _delay(result: CombeeResult) -> Html:
    return Html("") if result.fit is None else delay_chart(result.fit)


def _section(title: str, *content: Html) -> Html:
    return join([element("h2", text(title)), *content])


def _styled(css: str, parts: Sequence[Html]) -> str:
    # The two class names tell notebooks not to read dollar signs in a learned text as formulas.
    box = element("div", join(parts), classes="combee tex2jax_ignore mathjax_ignore")
    return f"<style>{css}</style>{box}"
