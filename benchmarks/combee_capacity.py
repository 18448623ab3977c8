"""Quality against delay with an aggregator of limited capacity: batch sizes, group sizes, copies, aggregations.

Every reflection teaches one rule of its own. A call attends to `--capacity` items: of the m items that it is shown
each survives with probability 0.9 * min(1, capacity / m). An item is a reflection at the first level and a group's
update above it; where upper levels are checked by code (form "lessons"), nothing is lost there. The aggregations are
the real ones; the model and the clock are simulated: a call takes 1 s and 0.05 s an item, a rollout with its
reflection 3 s, and up to `--threads` of them run at once. `--judge` has the results of the aggregations judged as well,
by a scripted judge whose verdicts follow from the texts: that tests the judge's plumbing, not a judge.

    python benchmarks/combee_capacity.py --svg benchmarks/combee_capacity.svg
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import dspy

from dspy_combee import BatchSizeController, Entry, Reflection, Salvage, Scan, SinglePass, TextUpdate
from dspy_combee.aggregation import make_aggregation
from dspy_combee.aggregation.base import Aggregated, Aggregation, AggregationJob
from dspy_combee.judge import judge_lessons
from dspy_combee.report.charts import ScorePoint, front_chart
from dspy_combee.runtime.execution.threads import ThreadExecutor
from dspy_combee.testing import scripted_lm

CALL_SECONDS, ITEM_SECONDS, RUN_SECONDS = 1.0, 0.05, 3.0
RELIABILITY = 0.9
"""How often an item survives a call that is not crowded."""
FIXED_BATCHES = (1, 5, 10, 25, 50, 75, 100, 125)


@dataclass
class Aggregator:
    """A model that attends to so many items a call."""

    capacity: int
    rng: random.Random
    is_checked: bool

    def __call__(self, reflections: Sequence[Reflection]) -> TextUpdate:
        """Make one aggregation call."""
        is_upper = reflections[0].update is not None
        if not (is_upper and self.is_checked):
            chance = RELIABILITY * min(1.0, self.capacity / len(reflections))
            reflections = [one for one in reflections if self.rng.random() < chance]
        found: dict[str, dict[str, None]] = {}
        for one in reflections:
            pairs = [(e.text, e.record_ids) for e in one.update.entries] if is_upper else _rules(one)
            for text, record_ids in pairs:
                found.setdefault(text, {}).update(dict.fromkeys(record_ids))
        return TextUpdate(tuple(Entry(text, tuple(ids)) for text, ids in found.items()))

    def summarize(self, prompt: str, _: int) -> str:
        """Make one call for a summary, of which a rule is an item."""
        rules = list(dict.fromkeys(re.findall(r"rule-\d+", prompt)))
        kept = [rule for rule in rules if self.rng.random() < RELIABILITY * self.capacity / len(rules)]
        return f"[[ ## summary ## ]]\n{' '.join(kept) or 'be careful'}"


@dataclass(frozen=True)
class Outcome:
    """What one batch gave."""

    rules: frozenset[str]
    seconds: float
    calls: int
    levels: int


def honest_judge(prompt: str, _: int) -> str:
    """Judge a reflection as covered where the lessons name its rule."""
    lessons, reflections = prompt.rsplit("[[ ## lessons ## ]]", 1)[1].split("[[ ## reflections ## ]]")
    known = set(re.findall(r"rule-\d+", lessons))
    verdicts = [
        {"record_id": rid, "covered": "fully" if rule in known else "no", "specific": "specific"}
        for rid, rule in re.findall(r"\[(r\d+)\]\n.*?(rule-\d+)", reflections)
    ]
    return f"[[ ## verdicts ## ]]\n{json.dumps(verdicts)}"


def judged_coverage(outcome: Outcome, count: int) -> float:
    """Return the share of `count` reflections that the scripted judge finds covered."""
    reflections = [(f"r{n}", reflection_text(n)) for n in range(count)]
    lessons = "\n".join(sorted(outcome.rules)) or "(nothing)"
    found = judge_lessons(lessons, reflections, lm=scripted_lm(honest_judge), executor=ThreadExecutor(1))
    assert not found.unjudged, found.unjudged
    return len(found.fully_covered) / count


def reflection_text(number: int) -> str:
    return f"Take care. rule-{number} holds."


def _rules(one: Reflection) -> list[tuple[str, tuple[str, ...]]]:
    return [(rule, (rule.replace("rule-", "r"),)) for rule in re.findall(r"rule-\d+", one.text)]


def join(updates: Sequence[TextUpdate]) -> TextUpdate:
    entries = {entry.text: entry for update in updates for entry in update.entries}
    return TextUpdate(tuple(entries.values()))


def aggregate(
    aggregation: Aggregation, numbers: Sequence[int], *, capacity: int, seed: int, threads: int, is_checked: bool = True
) -> Outcome:
    """Aggregate one batch of reflections, one rule each."""
    rng = random.Random(seed)
    model = Aggregator(capacity, rng, is_checked)
    reflections = tuple(Reflection(reflection_text(n), (f"r{n}",)) for n in numbers)
    job = AggregationJob("self", reflections, model, join if is_checked else None)
    with dspy.context(lm=scripted_lm(model.summarize)):
        (result,) = aggregation.aggregate([job], executor=ThreadExecutor(1), rng=rng)
    rules = frozenset(entry.text for entry in result.update.entries) if result.update else frozenset[str]()
    seconds, levels = delay_of(result, threads)
    return Outcome(rules, seconds, len(result.calls), levels)


def delay_of(result: Aggregated, threads: int) -> tuple[float, int]:
    """Return the simulated wall time and the number of levels: the calls of a level run at once, levels in turn."""
    stages: dict[str, list[int]] = {}
    for call in result.calls:
        stages.setdefault(call.stage, []).append(len(call.record_ids))
    seconds, below = 0.0, 0
    for stage, sizes in stages.items():
        reads_updates = (stage.startswith("level") and below) or stage == "salvage, merged"
        # The records of such a call say how much is behind its updates, not how many it reads.
        updates = below if stage.startswith("level") else 1 + below
        items = math.ceil(updates / len(sizes)) if reads_updates else max(sizes)
        seconds += math.ceil(len(sizes) / threads) * (CALL_SECONDS + ITEM_SECONDS * items)
        below = len(sizes)
    return seconds, len(stages)


def epoch(total: int, batch: int, aggregation: Aggregation, *, capacity: int, seed: int, threads: int) -> Outcome:
    """Learn from all examples in batches of one size."""
    rng = random.Random(seed)
    order = list(range(total))
    rng.shuffle(order)
    rules: set[str] = set()
    seconds, calls = 0.0, 0
    for start in range(0, total, batch):
        part = order[start : start + batch]
        got = aggregate(aggregation, part, capacity=capacity, seed=seed * 1_000 + start, threads=threads)
        rules |= got.rules
        seconds += math.ceil(len(part) / threads) * RUN_SECONDS + got.seconds
        calls += got.calls
    return Outcome(frozenset(rules), seconds, calls, 0)


def controlled_batch(total: int, aggregation: Aggregation, *, capacity: int, seed: int, threads: int) -> int:
    """Return the batch that the controller picks from the delays of its profile."""
    controller = BatchSizeController(cap=max(1, total // 3), num_threads=threads)
    state = controller.start()
    while controller.is_profiling(state):
        size = controller.pick(state)
        got = aggregate(aggregation, range(size), capacity=capacity, seed=seed, threads=threads)
        seconds = math.ceil(size / threads) * RUN_SECONDS + got.seconds
        state = controller.observe(state, batch_size=size, seconds=seconds)
    return controller.pick(state)


def interval(values: Sequence[float]) -> str:
    """Return the mean with a 95 % interval of it."""
    spread = 1.96 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{100 * statistics.mean(values):.1f} ± {100 * spread:.1f}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)
    print()


class Figure:
    """The tables, with the settings that they share."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.capacity, self.threads = arguments.capacity, arguments.threads
        self.seeds = range(3 if arguments.quick else arguments.seeds)
        self.has_judge: bool = arguments.judge
        self.points: list[ScorePoint] = []

    def batches(self, total: int) -> None:
        """Print quality and delay of an epoch by batch size."""
        print(f"### Quality against delay, {total} examples, an epoch\n")
        rows = []
        for name in ("scan", "single_pass"):
            aggregation = make_aggregation(name, salvage=name == "scan")
            picked = controlled_batch(total, aggregation, capacity=self.capacity, seed=0, threads=self.threads)
            for batch in (*FIXED_BATCHES, "auto"):
                size = picked if batch == "auto" else int(batch)
                shared = {"capacity": self.capacity, "threads": self.threads}
                got = [epoch(total, size, aggregation, seed=seed, **shared) for seed in self.seeds]
                kept = [len(one.rules) / total for one in got]
                seconds = statistics.mean(one.seconds for one in got)
                shown = f"auto ({size})" if batch == "auto" else str(batch)
                rows.append((name, shown, interval(kept), f"{seconds:,.0f}", f"{got[0].calls:,}"))
                self.points.append(ScorePoint(seconds, statistics.mean(kept), f"{name} {shown}: {interval(kept)} %"))
        table(("aggregation", "batch", "rules kept, %", "delay, s", "aggregation calls"), rows)

    def groups(self, batch: int = 50) -> None:
        """Print the group-size sweep."""
        print(f"### Group size at batch {batch}, p = 2, two levels\n")
        rows = []
        for size in (1, 2, 3, 5, 7, 10, 15, 25, 50):
            cells: list[object] = [size]
            for is_checked in (False, True):
                got = self.aggregated(Scan(group_size=size, max_fan_in=2 * batch), batch, is_checked=is_checked)
                cells.append(interval([len(one.rules) / batch for one in got]))
            rows.append((*cells, got[0].calls, f"{got[0].seconds:.2f}"))
        table(("group size", "rewriting upper level, %", "checked upper level, %", "calls", "delay, s"), rows)

    def copies(self, batch: int = 50) -> None:
        """Print the sweep over the copies of each reflection."""
        print(f"### Copies at batch {batch}, two levels\n")
        rows = []
        for size in (None, 3):
            for p in range(1, 6):
                cells: list[object] = ["sqrt" if size is None else size, p]
                for is_checked in (False, True):
                    scan = Scan(duplication=p, group_size=size, max_fan_in=p * batch)
                    got = self.aggregated(scan, batch, is_checked=is_checked)
                    cells.append(interval([len(one.rules) / batch for one in got]))
                rows.append((*cells, got[0].calls, f"{got[0].seconds:.2f}"))
        table(("group size", "p", "rewriting upper level, %", "checked upper level, %", "calls", "delay, s"), rows)

    def aggregations(self, sizes: Sequence[int]) -> None:
        """Print every aggregation on one batch."""
        print("### Every aggregation, one batch of n reflections\n")
        rows = []
        for count in sizes:
            named: list[tuple[str, Aggregation, bool]] = [
                ("single_pass", SinglePass(), True),
                ("top_k", make_aggregation("top_k"), True),
                ("summarize", make_aggregation("summarize"), True),
                ("hierarchical", make_aggregation("hierarchical"), True),
                ("scan, rewriting", Scan(), False),
                ("scan, checked", Scan(), True),
                ("scan, checked, salvage", Salvage(Scan()), True),
                ("scan, rewriting, salvage", Salvage(Scan()), False),
            ]
            for name, aggregation, is_checked in named:
                if count > 400 and name in ("top_k", "hierarchical"):
                    continue
                got = self.aggregated(aggregation, count, is_checked=is_checked)
                kept = interval([len(one.rules) / count for one in got])
                judged = [interval([judged_coverage(one, count) for one in got])] if self.has_judge else []
                rows.append((count, name, kept, *judged, got[0].calls, f"{got[0].seconds:.2f}"))
        judge_head = ["scripted judge: covered, %"] if self.has_judge else []
        table(("n", "aggregation", "rules kept, %", *judge_head, "calls", "delay, s"), rows)

    def fan_ins(self, sizes: Sequence[int]) -> None:
        """Print the bound on what a call sees, from a small one to the published tree, which has none."""
        print("### The fan-in, p = 2\n")
        rows = []
        for count in sizes:
            for fan_in in (8, 10, 12, 16, 24, 32, None):
                scan = Scan(max_fan_in=fan_in or 2 * count)
                rewritten = self.aggregated(scan, count, is_checked=False)
                checked = self.aggregated(scan, count, is_checked=True)
                salvaged = self.aggregated(Salvage(scan), count, is_checked=True)
                kept = [interval([len(o.rules) / count for o in got]) for got in (rewritten, checked, salvaged)]
                spent = [f"{got[0].calls:,}, {got[0].seconds:.1f} s" for got in (checked, salvaged)]
                rows.append((count, fan_in or "none", checked[0].levels, *kept, *spent))
        head = ("n", "max_fan_in", "levels", "rewriting, %", "checked, %", "checked, salvage, %")
        table((*head, "calls, delay", "calls, delay with salvage"), rows)

    def aggregated(self, aggregation: Aggregation, count: int, *, is_checked: bool) -> list[Outcome]:
        """Aggregate one batch with every seed."""
        return [
            aggregate(
                aggregation,
                range(count),
                capacity=self.capacity,
                seed=seed,
                threads=self.threads,
                is_checked=is_checked,
            )
            for seed in self.seeds
        ]

    def plot(self, path: Path) -> None:
        """Write the front of the first table as an SVG file."""
        chart = front_chart(self.points, axis_title="delay of an epoch in seconds (log)", score_title="rules kept")
        style = (
            "<style>text{font:11px sans-serif}.line{fill:none;stroke:#2a6fb0;stroke-width:2}.mark{fill:#2a6fb0}"
            ".axis{stroke:#444}.grid{stroke:#ddd}</style>"
        )
        opened = chart.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        path.write_text(opened.replace("</title>", f"</title>{style}", 1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=int, default=10)
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--judge", action="store_true", help="judge the aggregations too, by a scripted judge")
    parser.add_argument("--svg", type=Path, help="where the plot of the quality-delay front is written")
    arguments = parser.parse_args()
    figure = Figure(arguments)
    figure.batches(250)
    figure.groups()
    figure.copies()
    figure.aggregations((25, 100) if arguments.quick else (25, 100, 400))
    figure.fan_ins((50, 200) if arguments.quick else (50, 200, 1_000, 5_000))
    if arguments.svg is not None:
        figure.plot(arguments.svg)


if __name__ == "__main__":
    main()
