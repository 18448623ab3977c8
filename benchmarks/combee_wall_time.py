"""Figure 1: how close the wall time of an aggregation comes to its critical path, which is levels x latency of a call.

    python benchmarks/combee_wall_time.py [--quick]

A simulated model waits and answers; everything else is the real thing: `CombeeProposer`, `Scan`, threads, DSPy's own
adapters. Three tables: every call takes the same time; log-normal times in which one call in twenty takes ten times as
long, with and without a second request for stragglers; and only the last level's single call straggles.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import dspy

from dspy_combee import CombeeProposer, Scan
from dspy_combee.aggregation.waves import CallRunner
from dspy_combee.runtime.execution.threads import ThreadExecutor
from dspy_combee.runtime.hedge import HedgePolicy
from dspy_combee.scan import plan_scan
from dspy_combee.seeding import branch_rng
from dspy_combee.testing import lessons_reply, scripted_lm

WORKERS = 160
"""The first level of 400 records and 3 components has 150 calls."""
RECORD_ID = re.compile(r"^\[(r\d+)\]$", re.MULTILINE)


@dataclass(frozen=True)
class Timing:
    """One aggregation."""

    seconds: float
    cpu_seconds: float
    calls: int
    ideal_calls: int
    lessons: int


def answer(prompt: str, call_number: int) -> str:
    """Answer as a perfect model: one line a record at the first level, no operation above."""
    ids = RECORD_ID.findall(prompt)
    if not ids:
        return "[[ ## operations ## ]]\nNONE\n\n[[ ## completed ## ]]"
    return lessons_reply((rid, f"When the order is {rid}, answer K-{rid[1:]}.") for rid in ids)


def records(count: int, first: int) -> list[Mapping[str, Any]]:
    """Return reflective records in GEPA's shape."""
    return [
        {
            "Inputs": {"question": f"What is the code of order {number}?"},
            "Generated Outputs": {"answer": "K-0"},
            "Feedback": f"Wrong: an order r{number} has the code K-{number}.",
        }
        for number in range(first, first + count)
    ]


def aggregate(
    count: int, components: int, latency: Callable[[str, int], float], *, hedge: HedgePolicy | None, seed: int
) -> Timing:
    """Let a proposer aggregate `count` records of each component, and time it."""
    lm = scripted_lm(answer, latency=latency)
    proposer = CombeeProposer(
        aggregation=Scan(runner=CallRunner(hedge=hedge)), executor=ThreadExecutor(WORKERS), seed=seed
    )
    names = [f"part_{number}" for number in range(components)]
    candidate = {name: f"Answer for {name}." for name in names}
    dataset = {name: records(count, 1 + count * index) for index, name in enumerate(names)}
    with dspy.context(lm=lm):
        began, cpu_began = time.perf_counter(), time.process_time()
        texts = proposer(candidate=candidate, reflective_dataset=dataset, components_to_update=names)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    lessons = sum(len(proposer.lessons_of(name, texts[name])) for name in names)
    return Timing(seconds, cpu, lm.engine.calls, components * plan_scan(count, copies=2).calls, lessons)


def published_seconds(count: int, latency: float) -> float:
    """Return what one proposal takes when `floor(sqrt(n))` map calls follow each other and a reduce call ends them."""
    return (math.isqrt(count) + 1) * latency


def constant(sizes: Sequence[int], latency: float, repeats: int) -> None:
    """Print the table for calls that all take the same time."""
    print(f"\nEvery call takes {latency:g} s; median of {repeats} runs, {WORKERS} threads.\n")
    print(
        "| records | components | levels | calls | ideal | Combee | over ideal | CPU | one after another (computed) |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for components in (1, 3):
        for count in sizes:
            runs = [
                aggregate(count, components, lambda *_: latency, hedge=HedgePolicy(), seed=seed)
                for seed in range(repeats)
            ]
            seconds = statistics.median(run.seconds for run in runs)
            levels = len(plan_scan(count, copies=2).levels)
            assert all(run.calls == run.ideal_calls and run.lessons == count * components for run in runs), runs
            serial = f"{published_seconds(count, latency):.1f} s" if components == 1 else ""
            print(
                f"| {count} | {components} | {levels} | {runs[0].calls} | {levels * latency:.2f} s | {seconds:.2f} s "
                f"| {seconds / (levels * latency):.2f}x | {statistics.median(r.cpu_seconds for r in runs):.2f} s "
                f"| {serial} |"
            )


def heavy_tailed(seed: int, median: float) -> Callable[[str, int], float]:
    """Return log-normal latencies (sigma 0.25) of which one in twenty is ten times as long."""

    def latency(prompt: str, call_number: int) -> float:
        rng = branch_rng(seed, "latency", call_number)
        return median * math.exp(rng.gauss(0, 0.25)) * (10 if rng.random() < 1 / 20 else 1)

    return latency


def stragglers(sizes: Sequence[int], median: float, repeats: int) -> None:
    """Print the table for calls of which a few take far longer than the rest."""
    print(f"\nLog-normal, median {median:g} s, one call in twenty takes 10x; mean of {repeats} runs, 1 component.\n")
    print("| records | ideal | waiting for stragglers | asking them again | calls more |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for count in sizes:
        ideal = len(plan_scan(count, copies=2).levels) * median
        seconds: dict[bool, float] = {}
        extra = 0.0
        for is_hedged in (False, True):
            hedge = HedgePolicy() if is_hedged else None
            runs = [aggregate(count, 1, heavy_tailed(seed, median), hedge=hedge, seed=seed) for seed in range(repeats)]
            seconds[is_hedged] = statistics.fmean(run.seconds for run in runs)
            extra = statistics.fmean(run.calls - run.ideal_calls for run in runs)
        print(
            f"| {count} | {ideal:.2f} s | {seconds[False]:.2f} s ({seconds[False] / ideal:.1f}x) "
            f"| {seconds[True]:.2f} s ({seconds[True] / ideal:.1f}x) | {extra:.1f} |"
        )


def slow_at(slow_call: int, usual: float, slow: float) -> Callable[[str, int], float]:
    """Return latencies of which only that of the call with this number is slow."""
    return lambda prompt, call_number: slow if call_number == slow_call else usual


def last_straggler(sizes: Sequence[int], usual: float, slow: float) -> None:
    """Print the table for aggregations of which only the last level's single call takes long."""
    print(f"\nEvery call takes {usual:g} s, the last level's first request {slow:g} s; 1 run, 1 component.\n")
    print("| records | ideal | waiting for it | asking it again | calls more |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for count in sizes:
        latency = slow_at(plan_scan(count, copies=2).calls, usual, slow)
        waited, asked = (aggregate(count, 1, latency, hedge=hedge, seed=0) for hedge in (None, HedgePolicy()))
        print(
            f"| {count} | {2 * usual:.2f} s | {waited.seconds:.2f} s | {asked.seconds:.2f} s "
            f"| {asked.calls - asked.ideal_calls} |"
        )


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller, for a look: about ten seconds")
    quick = parser.parse_args().quick
    logging.getLogger("dspy_combee").setLevel(logging.ERROR)
    aggregate(9, 1, lambda *_: 0.0, hedge=None, seed=0)  # what is loaded on first use is not the aggregation's time
    constant((9, 25) if quick else (9, 25, 100, 400), 0.5, 1 if quick else 3)
    stragglers((25,) if quick else (9, 25, 100, 400), 0.3, 2 if quick else 8)
    last_straggler((25,) if quick else (9, 25, 100, 400), 0.3, 3.0 if quick else 9.0)


if __name__ == "__main__":
    main()
