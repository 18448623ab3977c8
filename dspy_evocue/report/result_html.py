"""A result for its reader: a compact view in a notebook, a page of its own as a file.

Plain HTML without script, font or network; every text of a model or a user is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dspy_evocue.report.explain import REASONS, trial_counts
from dspy_evocue.report.html import edits_html, table, trials_html

if TYPE_CHECKING:
    from dspy_evocue.report.result import EvoCUEResult, Round

_STYLE = (
    "body{font-family:system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;margin:.5rem 0 1rem}td,th{border-bottom:1px solid #8884;padding:.25rem .6rem;"
    "text-align:left;vertical-align:top}summary{cursor:pointer}"
)


def result_html(result: EvoCUEResult) -> str:
    """Return the view that a notebook shows: the numbers at once, the trials to be unfolded."""
    parts = [f"<p><b>EvoCUE</b>: {_headline(result)}</p>", edits_html(result.edits) if result.edits else ""]
    parts += [_round(one) for one in result.rounds]
    parts.append(_unfold("Spend by stage", _spend(result)))
    return f"<div>{''.join(parts)}</div>"


def result_page(result: EvoCUEResult) -> str:
    """Return a whole page, with everything that the result holds."""
    body = [
        "<h1>What EvoCUE learned</h1>",
        f"<p>{_headline(result)}</p>",
        edits_html(result.edits) if result.edits else "",
        *(_round(one, is_open=True) for one in result.rounds),
        "<h2>Spend</h2>",
        _spend(result),
        "<h2>Settings</h2>",
        table(("setting", "value"), [(name, str(value)) for name, value in result.config.items()]),
        "<h2>In words</h2>",
        f"<pre style='white-space:pre-wrap'>{html.escape(result.explain())}</pre>",
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<title>EvoCUE result</title><style>{_STYLE}</style></head>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def _headline(result: EvoCUEResult) -> str:
    learned = f"{len(result.edits)} edits learned" if result.edits else "no edit inherited, the program is unchanged"
    error = f" ({result.error})" if result.error else ""
    return html.escape(
        f"{learned}; {len(result.rounds)} rounds; {result.spend.metric_calls} scored runs, {result.spend.lm_calls} "
        f"model calls, {result.spend.total_tokens} tokens; stopped because {REASONS[result.stop_reason]}{error}"
    )


def _round(one: Round, *, is_open: bool = False) -> str:
    candidates = [
        (
            candidate.edit_id,
            " or ".join(map(str, candidate.edit.sites)),
            candidate.edit.instruction() or candidate.edit.describe(),
            trial_counts(candidate.trials),
            str(candidate.edit.when),
            candidate.fate,
        )
        for candidate in one.candidates
    ]
    parts = [table(("edit", "entries", "text", "trials", "acts when", "fate"), candidates)] if candidates else []
    parts += [
        _unfold(f"Trials of {candidate.edit_id}", trials_html(candidate.trials), is_open=is_open)
        for candidate in one.candidates
    ]
    if one.confirmation is not None:
        parts.append(f"<p>{html.escape(one.confirmation.decision.reason)}</p>")
        parts.append(_unfold("Confirmation pairs", trials_html(one.confirmation.pairs), is_open=is_open))
    parts += [f"<p>{html.escape(note)}</p>" for note in one.notes]
    mean = one.mean_base_score
    score = "no score" if mean is None else f"mean score {mean:.3f}"
    return _unfold(f"Round {one.number}: {score} on {len(one.base_scores)} tasks", "".join(parts), is_open=True)


def _spend(result: EvoCUEResult) -> str:
    rows: Sequence[tuple[str, ...]] = [
        (
            name or "other",
            str(spend.metric_calls),
            str(spend.lm_calls),
            str(spend.cached_calls),
            str(spend.total_tokens),
        )
        for name, spend in result.spend_by_stage.items()
    ]
    return table(("stage", "metric calls", "model calls", "from the cache", "tokens"), rows)


def _unfold(title: str, content: str, *, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}><summary>{html.escape(title)}</summary>{content}</details>"
