"""What a run in rounds left behind, as the one kind of result that users see whatever the learner was. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dspy_combee.instructions import instructions_of
from dspy_combee.provenance import Provenance, RecordSource, SourcedLine
from dspy_combee.report.result import Round
from dspy_combee.rounds.learner_extras import NamesLearnedLines
from dspy_combee.rounds.records import RoundRecord, RoundsResult
from dspy_combee.rounds.source import RECORD_ID

SHOWN_ERRORS = 3
"""So many errors of records stand in the notes of a round; the rest is counted."""


def as_rounds(result: RoundsResult) -> tuple[Round, ...]:
    """Return the rounds as a result shows them; a round that ended in a validation has its score."""
    scores = {validation.after_rounds: validation.score for validation in result.validations}
    return tuple(_as_round(record, scores.get(record.index + 1)) for record in result.rounds)


def provenance_of(learner: Any, program: Any, started_from: Any, rounds: Sequence[RoundRecord]) -> Provenance:
    """Return where the learned lines of a program came from.

    Args:
        learner: May name its lines itself (`NamesLearnedLines`); else they are looked for in the instructions.
        program: The program that was learned.
        started_from: The program before the first round; records that its lines cite are those of an earlier run.
        rounds: The rounds of the run.
    """
    if isinstance(learner, NamesLearnedLines):
        earlier = {(line.component, line.text): line.record_ids for line in learner.learned_lines(started_from)}
        lines = tuple(_without(line, earlier) for line in learner.learned_lines(program))
    else:
        lines = _lines_in(program, rounds)
    return Provenance(lines, _sources(rounds))


def first_free_record(learner: Any, program: Any) -> int:
    """Return the number of the first record of a run: above all that the lines of the program cite already.

    A program may have been taught before, and its lines keep the ids of those records.
    """
    if not isinstance(learner, NamesLearnedLines):
        return 1
    cited = (record_id for line in learner.learned_lines(program) for record_id in line.record_ids)
    numbers = [int(found.group(1)) for record_id in cited if (found := RECORD_ID.fullmatch(record_id))]
    return max(numbers, default=0) + 1


def unreached_in(program: Any, rounds: Sequence[RoundRecord]) -> dict[str, int]:
    """Return the predictors that no run of these rounds called, each with the number of runs that passed it by.

    Runs in which no predictor of the program was seen say nothing: recorded traces may hold no calls, or other names.
    """
    reached = {name for record in rounds for name in record.reached}
    runs = sum(record.traced for record in rounds)
    return {name: runs for name, _ in program.named_predictors() if name not in reached} if runs else {}


def _as_round(record: RoundRecord, val_score: float | None) -> Round:
    calls = tuple(call for update in record.updates for call in update.calls)
    changed = [update for update in record.updates if update.entries]
    return Round(
        number=record.index + 1,
        batch_size=record.batch_size,
        seconds=record.seconds,
        batch_score_before=record.train_score,
        is_accepted=bool(changed),
        val_score=val_score,
        components=tuple(update.component for update in changed),
        calls=calls,
        records_read=len({record_id for call in calls for record_id in call.record_ids}),
        uncited=tuple(record_id for update in record.updates for record_id in update.uncited),
        entries=sum(len(update.entries) for update in record.updates),
        notes=(*(update.note for update in record.updates if update.note), *_error_notes(record)),
        metric_calls=record.metric_calls,
    )


def _error_notes(record: RoundRecord) -> list[str]:
    shown = [f"{record_id}: {error}" for record_id, error in record.errors[:SHOWN_ERRORS]]
    more = len(record.errors) - len(shown)
    return [*shown, f"{more} more records with errors"] if more else shown


def _without(line: SourcedLine, earlier: dict[tuple[str, str], tuple[str, ...]]) -> SourcedLine:
    known = earlier.get((line.component, line.text), ())
    return SourcedLine(line.component, line.text, tuple(rid for rid in line.record_ids if rid not in known))


def _lines_in(program: Any, rounds: Sequence[RoundRecord]) -> tuple[SourcedLine, ...]:
    """Return the lines of all updates that stand in the program, each with every record that taught it."""
    instructions = instructions_of(program)
    found: dict[tuple[str, str], dict[str, None]] = {}
    for record in rounds:
        for update in record.updates:
            names = [update.component] if update.component in instructions else list(instructions)
            for text, record_ids in update.entries:
                for name in names:
                    if text and text in instructions[name]:
                        found.setdefault((name, text), {}).update(dict.fromkeys(record_ids))
    return tuple(SourcedLine(name, text, tuple(ids)) for (name, text), ids in found.items())


def _sources(rounds: Sequence[RoundRecord]) -> dict[str, RecordSource]:
    sources: dict[str, RecordSource] = {}
    for record in rounds:
        read = {rid for update in record.updates for call in update.calls for rid in call.record_ids}
        feedback = record.feedback or ("",) * len(record.record_ids)
        for rid, example, score, words in zip(record.record_ids, record.examples, record.scores, feedback, strict=True):
            if rid in read:
                sources[rid] = RecordSource(rid, example, score, words)
    return sources
