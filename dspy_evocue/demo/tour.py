"""The tour of `python -m dspy_evocue`: score, call sites, candidates, trials, confirmation, score on new tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import dspy

from dspy_evocue.comparison import Comparison
from dspy_evocue.demo.problem import Problem
from dspy_evocue.evocue import EvoCUE
from dspy_evocue.frozen_evaluation import compare
from dspy_evocue.report.explain import trial_counts
from dspy_evocue.report.result import CandidateOutcome, EvoCUEResult
from dspy_evocue.site_map import list_sites

Write = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TourOptions:
    """How large the tour is."""

    train: int
    """Tasks to learn from and to confirm on."""
    test: int
    """Tasks that are never learned from."""
    trial_tasks: int
    confirmation_tasks: int
    max_rounds: int = 2
    num_threads: int = 4
    seed: int = 0
    log_dir: str | None = None
    progress: bool = False


def run_tour(
    problem: Problem, task_lm: dspy.LM, reflection_lm: dspy.LM, options: TourOptions, write: Write
) -> EvoCUEResult:
    """Run the tour and return the learner's result; what a reader should see goes through `write`."""
    tasks = problem.tasks(options.train + options.test)
    train, test = tasks[: options.train], tasks[options.train :]
    optimizer = EvoCUE(
        problem.metric,
        reflection_lm=reflection_lm,
        environment=problem.environment,
        knowledge=problem.knowledge,
        max_rounds=options.max_rounds,
        trial_tasks=options.trial_tasks,
        confirmation_tasks=options.confirmation_tasks,
        num_threads=options.num_threads,
        seed=options.seed,
        log_dir=options.log_dir,
        progress=options.progress,
    )
    with dspy.context(lm=task_lm):
        write(problem.about)
        write(f"{len(train)} tasks to learn from and to confirm on, {len(test)} held out; for example:")
        write(f"  {train[0].request}\n")
        if problem.knowledge:
            write("Untested ideas:\n" + _indented("\n".join(problem.knowledge)) + "\n")
        write("Its call sites, in three runs:")
        write(_indented(str(list_sites(problem.agent, train[:3], environment=problem.environment))))
        write(f"\nLearning takes {optimizer.estimate(problem.agent, trainset=train)}\n")
        try:
            program = optimizer.compile(problem.agent, trainset=train)
        finally:
            # Also after an interrupt or an outage: what was found until then was paid for.
            if optimizer.last_result is not None:
                _write_rounds(optimizer.last_result, write)
        result = optimizer.last_result
        assert result is not None, "compile leaves a result"
        _write_held_out(problem, program, test, result, options, write)
    return result


def _write_held_out(
    problem: Problem,
    program: dspy.Module,
    test: Sequence[dspy.Example],
    result: EvoCUEResult,
    options: TourOptions,
    write: Write,
) -> None:
    began = time.monotonic()
    compared = _held_out(problem, program, test, result, options)
    unchanged = "" if result.edits else ", which are the same"
    write(f"On the held-out tasks, each run by both programs{unchanged}:")
    write(_indented(str(compared).replace("; ", "\n")))
    for task in compared.tasks:
        for name, arm in (("before", task.before), ("after", task.after)):
            if arm.failure:
                write(f"  {task.task_id} {name}: {arm.failure}")
    write(f"  in {_shown_time(time.monotonic() - began)}")


def _held_out(
    problem: Problem, program: dspy.Module, test: Sequence[dspy.Example], result: EvoCUEResult, options: TourOptions
) -> Comparison:
    return compare(
        problem.agent,
        program,
        test,
        problem.metric,
        environment=problem.environment,
        learned=result.identity.data_roles,
        num_threads=options.num_threads,
        log_dir=options.log_dir,
        progress=options.progress,
    )


def _write_rounds(result: EvoCUEResult, write: Write) -> None:
    for one in result.rounds:
        score = "no score" if one.mean_base_score is None else f"{one.mean_base_score:.2f}"
        write(f"Round {one.number}: the program scores {score} on {len(one.base_scores)} recorded tasks.")
        for name, diagnosis in list(one.diagnoses.items())[:1]:
            write(f"  {name}: {diagnosis}")
        for text, reasons in one.refused:
            write(f'  Proposed and refused: "{text}": {reasons}')
        for candidate in one.candidates:
            _write_candidate(candidate, write)
        if one.confirmation is not None:
            write(f"  Confirmation from task start, on tasks never seen: {one.confirmation.decision.reason}")
        for note in one.notes:
            write(f"  {note}")
        write("")
    write(result.explain().partition("\n\n")[0])
    spend, savings = result.spend, result.savings
    write(
        f"\nIt took {spend.lm_calls} model calls ({spend.input_tokens} tokens in, {spend.output_tokens} out; "
        f"{spend.cached_calls} more were answered by the cache) and {spend.metric_calls} scored runs, earlier parts of "
        f"a resumed run included, and {_shown_time(result.seconds)} since this start; checkpoints saved "
        f"{savings.prefix_calls} calls, stopping early {savings.trials_not_run} trials and {savings.pairs_not_run} "
        "confirmation pairs.\n"
    )


def _write_candidate(candidate: CandidateOutcome, write: Write) -> None:
    places = " or ".join(map(str, candidate.edit.sites))
    write(f"  Candidate {candidate.edit_id} on {places}:")
    write(f'    "{candidate.edit.instruction() or candidate.edit.describe()}"')
    write("    task       begins at call  without -> with it  calls that differ  model calls (without + with)")
    for trial in candidate.trials:
        scores = " -> ".join("?" if score is None else f"{score:g}" for score in (trial.before, trial.after))
        begins = trial.status if trial.checkpoint is None else str(trial.checkpoint)
        write(
            f"    {trial.task_id:<10} {begins:<15} {scores:<19} {len(trial.changes):<18} "
            f"{trial.parent.lm_calls} + {trial.edited.lm_calls}"
        )
    reason = candidate.reason[:1].upper() + candidate.reason[1:]
    write(f"    {trial_counts(candidate.trials)}. {reason}. {candidate.fate.capitalize()}.")


def _shown_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))
