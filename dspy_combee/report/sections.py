"""The parts of a result as HTML, each from the records alone. The page and the notebook view pick from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from dspy_combee.aggregation.base import CallRecord
from dspy_combee.provenance import Provenance, RecordSource, SourcedLine
from dspy_combee.report.markup import Html, element, join, table, text, unfold
from dspy_combee.report.result import CombeeResult, Round
from dspy_combee.report.units import (
    NOT_KNOWN,
    calls_text,
    cost_text,
    count_text,
    gain_text,
    score_text,
    seconds_text,
    tokens_text,
)
from dspy_combee.runtime.budget import Spend

STOP_REASONS = {
    "perfect": "the validation score is perfect",
    "budget": "the budget is spent",
    "no_improvement": "no better candidate was found any more",
    "interrupted": "it was interrupted",
    "error": "an error ended it",
    "stopped": "a stop callback said so",
    "completed": "all planned work is done",
}
_STAGE_NAMES = {"": "rollouts and metric", "earlier": "before the resume"}


def headline(result: CombeeResult) -> Html:
    """Show why the run ended, and its main numbers as tiles."""
    reason = STOP_REASONS.get(result.stop_reason, result.stop_reason)
    parts = [element("p", text("Ended because "), element("b", text(reason)), text(f" ({result.stop_reason})."))]
    if result.error:
        parts.append(element("div", _prose(result.error), classes="alert"))
    accepted = sum(one.is_accepted for one in result.rounds)
    spend = result.spend
    tiles = [
        _tile(
            "validation score",
            f"{score_text(result.seed_score)} → {score_text(result.best_score)}",
            gain_text(result.improvement),
        ),
        _tile("batch size", NOT_KNOWN if result.batch_size is None else f"{result.batch_size}", "examples"),
        _tile("rounds", f"{len(result.rounds):,}", f"{accepted:,} accepted"),
        _tile("wall time", seconds_text(result.seconds), ""),
        _tile("metric calls", f"{spend.metric_calls:,}", "examples scored"),
        _tile("model calls", f"{spend.lm_calls:,}", calls_text(spend).partition(", ")[2]),
        _tile("tokens", f"{spend.total_tokens:,}", tokens_text(spend)),
        _tile("cost", *_cost(spend)),
    ]
    return join([*parts, element("div", *tiles, classes="tiles")])


def warnings(result: CombeeResult) -> Html:
    """Show what a reader should not miss: predictors never called, lessons without room, copied data."""
    hints = [_never_called(name, times) for name, times in result.unreached.items()]
    left_out = list(dict.fromkeys(line for one in result.rounds for line in one.left_out))
    standing = {line.text for line in result.provenance.lines}
    gone = [line for line in left_out if line not in standing]
    if gone:
        title = text(f"{count_text(len(gone), 'learned line')} had to go because of the length limit")
        hints.append(element("div", unfold(title, _inside(element("ul", *_items(gone)))), classes="hint"))
    if result.longest_shared_span:
        words = text("What was learned repeats a stretch of the train set word for word: ")
        hints.append(element("div", words, _prose(result.longest_shared_span), classes="hint"))
    return join(hints)


def spend_table(result: CombeeResult) -> Html:
    """Show what each stage spent, with the sum."""
    stages = [(_STAGE_NAMES.get(name, name), spend) for name, spend in result.spend_by_stage.items()]
    rows = [_spend_row(name, spend) for name, spend in [*stages, ("all", result.spend)]]
    head = ("stage", "metric calls", "model calls", "cached", "failed", "tokens in", "tokens out", "dollars")
    return table(head, rows, numeric=range(1, 7))


def rounds_table(rounds: Sequence[Round]) -> Html:
    """Show one line a round."""
    if not rounds:
        return element("p", text("No round was finished."), classes="soft")
    head = (
        "round",
        "batch",
        "time",
        "batch score",
        "validation",
        "proposal",
        "records",
        "calls",
        "lines",
        "uncited",
        "notes",
    )
    return table(head, [_round_row(one) for one in rounds], numeric=(0, 1, 2, 4, 6, 7, 8, 9))


def calls_of_rounds(rounds: Sequence[Round]) -> Html:
    """Show the aggregation calls of each round, level by level, to be unfolded."""
    return join(
        unfold(
            text(f"Round {one.number}: {count_text(len(one.calls), 'aggregation call')}"), _inside(_levels(one.calls))
        )
        for one in rounds
        if one.calls
    )


def fit_sentence(result: CombeeResult) -> Html:
    """Say in a sentence how the batch size came about."""
    fit = result.fit
    if fit is None:
        given = result.config.get("batch_size", "auto")
        why = "nothing could be timed" if given == "auto" else "given by the user"
        return element("p", text(f"Batch size {NOT_KNOWN if result.batch_size is None else result.batch_size}: {why}."))
    words = f"Batch size {fit.batch_size}: {fit.reason}."
    if fit.curve is not None:
        bent = {"floor": f" + {fit.curve.floor:.3g}", "kink": f", not below {fit.curve.floor:.3g}"}
        formula = f"T(b) = {fit.amplitude:.3g} · b^-{fit.alpha:.2f}{bent.get(fit.curve.shape, '')} s an example"
        words += f" Fitted {formula} (R² = {fit.r_squared:.2f})."
    return element("p", text(words))


def learned_lines(provenance: Provenance, *, most_lines: int | None = None, most_chars: int | None = None) -> Html:
    """Show each learned line with the feedback behind it, to be unfolded, predictor by predictor.

    Args:
        provenance: Of the final program.
        most_lines: The most lines shown; the rest is counted. None for all.
        most_chars: The longest feedback shown whole; None for no limit.
    """
    if not provenance.lines:
        return element("p", text("The program holds no learned lines."), classes="soft")
    shown = provenance.lines[:most_lines]
    parts: list[Html] = []
    for component, lines in groupby(shown, key=lambda line: line.component):
        parts.append(element("h3", text(component or "program")))
        parts.extend(_line(line, provenance, most_chars) for line in lines)
    hidden = len(provenance.lines) - len(shown)
    if hidden:
        parts.append(
            element("p", text(f"… and {count_text(hidden, 'more line')}: see result.report(path)."), classes="soft")
        )
    return join(parts)


def unused_sentence(provenance: Provenance) -> str:
    """Return how many records no learned line cites."""
    unused = len(provenance.unused())
    if not unused:
        return "Every record ended in a learned line."
    return f"{unused:,} of {count_text(len(provenance.sources), 'record')} ended in no learned line."


def unused_records(provenance: Provenance) -> Html:
    """Show the records that no learned line cites, the worst scores first."""
    unused = sorted(provenance.unused(), key=lambda one: -1.0 if one.score is None else one.score)
    title = text(unused_sentence(provenance))
    if not unused:
        return element("p", title, classes="soft")
    return unfold(title, _inside(element("ul", *(_source(one, None) for one in unused))))


def diff_block(diff: str) -> Html:
    """Show the unified diff of the instructions, or that there is none."""
    if not diff:
        return element("p", text("The instructions are the student's own."), classes="soft")
    return element("pre", *(_diff_line(line) for line in diff.split("\n")))


def settings_table(result: CombeeResult) -> Html:
    """Show the settings and versions of the run."""
    rows = []
    for name, value in result.config.items():
        shown = ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else value
        rows.append((text(name), text(shown)))
    return table(("setting", "value"), rows)


def _never_called(name: str, times: int) -> Html:
    words = f"{name!r} was never called in {count_text(times, 'rollout')}: it had nothing to learn from."
    return element("div", text(words), classes="hint")


def _tile(name: str, value: str, note: str) -> Html:
    parts = [element("div", text(name), classes="name"), element("div", text(value), classes="value")]
    if note:
        parts.append(element("div", text(note), classes="note"))
    return element("div", *parts, classes="tile")


def _cost(spend: Spend) -> tuple[str, str]:
    if not spend.calls_without_price:
        return f"${spend.cost_usd:,.4f}", ""
    if spend.cost_usd == 0:
        return "not known", f"no price for {count_text(spend.calls_without_price, 'call')}"
    return f"≥ ${spend.cost_usd:,.4f}", f"no price for {count_text(spend.calls_without_price, 'call')}"


def _spend_row(name: str, spend: Spend) -> list[Html]:
    counts = (spend.metric_calls, spend.lm_calls, spend.cached_calls, spend.failed_calls)
    tokens = (spend.input_tokens, spend.output_tokens)
    return [text(name), *(text(f"{count:,}") for count in (*counts, *tokens)), text(cost_text(spend))]


def _round_row(one: Round) -> list[Html]:
    failed = sum(call.error is not None for call in one.calls)
    calls = f"{len(one.calls)} ({failed} failed)" if failed else f"{len(one.calls)}"
    verdict = element("span", text("accepted" if one.is_accepted else "not accepted"), classes="badge")
    if one.is_accepted:
        verdict = Html(verdict.replace("badge", "badge good", 1))
    return [
        text(one.number),
        text(one.batch_size),
        text(seconds_text(one.seconds)),
        element("span", text(_change(one)), classes="whole"),
        text(score_text(one.val_score)),
        verdict,
        text(one.records_read),
        text(calls),
        text(one.entries),
        text(len(one.uncited)),
        _prose("; ".join(one.notes)),
    ]


def _change(one: Round) -> str:
    return f"{score_text(one.batch_score_before)} → {score_text(one.batch_score_after)}"


def _levels(calls: Sequence[CallRecord]) -> Html:
    stages = list(dict.fromkeys(call.stage for call in calls))
    rows: list[list[Html]] = []
    for stage in stages:
        level = [call for call in calls if call.stage == stage]
        errors = [call.error for call in level if call.error is not None]
        largest = max(len(call.record_ids) for call in level)
        slowest = max(call.seconds for call in level)
        numbers = (len(level), f"up to {largest}", seconds_text(slowest), len(errors))
        rows.append([text(stage), *(text(number) for number in numbers), _prose("; ".join(dict.fromkeys(errors)))])
    return table(("level", "calls", "records a call", "slowest call", "failed", "errors"), rows, numeric=range(1, 5))


def _line(line: SourcedLine, provenance: Provenance, most_chars: int | None) -> Html:
    if not line.record_ids:
        badge = element("span", text("no record cited"), classes="badge warm")
        return element("p", _prose(line.text), text(" "), badge, classes="lone")
    known = [provenance.sources[rid] for rid in line.record_ids if rid in provenance.sources]
    lost = [rid for rid in line.record_ids if rid not in provenance.sources]
    badge = element("span", text(count_text(len(line.record_ids), "record")), classes="badge")
    items = [_source(one, most_chars) for one in known]
    items.extend(element("li", text(f"{rid}: its text was not kept")) for rid in lost)
    return unfold(join([_prose(line.text), badge]), _inside(element("ul", *items)))


def _source(source: RecordSource, most_chars: int | None) -> Html:
    where = "" if source.example_index is None else f", train example {source.example_index}"
    score = "no score" if source.score is None else f"score {score_text(source.score)}"
    feedback = source.feedback or "(no feedback text)"
    if most_chars is not None and len(feedback) > most_chars:
        feedback = f"{feedback[:most_chars]} … ({len(feedback) - most_chars:,} more characters)"
    return element(
        "li", element("span", text(f"{source.record_id}{where}, {score}: "), classes="where"), _prose(feedback)
    )


def _diff_line(line: str) -> Html:
    if line.startswith(("+++", "---", "@@")):
        return element("span", text(line), classes="where")
    kind = {"+": "added", "-": "removed"}.get(line[:1], "")
    return element("span", text(line or " "), classes=kind)


def _items(lines: Iterable[str]) -> list[Html]:
    return [element("li", _prose(line)) for line in lines]


def _inside(content: Html) -> Html:
    return element("div", content, classes="inside")


def _prose(words: str) -> Html:
    """Return text of a model or a user: its line breaks and its writing direction are its own."""
    return element("span", text(words), classes="text", dir="auto")
