"""Context overload on a real model: how many of N specific rules survive the aggregation of N reflections.

Each reflection is a paragraph of feedback with one specific rule inside general advice. Kept is strict: the code of a
rule and both words of its condition in one sentence or line of the result. The embedded 1.5B model answers, through
the proposer that `Combee` uses; `--lm` names another one.

    python benchmarks/combee_overload.py --counts 25 --seeds 0 1
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import dspy

from dspy_combee import CombeeProposer, Scan, SinglePass, resolve_lm
from dspy_combee.aggregation.base import Aggregation
from dspy_combee.runtime.budget import Meter
from dspy_combee.runtime.execution.threads import ThreadExecutor

INSTRUCTION = "Give the desk code for a request. A code is a letter, a hyphen and two digits."
SUBJECTS = {
    "invoice": "an invoice is disputed",
    "passport": "a passport was lost",
    "printer": "a printer does not print",
    "refund": "a refund is wanted",
    "parking": "a parking space is asked for",
    "allergy": "an allergy is reported",
    "password": "a password was forgotten",
    "delivery": "a delivery is late",
    "contract": "a contract is to be ended",
    "warranty": "a warranty is claimed",
    "visitor": "a visitor is announced",
    "ladder": "a ladder is borrowed",
    "keyboard": "a keyboard is broken",
    "translation": "a translation is needed",
    "budget": "a budget is exceeded",
    "training": "a training is booked",
    "window": "a window does not close",
    "archive": "an archive box is wanted",
    "courier": "a courier is ordered",
    "badge": "a badge does not open a door",
}
DETAILS = {
    "abroad": "and it happened abroad",
    "student": "and it is for a student",
    "weekend": "and it is the weekend",
    "duplicate": "and it is a duplicate",
}
BEFORE = (
    "The answer shows that the request was read in haste. It pays to slow down and to consider what is really asked.",
    "This is not what the desk expects. Accuracy matters, since every wrong code costs a colleague time.",
    "The reasoning went in the right direction but stopped too early. Look at all parts of the request.",
    "Such requests come up often, so it is worth getting them right. Think about who will work on it next.",
)
AFTER = (
    "In general, stay consistent from one request to the next and keep the answer short.",
    "As always, double-check the format before answering and do not guess.",
    "A careful and polite manner helps in all cases, and so does reading twice.",
    "When unsure, weigh the alternatives and choose the one that fits the whole request.",
)


@dataclass(frozen=True)
class Rule:
    """One rule: when it holds, and the code that nobody could guess."""

    subject: str
    detail: str
    code: str

    @property
    def sentence(self) -> str:
        """The rule as the feedback states it."""
        return f"When {SUBJECTS[self.subject]} {DETAILS[self.detail]}, the code is {self.code}."

    def is_kept(self, text: str) -> bool:
        """Whether one sentence or line of the text has the code and both words of the condition."""
        units = re.split(r"\n|(?<=[.!?;]) ", text)
        return any(self.code in unit and self.subject in unit.lower() and self.detail in unit.lower() for unit in units)


def make_rules(count: int, rng: random.Random) -> list[Rule]:
    pairs = [(subject, detail) for subject in SUBJECTS for detail in DETAILS]
    codes = [f"{letter}-{number}" for letter in "BDFGHKLMNPRSTVWXZ" for number in range(10, 100)]
    return [
        Rule(subject, detail, code)
        for (subject, detail), code in zip(rng.sample(pairs, count), rng.sample(codes, count), strict=True)
    ]


def make_record(rule: Rule, rng: random.Random, *, bare: bool) -> dict[str, object]:
    wrong = f"{rng.choice('ACEIJ')}-{rng.randrange(10, 100)}"
    request = f"Hello, {SUBJECTS[rule.subject]} {DETAILS[rule.detail]}. What now?"
    feedback = f"{rng.choice(BEFORE)} {rule.sentence} {rng.choice(AFTER)}"
    return {
        "Inputs": {"request": request},
        "Generated Outputs": {"code": wrong},
        "Feedback": rule.sentence if bare else feedback,
    }


def variants(names: list[str]) -> Iterator[tuple[str, Aggregation, str]]:
    known: dict[str, tuple[Aggregation, str]] = {
        "single pass, rewrite": (SinglePass(), "rewrite"),
        "single pass, lessons": (SinglePass(), "lessons"),
        "scan, rewrite, p=1": (Scan(duplication=1), "rewrite"),
        "scan, rewrite, p=2": (Scan(duplication=2), "rewrite"),
        "scan, lessons, p=1": (Scan(duplication=1), "lessons"),
        "scan, lessons, p=2": (Scan(duplication=2), "lessons"),
        "scan, lessons, p=3": (Scan(duplication=3), "lessons"),
    }
    for name in names or known:
        yield name, *known[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lm", help="any name that dspy.LM takes; the embedded model by default")
    parser.add_argument("--counts", type=int, nargs="+", default=[25])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--variants", nargs="*", default=[])
    parser.add_argument("--bare", action="store_true", help="short bare rules instead of paragraphs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="print every result")
    arguments = parser.parse_args()
    lm = resolve_lm(arguments.lm).copy(cache=False)
    print("| N | aggregation | seed | kept | lines | calls | tokens in | tokens out | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for count in arguments.counts:
        for name, aggregation, form in variants(arguments.variants):
            for seed in arguments.seeds:
                rng = random.Random(seed)
                rules = make_rules(count, rng)
                records = [make_record(rule, rng, bare=arguments.bare) for rule in rules]
                proposer = CombeeProposer(
                    aggregation=aggregation, form=form, seed=seed, executor=ThreadExecutor(arguments.threads)
                )
                meter = Meter()
                began = time.monotonic()
                with dspy.context(lm=lm), meter.installed():
                    answer = proposer(
                        candidate={"desk": INSTRUCTION},
                        reflective_dataset={"desk": records},
                        components_to_update=["desk"],
                    )
                seconds = time.monotonic() - began
                text = answer.get("desk", "")
                kept = sum(rule.is_kept(text) for rule in rules)
                lines = len(text.splitlines())
                spend = meter.spend
                print(
                    f"| {count} | {name} | {seed} | {kept} | {lines} | {spend.lm_calls} | {spend.input_tokens} "
                    f"| {spend.output_tokens} | {seconds:.0f} |",
                    flush=True,
                )
                if arguments.show:
                    print(text, flush=True)


if __name__ == "__main__":
    main()
