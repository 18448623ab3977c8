"""Context overload on a real model: how many of N specific rules survive the aggregation of N reflections.

Each reflection is a paragraph of feedback with one specific rule inside general advice. Kept is strict: the code of a
rule and both words of its condition in one sentence or line of the result. The embedded 1.5B model answers, through
the proposer that `Combee` uses; `--lm` names another one. A run that is stopped goes on where it was when it is started
again with the same `--out`; `--table` prints what such files hold, and `--summary` only what was kept. With `--judge`
the model judges the results too, also those that the file has already; its verdicts stand beside the exact count, to
see whether it can be trusted.

    python benchmarks/combee_overload.py --counts 5 10 20 40 80 --seeds 0 1 2 --out overload.jsonl
    python benchmarks/combee_overload.py --table overload.jsonl
    python benchmarks/combee_overload.py --summary overload.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import dspy

from dspy_combee import CombeeProposer, Salvage, Scan, SinglePass, local_lm, resolve_lm
from dspy_combee.aggregation import make_aggregation
from dspy_combee.aggregation.base import Aggregation
from dspy_combee.judge import judge_lessons
from dspy_combee.learners.gepa_proposer import Form, ProposalReport, ProposerHooks
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
MOST_RULES = len(SUBJECTS) * len(DETAILS)
CONTEXT_TOKENS = 16_384
"""Of the embedded model: a call that reads 80 records takes 9,000, and its reply up to 3,000."""
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


@dataclass(frozen=True)
class Variant:
    """One aggregation in one form; some settings depend on how many reflections there are."""

    aggregation: Callable[[int], Aggregation]
    form: Form


def variants() -> dict[str, Variant]:
    """Return every aggregation that is compared, by its name in the tables."""
    found: dict[str, Variant] = {}
    for form in get_args(Form):
        found[f"single pass, {form}"] = Variant(lambda _: SinglePass(), form)
        for name in ("summarize", "hierarchical", "top_k"):
            found[f"{name}, {form}"] = Variant(lambda _, name=name: make_aggregation(name), form)
        for copies in (1, 2, 3):
            found[f"scan, {form}, p={copies}"] = Variant(lambda _, copies=copies: Scan(duplication=copies), form)
    found["scan, lessons, p=2, salvage"] = Variant(lambda _: Salvage(Scan()), "lessons")
    # Another tree than the default one from 57 reflections on.
    found["scan, lessons, p=2, published tree"] = Variant(lambda n: Scan(max_fan_in=2 * n), "lessons")
    for name, factor in (("half", 0.5), ("double", 2.0)):
        sized = Variant(lambda n, factor=factor: Scan(group_size=max(1, round(factor * math.sqrt(n)))), "lessons")
        found[f"scan, lessons, p=2, {name} sqrt"] = sized
    return found


@dataclass(frozen=True)
class Cell:
    """One measurement to make."""

    count: int
    variant: str
    seed: int
    bare: bool

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Cell:
        """Return the cell that a row is of."""
        return cls(row["count"], row["variant"], row["seed"], row["bare"])


def material(cell: Cell) -> tuple[list[Rule], list[dict[str, object]]]:
    """Return the rules of a cell and the records that teach them, in one order: `r1` teaches the first."""
    rng = random.Random(cell.seed)
    rules = make_rules(cell.count, rng)
    return rules, [make_record(rule, rng, bare=cell.bare) for rule in rules]


def run_cell(cell: Cell, lm: dspy.LM, *, threads: int) -> dict[str, Any]:
    """Aggregate N reflections once; a model that fails gives a row with `error` and without `kept`."""
    rules, records = material(cell)
    variant = variants()[cell.variant]
    reports: list[ProposalReport] = []
    proposer = CombeeProposer(
        aggregation=variant.aggregation(cell.count),
        form=variant.form,
        seed=cell.seed,
        executor=ThreadExecutor(threads),
        hooks=ProposerHooks(on_report=reports.append),
    )
    meter = Meter()
    began = time.monotonic()
    try:
        with dspy.context(lm=lm), meter.installed():
            answer = proposer(
                candidate={"desk": INSTRUCTION}, reflective_dataset={"desk": records}, components_to_update=["desk"]
            )
        found = kept_in(answer.get("desk", ""), rules, reports)
    except Exception as error:  # noqa: BLE001 - one cell of a run of hours: the others go on
        found = {"error": f"{type(error).__name__}: {error}"}
    spend = meter.spend
    return {
        **asdict(cell),
        **found,
        "calls": spend.lm_calls,
        "input_tokens": spend.input_tokens,
        "output_tokens": spend.output_tokens,
        "seconds": round(time.monotonic() - began, 1),
    }


def kept_in(text: str, rules: Sequence[Rule], reports: Sequence[ProposalReport]) -> dict[str, Any]:
    """Return how many rules the text keeps, or, where no call gave anything because the model failed, why."""
    aggregated = [report.aggregated for report in reports if report.aggregated is not None]
    errors = list(dict.fromkeys(call.error for one in aggregated for call in one.calls if call.error))
    if not text and any(not error.startswith("ReflectionError") for error in errors):
        return {"error": "; ".join(errors)}
    lost = {f"r{number}" for number, rule in enumerate(rules, start=1) if not rule.is_kept(text)}
    uncited = {record_id for one in aggregated for record_id in one.uncited}
    return {
        "kept": len(rules) - len(lost),
        # Without any text nothing is cited, whatever the calls before the failed one said.
        "cited_but_lost": len(lost - uncited) if text else 0,
        "lines": len(text.splitlines()),
        "call_errors": errors,
        "text": text,
    }


def judge(row: Mapping[str, Any], lm: dspy.LM, *, threads: int) -> dict[str, Any]:
    """Return what the model says of a row's text: counts of reflections, and on how many it agrees with the count."""
    rules, records = material(Cell.of(row))
    shown = [(f"r{number}", str(record["Feedback"])) for number, record in enumerate(records, start=1)]
    found = judge_lessons(row["text"], shown, lm=lm, executor=ThreadExecutor(threads))
    judged = [rid for rid, _ in shown if rid not in found.unjudged]
    kept = {rid for (rid, _), rule in zip(shown, rules, strict=True) if rule.is_kept(row["text"])}
    agrees = sum((rid in kept) == (rid in found.fully_covered) for rid in judged)
    counts = {name: getattr(found, name) for name in ("fully", "partly", "missing", "generic")}
    return {**counts, "unjudged": len(found.unjudged), "agrees": agrees}


def read_rows(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the rows of all files; of two of one cell the later one. A line cut off by a crash is left out."""
    rows: dict[Cell, dict[str, Any]] = {}
    for path in paths:
        for line in path.read_text("utf-8").splitlines() if path.exists() else ():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            rows[Cell.of(row)] = row
    return list(rows.values())


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row, on a line of its own even behind one that was cut off."""
    is_cut = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if is_cut else "") + json.dumps(row, ensure_ascii=False) + "\n")


HEAD = ("N", "records", "aggregation", "kept", "cited but lost", "lines", "calls", "tokens in", "tokens out", "seconds")
JUDGE_HEAD = ("judge: kept", "judge: specific, %", "judge agrees with the count, %")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the markdown table: what each seed kept, and the means of the rest."""
    order = list(variants())
    groups: dict[tuple[bool, int, int], list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["seed"]):
        groups.setdefault((row["bare"], row["count"], order.index(row["variant"])), []).append(row)
    is_judged = any("judge" in row for row in rows)
    head = (*HEAD, *JUDGE_HEAD) if is_judged else HEAD
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for key in sorted(groups):
        cells = _table_row(groups[key]) + (_judge_cells(groups[key]) if is_judged else [])
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a markdown table for each form of the records: what each seed kept, by aggregation and N."""
    parts = []
    for is_bare, title in ((False, "Paragraphs with one rule each"), (True, "Bare rules")):
        shown = [row for row in rows if row["bare"] == is_bare]
        counts = sorted({row["count"] for row in shown})
        if not shown:
            continue
        lines = [f"{title}:", "", "| aggregation | " + " | ".join(f"N = {count}" for count in counts) + " |"]
        lines.append("| --- |" + " --- |" * len(counts))
        for variant in variants():
            kept = [_kept([row for row in shown if (row["variant"], row["count"]) == (variant, n)]) for n in counts]
            if any(kept):
                lines.append(f"| {variant} | " + " | ".join(kept) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _kept(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what each seed kept, in their order."""
    ordered = sorted(rows, key=lambda row: row["seed"])
    return ", ".join("error" if "error" in row else str(row["kept"]) for row in ordered)


def _judge_cells(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    found = [row["judge"] for row in rows if "judge" in row]
    total = sum(one["fully"] + one["partly"] + one["missing"] for one in found)
    if not total:
        return ["-", "-", "-"]
    covered = sum(one["fully"] + one["partly"] for one in found)
    specific = f"{100 * (1 - sum(one['generic'] for one in found) / covered):.0f}" if covered else "-"
    fully = ", ".join(str(row["judge"]["fully"]) if "judge" in row else "-" for row in rows)
    return [fully, specific, f"{100 * sum(one['agrees'] for one in found) / total:.0f}"]


def _table_row(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    done = [row for row in rows if "error" not in row]
    kept = _kept(rows)
    mean = f" ({statistics.mean(row['kept'] for row in done):.1f})" if len(done) > 1 else ""
    names = ("cited_but_lost", "lines", "calls", "input_tokens", "output_tokens", "seconds")
    means = [f"{statistics.mean(row[name] for row in done):,.0f}" if done else "-" for name in names]
    first = rows[0]
    form = "bare" if first["bare"] else "paragraph"
    return [str(first["count"]), form, first["variant"], f"{kept} of {first['count']}{mean}", *means]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lm", help="any name that dspy.LM takes; the embedded model by default")
    parser.add_argument("--counts", type=int, nargs="+", default=[25], help=f"up to {MOST_RULES}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--variants", nargs="+", default=list(variants()), choices=list(variants()), metavar="NAME")
    parser.add_argument("--bare", action="store_true", help="short bare rules instead of paragraphs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=3000, help="of a reply, so that one call can list every rule")
    parser.add_argument("--out", type=Path, help="append a JSON line a cell, and skip the cells that it has")
    parser.add_argument("--retry-errors", action="store_true", help="run the cells again whose row is an error")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="print the table of these files")
    parser.add_argument("--summary", type=Path, nargs="+", metavar="FILE", help="print what each seed kept")
    parser.add_argument("--judge", action="store_true", help="let the model judge every result as well")
    parser.add_argument("--show", action="store_true", help="print every result")
    arguments = parser.parse_args(argv)
    if not all(1 <= count <= MOST_RULES for count in arguments.counts):
        parser.error(f"--counts must be from 1 to {MOST_RULES}, got {arguments.counts}")
    return arguments


def model(arguments: argparse.Namespace) -> dspy.LM:
    """Return the model to ask; the embedded one takes all records of the largest cell in one prompt."""
    named = arguments.lm or os.environ.get("DSPY_LM")
    lm = resolve_lm(named) if named else local_lm(context_tokens=CONTEXT_TOKENS)
    return lm.copy(cache=False, max_tokens=arguments.max_tokens)


def report(row: Mapping[str, Any], out: Path | None) -> None:
    if out:
        append_row(out, row)
    print({name: value for name, value in row.items() if name != "text"}, flush=True)


def run(arguments: argparse.Namespace, lm: dspy.LM) -> list[dict[str, Any]]:
    """Run the cells that are not in the file yet; return the rows of all that were asked for."""
    out: Path | None = arguments.out
    known = {Cell.of(row): row for row in read_rows([out] if out else [])}
    # Seeds last, so that a run that is stopped has every aggregation.
    cells = [
        Cell(count, variant, seed, arguments.bare)
        for seed in arguments.seeds
        for count in arguments.counts
        for variant in arguments.variants
    ]
    rows = []
    for cell in cells:
        row = known.get(cell)
        if row is None or ("error" in row and arguments.retry_errors):
            row = run_cell(cell, lm, threads=arguments.threads)
            report(row, out)
            if arguments.show:
                print(row.get("text", ""), flush=True)
        if arguments.judge and "judge" not in row and row.get("text"):
            row = {**row, "judge": judge(row, lm, threads=arguments.threads)}
            report(row, out)
        rows.append(row)
    return rows


def main() -> None:
    arguments = parse()
    if arguments.table:
        print(table(read_rows(arguments.table)))
    elif arguments.summary:
        print(summary(read_rows(arguments.summary)))
    else:
        print(table(run(arguments, model(arguments))))


if __name__ == "__main__":
    main()
