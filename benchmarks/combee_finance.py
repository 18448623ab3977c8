"""Formula and FiNER by batch size and aggregation, laid out as the published tables are.

The data is not part of this project: `--data` names a folder with `formula_train.jsonl`, `formula_val.jsonl`,
`finer_train.jsonl` and `finer_val.jsonl` (fields `question` or `ace_question`, `answer`), as the public ACE runs use
them. Any model answers (`--lm`, `--reflection-lm`); `--scripted` plays one, to see that everything runs.

    python benchmarks/combee_finance.py --data DIR --tasks formula finer --lm openai/gpt-4.1-mini --batches 1 10 50 100
    python benchmarks/combee_finance.py --data DIR --scripted --train 20 --val 10 --batches 1 10
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy

from dspy_combee import ACE, Combee, CombeeResult, Playbook, resolve_lm
from dspy_combee.judge import judge_lessons
from dspy_combee.learners.run_program import run_program
from dspy_combee.lessons import split_instruction
from dspy_combee.metrics import MetricCall
from dspy_combee.playbook import approximate_tokens
from dspy_combee.rounds import validate
from dspy_combee.runtime.execution.threads import ThreadExecutor
from dspy_combee.testing import asks_for_lessons, lessons_reply, scripted_lm, shown_reflections

INSTRUCTIONS = {
    "formula": "Answer the question with a plain number.",
    "finer": "Give the best US GAAP tag for each question, separated by commas and in order.",
}
AGGREGATIONS = ("scan", "single_pass", "top_k", "summarize", "hierarchical")


def formula_metric(gold: Any, pred: Any, *_: Any) -> dspy.Prediction:
    """Compare as numbers without tolerance, thousands commas removed, as the public scorer does."""
    wanted, got = str(gold.answer).replace(",", "").strip(), str(pred.answer).replace(",", "").strip()
    is_right = wanted == got
    with contextlib.suppress(ValueError):
        is_right = float(wanted) == float(got)
    words = "Right." if is_right else f"The answer is {gold.answer}, not {pred.answer}."
    return dspy.Prediction(score=float(is_right), feedback=words)


def finer_metric(gold: Any, pred: Any, *_: Any) -> dspy.Prediction:
    """Compare tag by tag, lower case, by position; a surplus or missing tag is a wrong one."""
    wanted = [tag.strip().lower() for tag in str(gold.answer).split(",")]
    got = [tag.strip().lower() for tag in str(pred.answer).split(",")]
    right = [index < len(got) and got[index] == tag for index, tag in enumerate(wanted)]
    wrong = [f"question {index + 1}: the tag is {wanted[index]}" for index, ok in enumerate(right) if not ok]
    return dspy.Prediction(score=sum(right) / len(right), feedback="; ".join(wrong) or "All tags are right.")


METRICS = {"formula": formula_metric, "finer": finer_metric}


def load(folder: Path, name: str, limit: int | None) -> list[dspy.Example]:
    """Read rows of one file as examples; the question is sent as the public runs send it."""
    path = folder / f"{name}.jsonl"
    if not path.exists():
        raise SystemExit(f"--data must be a folder with {path.name}; there is none in {folder}")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [
        dspy.Example(question=row.get("ace_question") or row["question"], answer=str(row["answer"])).with_inputs(
            "question"
        )
        for row in rows[:limit]
    ]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    cells: tuple[object, ...]


class Bench:
    """One task with its data and models."""

    def __init__(self, arguments: argparse.Namespace, task: str) -> None:
        self.task, self.arguments = task, arguments
        self.train = load(arguments.data, f"{task}_train", arguments.train)
        self.test = load(arguments.data, f"{task}_val", arguments.val)
        if arguments.scripted:
            self.lm, self.reflection_lm = scripted_lm(play_task), scripted_lm(play_reflection)
        else:
            self.lm = resolve_lm(arguments.lm)
            self.reflection_lm = resolve_lm(arguments.reflection_lm) if arguments.reflection_lm else self.lm
        self.metric = METRICS[task]

    def accuracy(self, program: Any) -> float:
        """Score a program on the held-out rows."""
        call = MetricCall(self.metric)

        def score(program: Any, example: Any, record_id: str) -> Any:
            return run_program(call, program, example, record_id)

        with dspy.context(lm=self.lm):
            return validate(score, program, self.test, executor=ThreadExecutor(self.arguments.threads)).score

    def student(self) -> Any:
        """Return the program before it has learned."""
        return dspy.Predict(dspy.Signature("question -> answer", INSTRUCTIONS[self.task]))

    def learn(self, base: str, batch: int | str, aggregation: str) -> Row:
        """Learn once and return the line of the table."""
        threads = self.arguments.threads
        if base == "ACE":
            learner: Any = ACE(self.metric, reflection_lm=self.reflection_lm, num_threads=threads, progress=False)
        else:
            calls = self.arguments.metric_calls or 6 * len(self.train)
            learner = dspy.GEPA(
                self.metric, max_metric_calls=calls, reflection_lm=self.reflection_lm, num_threads=threads
            )
        optimizer = Combee(
            learner,
            batch_size=batch,
            aggregation=aggregation,
            num_threads=threads,
            seed=self.arguments.seed,
            progress=not self.arguments.scripted,
        )
        began = time.monotonic()
        with dspy.context(lm=self.lm):
            taught = optimizer.compile(self.student(), trainset=self.train)
        seconds = time.monotonic() - began
        result = optimizer.last_result
        assert result is not None
        text = learned_text(taught)
        shown = f"auto ({result.batch_size})" if batch == "auto" else batch
        return Row(
            (
                self.task,
                base,
                aggregation,
                shown,
                f"{self.accuracy(taught):.3f}",
                sum(one.entries for one in result.rounds),
                approximate_tokens(text) if text else 0,
                f"{seconds:.0f}",
                sum(len(one.calls) for one in result.rounds),
                f"{result.spend.total_tokens:,}",
                self.judged(result, text),
            )
        )

    def judged(self, result: CombeeResult, text: str) -> str:
        """Return coverage and specificity as a judge sees them; a dash without one."""
        sources = list(result.provenance.sources.values())
        if not self.arguments.judge or not sources:
            return "-"
        found = judge_lessons(text or "(nothing)", sources, lm=self.reflection_lm)
        return f"{found.coverage} / {found.specificity}"


def learned_text(program: Any) -> str:
    """Return the playbook or the lessons that a program carries."""
    book = Playbook.from_program(program)
    if book.entries:
        return book.render()
    return "\n".join(lesson.text for lesson in split_instruction(program.signature.instructions)[1])


def play_task(prompt: str, _: int) -> str:
    """Play a task model: it repeats the answer that a lesson gives for this very question, and knows nothing else."""
    question = prompt.rsplit("[[ ## question ## ]]", 1)[-1].strip()[:40]
    known = re.findall(r"Q: (.{1,40}?) A: (\S+)", prompt)
    answer = next((answer for start, answer in known if question.startswith(start)), "0")
    return f"[[ ## answer ## ]]\n{answer}"


def play_reflection(prompt: str, _: int) -> str:
    """Play a reflection model that passes on questions with their answers."""
    if asks_for_lessons(prompt):
        if "[[ ## reflections ## ]]" in prompt:
            shown = shown_reflections(prompt) or [("", pair) for pair in re.findall(r"Q: .{1,40}? A: [^\s;]+", prompt)]
            return lessons_reply(shown)
        found = re.findall(r"\[(r\d+)\]\nInputs: question = (.{1,40}).*?The answer is ([^,]\S*),", prompt, re.DOTALL)
        return lessons_reply((record_id, f"Q: {start} A: {answer}") for record_id, start, answer in found)
    if "[[ ## operations ## ]]" in prompt and "[[ ## rules ## ]]" in prompt:
        return "[[ ## operations ## ]]\nNONE"
    if "Say what one run" in prompt:
        start = re.findall(r"input question: (.{1,40})", prompt)
        answer = re.findall(r"expected answer: (\S+)", prompt)
        insight = f"Q: {start[-1].strip() if start else '?'} A: {answer[-1] if answer else '?'}"
        fields = {"what_went_wrong": "x", "cause": "x", "correct_approach": "x", "key_insight": insight, "votes": "[]"}
    elif "[[ ## summary ## ]]" in prompt:
        fields = {"summary": "; ".join(re.findall(r"Q: .{1,40}? A: \S+", prompt)[:8]) or "be careful"}
    elif "[[ ## verdicts ## ]]" in prompt:
        fields = {"verdicts": "[]"}
    elif "[[ ## merges ## ]]" in prompt:
        fields = {"merges": "[]", "refuted": "none"}
    else:
        return json.dumps({"new_instruction": "Answer with care."})
    return "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in fields.items())


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=list(METRICS), default=["formula"])
    parser.add_argument("--bases", nargs="+", choices=["ACE", "GEPA"], default=["ACE"])
    parser.add_argument("--aggregations", nargs="+", choices=AGGREGATIONS, default=["scan", "single_pass"])
    parser.add_argument("--batches", nargs="+", default=["1", "10", "50", "auto"], help="sizes, or auto")
    parser.add_argument("--lm", help="the task model, any name that dspy.LM takes; the embedded model by default")
    parser.add_argument("--reflection-lm", help="the model that reflects and aggregates; the task model by default")
    parser.add_argument("--train", type=int, help="rows to learn from; all by default")
    parser.add_argument("--val", type=int, help="held-out rows to score on; all by default")
    parser.add_argument("--metric-calls", type=int, help="for GEPA; six times the rows to learn from by default")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--judge", action="store_true", help="let the reflection model judge coverage / specificity")
    parser.add_argument("--scripted", action="store_true", help="a played model: shows that it runs, and nothing else")
    return parser.parse_args()


def show(cells: Sequence[object]) -> None:
    """Print one line of the table."""
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def main() -> None:
    """Print the table."""
    arguments = parse()
    if arguments.scripted:
        print("The model is played by a script: the numbers say nothing about any model.\n")
    head = (
        "task",
        "base",
        "aggregation",
        "batch",
        "accuracy",
        "context updates",
        "playbook tokens",
        "wall time, s",
        "aggregation calls",
        "tokens",
        "coverage / specificity",
    )
    show(head)
    show(["---"] * len(head))
    for task in arguments.tasks:
        bench = Bench(arguments, task)
        show((task, "none", "-", "-", f"{bench.accuracy(bench.student()):.3f}", 0, 0, 0, 0, "-", "-"))
        for base in arguments.bases:
            for aggregation in arguments.aggregations:
                for batch in arguments.batches:
                    show(bench.learn(base, batch if batch == "auto" else int(batch), aggregation).cells)


if __name__ == "__main__":
    main()
