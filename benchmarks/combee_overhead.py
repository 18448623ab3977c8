"""Figure 2: what Combee's own work costs, in CPU milliseconds a record, while no model is called.

    python benchmarks/combee_overhead.py [--quick]

Each step of one proposal is timed alone on the same records: give them ids and render them, plan the tree, deal the
copies, read the models' replies, merge their lessons in code, fit them into the instruction and render it.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from dspy_combee.learners.gepa_records import as_reflections, counting, identify, without_perfect
from dspy_combee.lessons import Lesson, LessonUpdate, attach_lessons, fit_lessons, merge_in_code, split_instruction
from dspy_combee.rule_sentences import repeated_advice, rule_sentences
from dspy_combee.scan import plan_scan
from dspy_combee.seeding import branch_rng
from dspy_combee.shuffle import augmented_shuffle
from dspy_combee.typed_lessons import read_lessons

Result = TypeVar("Result")
OBJECTS = "parcel invoice refund password router contract meter seat voucher badge".split()
EVENTS = "arrives damaged|is missing|was charged twice|cannot be opened|expires early|shows a wrong name".split("|")
PLACES = "the north depot|a partner shop|the mobile app|the night line|a regional office".split("|")


def rule(number: int) -> str:
    """Return one rule; every tenth record teaches the rule of the record before it."""
    known = number - 1 if number % 10 == 0 else number
    rng = branch_rng(0, "rule", known)
    return (
        f"When a {rng.choice(OBJECTS)} {rng.choice(EVENTS)} at {rng.choice(PLACES)} and the amount is above "
        f"{100 + known}, answer with code {chr(65 + known % 26)}-{known}, unless a courier is named. Quote the "
        "GT-7 terms."
    )


def records(count: int) -> list[dict[str, Any]]:
    """Return reflective records in GEPA's shape, about 500 characters each."""
    return [
        {
            "Inputs": {"message": f"Message {number}: " + "something happened to my order and nobody answers. " * 4},
            "Generated Outputs": {"reasoning": "It seems to be about an order.", "code": "A-0"},
            "Feedback": f"Wrong code. {rule(number)}",
        }
        for number in range(1, count + 1)
    ]


def replies(groups: list[list[Lesson]]) -> list[list[dict[str, str]]]:
    """Return what perfect first-level calls would answer, as a JSON reply holds it."""
    return [[{"record_id": lesson.record_ids[0], "rule": lesson.text} for lesson in group] for group in groups]


def timed(name: str, table: dict[str, float], function: Callable[[], Result], repeats: int) -> Result:
    """Run a step and note its fastest CPU seconds: the least disturbed run."""
    best = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        result = function()
        best = min(best, time.process_time() - began)
    table[name] = best
    return result


def steps(count: int, repeats: int) -> dict[str, float]:
    """Return the CPU seconds of each step for `count` records of one component."""
    table: dict[str, float] = {}
    raw = records(count)

    def render() -> Any:
        return as_reflections(without_perfect(identify(raw, counting()), 1.0), "part", max_chars=None)

    reflections = timed("ids and records as text", table, render, repeats)
    plan = timed("plan", table, lambda: plan_scan(count, copies=2), repeats)
    groups = len(plan.levels[0].group_sizes)
    dealt = timed(
        "shuffle",
        table,
        lambda: augmented_shuffle(reflections, copies=2, groups=groups, rng=random.Random(1)),
        repeats,
    )
    by_id = {f"r{number}": Lesson(rule(number), (f"r{number}",)) for number in range(1, count + 1)}
    answers = replies([[by_id[reflection.record_ids[0]] for reflection in group] for group in dealt])
    allowed = [[rid for reflection in group for rid in reflection.record_ids] for group in dealt]
    cases = {f"r{number}": str(record["Inputs"]) for number, record in enumerate(raw, start=1)}
    feedbacks = [record["Feedback"] for record in raw]
    advice = timed("find repeated advice", table, lambda: repeated_advice(feedbacks), repeats)
    updates = timed(
        "read the replies, cut lessons to the rule",
        table,
        lambda: [LessonUpdate(_read(items, ids, advice, cases)) for items, ids in zip(answers, allowed, strict=True)],
        repeats,
    )
    merged = timed("merge the lessons", table, lambda: _merge(updates), repeats)
    kept, _ = timed("fit into 40,000 characters", table, lambda: fit_lessons(merged, 40_000), repeats)
    text = timed("render the instruction", table, lambda: attach_lessons("Answer.", merged), repeats)
    timed("read it back", table, lambda: split_instruction(text), repeats)
    assert len(merged) == count - count // 10, f"{len(merged)} lessons of {count} records"
    assert 0 < len(kept) <= len(merged)
    return table


def _read(
    items: list[dict[str, str]], record_ids: list[str], advice: frozenset[str], cases: dict[str, str]
) -> tuple[Lesson, ...]:
    return tuple(
        replace(lesson, text=rule_sentences(lesson.text, advice=advice, case=cases[lesson.record_ids[0]]))
        for lesson in read_lessons(items, record_ids)
    )


def _merge(updates: list[LessonUpdate]) -> tuple[Lesson, ...]:
    from dspy_combee import specifics

    # What another repeat has read already would be free.
    specifics.specific_tokens.cache_clear()
    specifics.content_words.cache_clear()
    return merge_in_code([lesson for update in updates for lesson in update.entries])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller, for a look: a few seconds")
    quick = parser.parse_args().quick
    sizes = (100, 1_000) if quick else (1_000, 10_000)
    columns = {size: steps(size, 1 if quick else 3) for size in sizes}
    print("\nCPU milliseconds a record, one component, 2 copies; 9 of 10 records teach a rule of their own.\n")
    print(f"| step | {' | '.join(f'n = {size:,}' for size in sizes)} | growth |")
    print(f"| --- | {' | '.join('---:' for _ in sizes)} | ---: |")
    small, large = (columns[size] for size in sizes)
    for name in small:
        _row(name, sizes, (small[name], large[name]))
    _row("**all**", sizes, (sum(small.values()), sum(large.values())))


def _row(name: str, sizes: tuple[int, int], seconds: tuple[float, float]) -> None:
    each = [1000 * taken / size for taken, size in zip(seconds, sizes, strict=True)]
    growth = f"{each[1] / each[0]:.1f}x" if each[0] >= 0.0005 else ""
    print(f"| {name} | {each[0]:.4f} | {each[1]:.4f} | {growth} |")


if __name__ == "__main__":
    main()
