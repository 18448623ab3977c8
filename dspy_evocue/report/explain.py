"""A run of EvoCUE in plain words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dspy_evocue.report.result import CandidateOutcome, EvoCUEResult, Round
    from dspy_evocue.trial_record import TrialRecord

REASONS = {
    "perfect": "every recorded task was solved, so there was nothing to learn from",
    "budget": "the budget was spent",
    "no_improvement": "as many rounds as `patience` allows brought nothing",
    "interrupted": "it was interrupted",
    "error": "of an error",
    "stopped": "it was told to",
    "completed": "all rounds were done",
}
"""Why a run stopped, as the end of a sentence."""


def explain_result(result: EvoCUEResult) -> str:
    """Say what was tried, what came of it, and what the program has learned."""
    lines = [_verdict(result)]
    lines += [f"  {edit.edit_id}: {edit.describe()}" for edit in result.edits]
    for one in result.rounds:
        lines += ["", *_round_lines(one)]
    ending = f"The run stopped because {REASONS[result.stop_reason]}"
    lines += ["", f"{ending}: {result.error}" if result.error else f"{ending}."]
    lines += [_cost(result), *result.notes]
    if result.longest_shared_span:
        lines.append(
            f'The learned edits and a task have this stretch in common: "{_short(result.longest_shared_span)}".'
        )
    return "\n".join(lines)


def trial_counts(trials: Sequence[TrialRecord]) -> str:
    """Return how many trials ended better, worse, equal, and in any other way."""
    gains = [trial.gain for trial in trials if trial.gain is not None]
    parts = [
        f"{sum(gain > 0 for gain in gains)} better",
        f"{sum(gain < 0 for gain in gains)} worse",
        f"{sum(gain == 0 for gain in gains)} equal",
    ]
    others = Counter(trial.status.replace("_", " ") for trial in trials if trial.gain is None)
    return ", ".join([*parts, *(f"{count} {status}" for status, count in sorted(others.items()))])


def _verdict(result: EvoCUEResult) -> str:
    if result.edits:
        return f"The program has learned {_count(len(result.edits), 'edit')}:"
    tried = sum(len(one.candidates) for one in result.rounds)
    verb = "was" if tried == 1 else "were"
    if result.stop_reason in ("interrupted", "error", "budget"):
        return (
            f"The run ended early and no edit was inherited until then: the program is unchanged. "
            f"{_count(tried, 'candidate')} {verb} tried in {_count(len(result.rounds), 'round')}."
        )
    return (
        f"No edit was inherited: the program is unchanged. {_count(tried, 'candidate')} {verb} tried in "
        f"{_count(len(result.rounds), 'round')}; none showed a gain on other tasks that is more than luck."
    )


def _round_lines(one: Round) -> list[str]:
    mean = one.mean_base_score
    missing = sum(score is None for score in one.base_scores.values())
    lines = [
        f"Round {one.number}: the program scored {'nothing' if mean is None else f'{mean:.3f}'} on "
        f"{len(one.base_scores) - missing} recorded tasks{f', {missing} have no score' if missing else ''}."
    ]
    for candidate in one.candidates:
        lines += _candidate_lines(candidate)
    for text, reasons in one.refused:
        lines.append(f'  Refused unseen: "{_short(text)}": {reasons}')
    if one.confirmation is not None:
        confirmation = one.confirmation
        tasks = len({pair.task_id for pair in confirmation.pairs})
        lines.append(
            f"  Confirmation in {len(confirmation.pairs)} of at most {confirmation.planned_pairs} pairs on {tasks} "
            f"other tasks: {confirmation.decision.reason}"
        )
    return [*lines, *(f"  {note}" for note in one.notes)]


def _candidate_lines(candidate: CandidateOutcome) -> list[str]:
    places = " or ".join(map(str, candidate.edit.sites))
    return [
        f'  {candidate.edit_id} at {places}: "{_short(candidate.edit.instruction() or candidate.edit.describe())}"',
        f"    {len(candidate.trials)} trials: {trial_counts(candidate.trials)}. {_sentence(candidate.reason)}",
        f"    {candidate.fate.capitalize()}.",
    ]


def _cost(result: EvoCUEResult) -> str:
    spend, savings = result.spend, result.savings
    unknown = f" ({spend.calls_without_usage} calls of unknown usage)" if spend.calls_without_usage else ""
    return (
        f"It took {spend.lm_calls} model calls, {spend.total_tokens} tokens{unknown} and {spend.metric_calls} metric "
        f"calls. Checkpoints saved {savings.prefix_calls} calls, early stopping {savings.trials_not_run} trials and "
        f"{savings.pairs_not_run} confirmation pairs."
    )


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 200 else f"{flat[:197]}..."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
