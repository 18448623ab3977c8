"""Which wording makes a small model list the most lessons of a group of records, each with its record id?

Each group holds 3, 5 or 7 records of the routing demo that were answered wrongly; each record's feedback has one
specific rule inside general advice. A lesson is *kept* when one lesson that cites the record has the rule's code and
both parts of its condition; *found* leaves the citation out of account; *bare* lessons are kept and have no
advice around the rule. The embedded 1.5B model answers; `--lm` names
another one.

    python benchmarks/lesson_extraction.py --sizes 3 5 7 --records 15 --seed 0
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError
from pydantic import BaseModel, Field

from dspy_combee.demo import ROUTING_RULES, RoutingRule, keeps_rule, load_messages, routing_metric
from dspy_combee.records import render_record
from dspy_combee.runtime.local_lm import resolve_lm
from dspy_combee.signatures import ExtractLessons
from dspy_combee.typed_lessons import read_lessons

_BARE_LENGTH = 1.2  # of the length of the rule itself
_LINE = re.compile(r"^\W*\[?(r\d+)\]?[:\s-]*(.+)$")


@dataclass(frozen=True, slots=True)
class Shown:
    """A record as the model sees it, and the rule that its feedback states."""

    record_id: str
    text: str
    rule: RoutingRule


@dataclass(frozen=True, slots=True)
class Found:
    """A lesson that the model wrote."""

    record_ids: tuple[str, ...]
    text: str


Extract = Callable[[Sequence[Shown]], list[Found]]


class StateRulesAsLines(dspy.Signature):
    """List the specific rule that the feedback of each record teaches: one lesson for each record, none left out.

    State the whole condition of a rule and copy codes, labels, names and numbers exactly. Leave out general advice that
    would fit any task.
    """

    records: str = dspy.InputField(desc="the records, each headed by its [record id]")
    rules: str = dspy.OutputField(desc="one line for each record: [record id] rule")


class QuoteRules(dspy.Signature):
    """Find, in the feedback of each record, the one sentence that states a specific rule, and copy it word for word.

    The rest of the feedback is general advice: leave it out. Answer with one line for each record, in the order of the
    records: its id in brackets, then the sentence.
    """

    records: str = dspy.InputField(desc="the records, each headed by its [record id]")
    rules: str = dspy.OutputField(desc="one line for each record: [record id] the sentence, copied word for word")


class Quote(BaseModel):
    """One sentence of the feedback."""

    record_id: str = Field(description="the id of the record")
    sentence: str = Field(description="the sentence that states a specific rule, copied word for word")


class QuoteRulesAsList(dspy.Signature):
    """Find, in the feedback of each record, the one sentence that states a specific rule, and copy it word for word.

    The rest of the feedback is general advice: leave it out.
    """

    records: str = dspy.InputField(desc="the records, each headed by its [record id]")
    quotes: list[Quote] = dspy.OutputField(desc="one for each record, in the order of the records")


def one_field_a_record(instructions: str, desc: str) -> Extract:
    """Ask for one output field a record: no record can be left out, and no id has to be written."""

    def extract(records: Sequence[Shown]) -> list[Found]:
        fields: dict[str, Any] = {"records": (str, dspy.InputField(desc="each headed by its [record id]"))}
        for record in records:
            fields[f"rule_of_{record.record_id}"] = (str, dspy.OutputField(desc=desc.format(id=record.record_id)))
        signature = dspy.signatures.make_signature(fields, instructions)
        prediction = dspy.Predict(signature)(records=joined(records))
        return [
            Found((record.record_id,), str(getattr(prediction, f"rule_of_{record.record_id}"))) for record in records
        ]

    return extract


class QuoteOneRule(dspy.Signature):
    """Find the one sentence of the feedback that states a specific rule, and copy it word for word.

    The rest of the feedback is general advice: leave it out.
    """

    record: str = dspy.InputField()
    rule: str = dspy.OutputField(desc="the sentence, copied word for word")


class StateOneRule(dspy.Signature):
    """State the one specific rule that the feedback of this record teaches.

    State its whole condition and copy codes, labels, names and numbers exactly. Leave out general advice that would
    fit any task.
    """

    record: str = dspy.InputField()
    rule: str = dspy.OutputField()


def joined(records: Sequence[Shown]) -> str:
    return "\n\n".join(record.text for record in records)


def ids_of(records: Sequence[Shown]) -> list[str]:
    return [record.record_id for record in records]


def read_lines(reply: str, records: Sequence[Shown]) -> list[Found]:
    shown = set(ids_of(records))
    lines = [_LINE.match(line) for line in reply.splitlines()]
    return [Found((line[1],) if line[1] in shown else (), line[2]) for line in lines if line]


def stated_lines(records: Sequence[Shown]) -> list[Found]:
    return read_lines(dspy.Predict(StateRulesAsLines)(records=joined(records)).rules, records)


def stated_list(records: Sequence[Shown]) -> list[Found]:
    """What the package uses."""
    lessons = read_lessons(dspy.Predict(ExtractLessons)(records=joined(records)).lessons, ids_of(records))
    return [Found(lesson.record_ids, lesson.text) for lesson in lessons]


def quoted_lines(records: Sequence[Shown]) -> list[Found]:
    return read_lines(dspy.Predict(QuoteRules)(records=joined(records)).rules, records)


def quoted_list(records: Sequence[Shown]) -> list[Found]:
    quotes = dspy.Predict(QuoteRulesAsList)(records=joined(records)).quotes
    return [Found((quote.record_id.strip("[] "),), quote.sentence) for quote in quotes]


def one_call_a_record(signature: type[dspy.Signature]) -> Extract:
    def extract(records: Sequence[Shown]) -> list[Found]:
        predictor = dspy.Predict(signature)
        return [Found((record.record_id,), predictor(record=record.text).rule) for record in records]

    return extract


STATE = (
    "State the specific rule that the feedback of each record teaches, with its whole condition, and copy codes, "
    "labels, names and numbers exactly. Leave out general advice that would fit any task."
)
QUOTE = (
    "Find, in the feedback of each record, the one sentence that states a specific rule, and copy it word for word. "
    "The rest of the feedback is general advice: leave it out."
)
JSON, CHAT = dspy.JSONAdapter(), dspy.ChatAdapter(use_json_adapter_fallback=False)
VARIANTS: dict[str, tuple[Extract, dspy.Adapter]] = {
    "lines, state": (stated_lines, CHAT),
    "lines, quote": (quoted_lines, CHAT),
    "list, state, JSON (package)": (stated_list, JSON),
    "list, state, chat markers": (stated_list, CHAT),
    "list, quote, JSON": (quoted_list, JSON),
    "one field a record, state": (one_field_a_record(STATE, "the rule that record {id} teaches"), CHAT),
    "one field a record, quote": (one_field_a_record(QUOTE, "the sentence of record {id}"), CHAT),
    "one field a record, quote, JSON": (one_field_a_record(QUOTE, "the sentence of record {id}"), JSON),
    "one call a record, state": (one_call_a_record(StateOneRule), CHAT),
    "one call a record, quote": (one_call_a_record(QuoteOneRule), CHAT),
}


def make_records(count: int, seed: int) -> list[Shown]:
    """Return records of the training messages, each rule as seldom as possible, answered with a wrong code."""
    rng = random.Random(seed)
    rule_of = {rule.code: rule for rule in ROUTING_RULES}
    examples, _, _ = load_messages()
    by_code = {code: rng.sample([e for e in examples if e.code == code], 5) for code in rule_of}
    chosen = [by_code[code].pop() for _ in range(-(-count // 16)) for code in rng.sample(list(rule_of), 16)][:count]
    shown = []
    for number, example in enumerate(chosen, start=1):
        wrong = rng.choice(["A-12", "C-34", "Y-56", "Q-78"])
        record = {
            "Inputs": {"message": example.message},
            "Generated Outputs": {"code": wrong},
            "Feedback": routing_metric(example, dspy.Prediction(code=wrong)).feedback,
        }
        shown.append(Shown(f"r{number}", render_record(f"r{number}", record), rule_of[example.code]))
    return shown


@dataclass(slots=True)
class Tally:
    """What one variant did at one group size."""

    records: int = 0
    kept: int = 0
    found: int = 0
    bare: int = 0
    failed_calls: int = 0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    replies: list[str] = field(default_factory=list)


def measure(extract: Extract, adapter: dspy.Adapter, lm: dspy.LM, groups: Sequence[Sequence[Shown]]) -> Tally:
    tally = Tally()
    for group in groups:
        own = lm.copy()  # a history of its own
        began = time.monotonic()
        try:
            with dspy.context(lm=own, adapter=adapter):
                lessons = extract(group)
        except AdapterParseError:
            lessons = []
            tally.failed_calls += 1
        tally.seconds += time.monotonic() - began
        tally.calls += len(own.history)
        tally.tokens_in += sum(entry["usage"]["prompt_tokens"] for entry in own.history)
        tally.tokens_out += sum(entry["usage"]["completion_tokens"] for entry in own.history)
        tally.replies += [re.sub(r"\s+", " ", str(entry["outputs"][0])) for entry in own.history]
        for record in group:
            found = [lesson for lesson in lessons if keeps_rule(lesson.text, record.rule)]
            kept = [lesson for lesson in found if record.record_id in lesson.record_ids]
            tally.records += 1
            tally.found += bool(found)
            tally.kept += bool(kept)
            tally.bare += any(len(lesson.text) <= _BARE_LENGTH * len(record.rule.sentence) for lesson in kept)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lm", help="any name that dspy.LM takes; the embedded model by default")
    parser.add_argument("--sizes", type=int, nargs="+", default=[3, 5, 7], help="records a group")
    parser.add_argument("--records", type=int, default=15, help="records in all, for each size")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), metavar="NAME")
    parser.add_argument("--show", action="store_true", help="print every reply")
    arguments = parser.parse_args()
    lm = resolve_lm(arguments.lm, cache=False, temperature=0.0, max_tokens=1024)
    records = make_records(arguments.records, arguments.seed)
    print("| group of | form | kept | found | bare | unparsed | calls | tokens in | tokens out | seconds |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for size in arguments.sizes:
        groups = [records[start : start + size] for start in range(0, len(records), size)]
        for name in arguments.variants:
            extract, adapter = VARIANTS[name]
            tally = measure(extract, adapter, lm, groups)
            print(
                f"| {size} | {name} | {tally.kept} of {tally.records} | {tally.found} | {tally.bare} "
                f"| {tally.failed_calls} | {tally.calls} | {tally.tokens_in} | {tally.tokens_out} "
                f"| {tally.seconds:.0f} |",
                flush=True,
            )
            if arguments.show:
                print("\n".join(f"    {reply}" for reply in tally.replies), flush=True)


if __name__ == "__main__":
    main()
