"""The tour of `python -m dspy_combee`: a real prompt-learning problem, before, during and after, with its costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dspy

from dspy_combee.batch_size import DEFAULT_CANDIDATES, BatchSizeController
from dspy_combee.combee import Combee
from dspy_combee.demo.messages import load_messages, routing_metric, routing_program
from dspy_combee.errors import LMUnavailableError
from dspy_combee.report.result import CombeeResult
from dspy_combee.runtime.budget import Spend
from dspy_combee.runtime.execution.threads import ThreadExecutor
from dspy_combee.runtime.quiet import quiet_progress

Write = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TourOptions:
    """How large the tour is."""

    train: int
    """Train examples."""
    val: int
    """Validation examples."""
    test: int
    """Held-out examples for the scores before and after."""
    metric_calls: int
    """Rollouts that Combee may spend."""
    num_threads: int
    seed: int = 0
    gepa_rounds: int = 6
    """Rounds of plain `dspy.GEPA` to compare with."""
    score_gepa: bool = True
    """Whether plain GEPA's program is scored on the held-out examples too."""
    candidates: tuple[int, ...] = DEFAULT_CANDIDATES
    """Batch sizes that the controller profiles."""
    duplication: int = 2
    """How often each record is dealt."""
    log_dir: str | None = None


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A score on held-out examples."""

    right: int
    total: int

    def __str__(self) -> str:
        low, high = wilson_interval(self.right, self.total)
        share = self.right / self.total
        return f"{self.right} of {self.total} right = {share:.0%} (95 % interval {low:.0%} to {high:.0%})"


def run_tour(task_lm: dspy.LM, reflection_lm: dspy.LM, options: TourOptions, write: Write) -> CombeeResult:
    """Run the tour and return Combee's result; what a reader should see goes through `write`."""
    train, val, test = _split(options)
    program = routing_program()
    with dspy.context(lm=task_lm):
        write(f"{len(train)} train, {len(val)} validation, {len(test)} held-out messages; for example:")
        write(f"  {train[0].message!r} -> {train[0].code}")
        before = held_out_score(program, test, options.num_threads, "score before")
        write(f"Before: {before}\n")
        optimizer = Combee(
            _gepa(reflection_lm, options),
            controller=BatchSizeController(candidates=options.candidates),
            duplication=options.duplication,
            num_threads=options.num_threads,
            seed=options.seed,
            log_dir=options.log_dir,
        )
        write(f"At most: {_bounds(optimizer, program, train, val)}")
        compiled = optimizer.compile(program, trainset=train, valset=val)
        result = optimizer.last_result
        assert result is not None
        _write_result(result, write)
        after = held_out_score(compiled, test, options.num_threads, "score after")
        write(f"Before: {before}\nAfter:  {after}\n")
        _compare_with_gepa(reflection_lm, options, program, result, write)
    return result


def wilson_interval(right: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion (E. B. Wilson, 1927)."""
    share = right / total
    middle = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def _split(options: TourOptions) -> tuple[list[dspy.Example], list[dspy.Example], list[dspy.Example]]:
    train, val, test = load_messages()
    return train[: options.train], val[: options.val], test[: options.test]


def _gepa(reflection_lm: dspy.LM, options: TourOptions, **gepa_kwargs: Any) -> Any:
    return dspy.GEPA(
        metric=routing_metric,
        max_metric_calls=options.metric_calls,
        reflection_lm=reflection_lm,
        num_threads=options.num_threads,
        seed=options.seed,
        use_merge=False,
        gepa_kwargs=gepa_kwargs,
    )


def _bounds(optimizer: Combee, program: dspy.Module, train: list[dspy.Example], val: list[dspy.Example]) -> str:
    bounds = optimizer.estimate(program, trainset=train, valset=val)
    return f"{bounds.metric_calls} rollouts, batches of up to {bounds.largest_batch} messages\n"


def held_out_score(program: dspy.Module, examples: Sequence[dspy.Example], num_threads: int, label: str) -> HeldOut:
    """Count the right answers; a reply that cannot be read is a wrong one, and a model that fails is none at all.

    Raises:
        LMUnavailableError: The model failed.
    """
    from tqdm import tqdm

    with tqdm(total=len(examples), desc=label, unit="message", leave=False) as bar:
        outcomes = ThreadExecutor(num_threads).run(
            lambda example: routing_metric(example, program(**example.inputs())).score,
            examples,
            on_done=lambda outcome: _advance(bar, outcome.error),
        )
    return HeldOut(sum(outcome.value == 1.0 for outcome in outcomes), len(outcomes))


def _advance(bar: Any, error: Exception | None) -> None:
    from dspy.utils.exceptions import AdapterParseError

    if error is not None and not isinstance(error, AdapterParseError):
        raise LMUnavailableError(f"the model cannot be asked: {error}") from error
    bar.update()


def _write_result(result: CombeeResult, write: Write) -> None:
    write("\nRounds:")
    for item in result.rounds:
        scores = "" if item.batch_score_after is None else f", on the batch {item.batch_score_before:.2f} -> "
        scores += "" if item.batch_score_after is None else f"{item.batch_score_after:.2f}"
        val = "" if item.val_score is None else f", validation {item.val_score:.2f}"
        write(
            f"  {item.number}. batch {item.batch_size:>3}, {item.seconds:6.1f} s, {len(item.calls)} aggregation calls, "
            f"{item.entries} lessons{scores}{val}"
        )
    if result.fit is not None:
        write(f"Batch size {result.batch_size}: {result.fit.reason}.")
    write("\nThe learned instruction, and where each line came from:")
    sources = {line.text: line.record_ids for line in result.provenance.lines}
    for line in result.diff.splitlines():
        ids = sources.get(line[1:].removeprefix("- "), ()) if line.startswith("+") else ()
        write(f"  {line}" + (f"    <- {_describe_sources(ids, result)}" if ids else ""))
    unused = result.provenance.unused()
    write(f"{len(unused)} of {len(result.provenance.sources)} records ended in no line.")
    write(f"\nStopped: {result.stop_reason}. Spent: {_describe_spend(result.spend)}, {result.seconds:.0f} s.\n")


def _describe_sources(ids: Sequence[str], result: CombeeResult) -> str:
    shown = [
        f"message {result.provenance.sources[rid].example_index}" for rid in ids if rid in result.provenance.sources
    ]
    return ", ".join(shown[:4]) + (" ..." if len(shown) > 4 else "")


def _compare_with_gepa(
    reflection_lm: dspy.LM, options: TourOptions, program: dspy.Module, result: CombeeResult, write: Write
) -> None:
    """Run plain `dspy.GEPA` at its default batch, and say what it takes to read as many examples as Combee did."""
    rounds = options.gepa_rounds
    write(f"Plain dspy.GEPA, batches of 3, {rounds} rounds:")
    train, val, test = _split(options)
    began = time.monotonic()
    with quiet_progress(keep_main_bar=True):
        gepa = _gepa(reflection_lm, options, stop_callbacks=lambda state: state.i + 1 >= rounds)
        plain = gepa.compile(program, trainset=train, valset=val)
    seconds = time.monotonic() - began
    if options.score_gepa:
        write(f"  {held_out_score(plain, test, options.num_threads, 'score of plain GEPA')}")
    read = sum(item.batch_size for item in result.rounds)
    pace = seconds / (3 * rounds)
    write(f"  It read {3 * rounds} examples in {seconds:.0f} s.")
    write(f"  At that pace it reads the {read} examples of Combee's rounds in {pace * read:.0f} s.")
    write(f"  Combee took {result.seconds:.0f} s.")


def _describe_spend(spend: Spend) -> str:
    return f"{spend.lm_calls} model calls, {spend.input_tokens:,} tokens in and {spend.output_tokens:,} out"
