"""Combee against dspy.GEPA, MIPROv2, SIMBA and sequential ACE, at the same budget of metric calls.

A parcel goes to the gate that a rule names for its mark: `--rules` rules, each needed by two of the training examples,
one of the validation and two of the held-out ones. The feedback on a training example states its rule. Task and
reflection model are scripted; the optimizers, their prompts, DSPy's adapters and threads are the real ones.

The task model applies every rule that its prompt states, or shows by a solved example, and guesses the gate otherwise
(one of five). The reflection model is the same for every method: it reads the prompt that the method builds, passes on
the rules that it finds there, and answers in the form that is asked for. It attends to `--capacities` items a call: of
the m rules that a prompt shows each survives with probability min(1, capacity / m); "inf" loses nothing. It never
invents, generalises, or words a rule badly, so this shows what a method lets its reflection model see and how often it
makes it repeat what is known already, and nothing of how well a model writes.

    python benchmarks/combee_optimizers.py            # about ten minutes on an idle machine
    python benchmarks/combee_optimizers.py --quick    # a look
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import math
import random
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from dspy_combee import ACE, Budget, Combee
from dspy_combee.testing import ScriptedEngine, count_tokens, lessons_reply, scripted_lm

GATES = 5
TOWNS = ("Lyon", "Porto", "Graz", "Turku", "Bergen", "Split", "Ghent", "Brno")
RULE = re.compile(r"Parcels marked ([A-Z]{2}-\d\d) go to gate ([1-5])\.")
CASE = re.compile(r"A parcel of \d+ kg from \w+, marked ([A-Z]{2}-\d\d)\b")
SOLVED = re.compile(CASE.pattern + r"\W+(?:gate\W+)+([1-5])\b", re.IGNORECASE)
"""A parcel directly followed by its gate, as demos and data sets are shown."""
RECORD = re.compile(r"^\[(r\d+)\]\n(.*?)(?=^\[r\d+\]$|\Z)", re.DOTALL | re.MULTILINE)
SUMMARY_SENTENCES = 3
"""MIPROv2 asks for a summary of its data in two to three sentences."""


@dataclass(frozen=True)
class Task:
    """The rules and the examples that need them."""

    gate_of: dict[str, int]
    """The rules: mark to gate."""
    train: list[dspy.Example]
    """Two a rule; the first half and the second half have every rule once."""
    val: list[dspy.Example]
    test: list[dspy.Example]


class RouteParcel(dspy.Signature):
    """Name the gate that a parcel goes to, a number from 1 to 5."""

    parcel: str = dspy.InputField()
    gate: int = dspy.OutputField()


def make_task(rules: int, seed: int) -> Task:
    """Return a task with this many rules, whose marks and gates follow from the seed."""
    rng = random.Random(f"task {seed}")
    marks = [f"{one}{two}-{rng.randrange(10, 100)}" for one in "BDFHKLNPRT" for two in "CGJMQSVWXZ"]
    gate_of = {mark: rng.randrange(1, GATES + 1) for mark in rng.sample(marks, rules)}

    def deal() -> list[dspy.Example]:
        return [_example(mark, gate_of[mark], rng) for mark in rng.sample(list(gate_of), rules)]

    return Task(gate_of, deal() + deal(), deal(), deal() + deal())


def _example(mark: str, gate: int, rng: random.Random) -> dspy.Example:
    parcel = f"A parcel of {rng.randrange(1, 40)} kg from {rng.choice(TOWNS)}, marked {mark}"
    return dspy.Example(parcel=parcel, gate=gate).with_inputs("parcel")


def sentence(mark: str, gate: int | str) -> str:
    """Return a rule in words."""
    return f"Parcels marked {mark} go to gate {gate}."


class Metric:
    """Score the gate and state the rule in the feedback; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._lock = threading.Lock()

    def __call__(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> dspy.Prediction:
        """Score one run."""
        # GEPA asks again for the feedback on a run that it has scored: nothing new is scored then.
        if pred_name is None:
            with self._lock:
                self.calls += 1
        score = float(getattr(pred, "gate", None) == gold.gate)
        verdict = "Right." if score else "Wrong."
        (mark,) = CASE.findall(gold.parcel)
        return dspy.Prediction(score=score, feedback=f"{verdict} {sentence(mark, gold.gate)}")

    def score_only(self, gold: Any, pred: Any, trace: Any = None) -> float:
        """Score without feedback, for optimizers that take a number."""
        return float(self(gold, pred).score)


class Draws:
    """Random draws that depend on the prompt and on how often it was asked before, not on the order of threads."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def rng(self, prompt: str) -> random.Random:
        """Return the generator of one call."""
        with self._lock:
            self._asked[prompt] += 1
            return random.Random(f"{self._seed}/{self._asked[prompt]}/{prompt}")


def rules_in(prompt: str, *, with_examples: bool = False) -> dict[str, str]:
    """Return the rules that a prompt states, mark to gate, in order, and those that its solved examples show."""
    found = dict(RULE.findall(prompt))
    return dict(SOLVED.findall(prompt)) | found if with_examples else found


class TaskModel:
    """Applies what its prompt says, and guesses where it says nothing."""

    def __init__(self, seed: int) -> None:
        self._draws = Draws(seed)

    def __call__(self, prompt: str, _: int) -> str:
        """Answer one call."""
        asked = CASE.findall(prompt)[-1]
        gate = rules_in(prompt, with_examples=True).get(asked)
        return in_fields(gate=gate or str(self._draws.rng(prompt).randrange(1, GATES + 1)))


class ReflectionModel:
    """Passes on the rules that a prompt shows, in whatever form is asked for, as far as its attention goes.

    Args:
        capacity: Items that a call attends to.
        seed: For what is lost beyond that.
        is_brief: Whether a summary asked for in two to three sentences has three; otherwise it holds all that is seen.
    """

    def __init__(self, capacity: float, seed: int, *, is_brief: bool = True) -> None:
        self._capacity = capacity
        self._draws = Draws(seed)
        self._is_brief = is_brief
        self.unknown_forms: list[str] = []
        """Prompts that ask for something else than the forms known here."""

    def __call__(self, prompt: str, _: int) -> str:
        """Answer one call."""
        answers: dict[str, Callable[[str], str]] = {
            "lessons": self._lessons,
            "operations": lambda _: in_fields(operations="NONE"),
            "new_instruction": self._instruction,
            "key_insight": self._reflection,
            "curated lessons": self._curation,
            "merges": lambda _: in_fields(merges="[]", refuted="none"),
            "module_advice": self._advice,
            "observations": self._observations,
            "summary": self._summary,
            "program_description": lambda _: in_fields(program_description="It names the gate of a parcel."),
            "module_description": lambda _: in_fields(module_description="It names the gate."),
            "proposed_instruction": self._proposal,
        }
        form = form_of(prompt)
        if form not in answers:
            self.unknown_forms.append(prompt)
            return ""
        return answers[form](prompt)

    def _attended(self, prompt: str, *, with_examples: bool = False) -> dict[str, str]:
        """Return the rules of a prompt that survive the call."""
        shown = rules_in(prompt, with_examples=with_examples)
        chance = min(1.0, self._capacity / max(1, len(shown)))
        rng = self._draws.rng(prompt)
        return {mark: gate for mark, gate in shown.items() if rng.random() < chance}

    def _lessons(self, prompt: str) -> str:
        """Combee over GEPA, first level: a list of lessons with the ids of their records."""
        seen = self._attended(prompt)
        records = RECORD.findall(_input(prompt, "records"))
        pairs = [(rid, mark, gate) for rid, body in records for mark, gate in RULE.findall(body)]
        return lessons_reply((rid, sentence(mark, gate)) for rid, mark, gate in pairs if mark in seen)

    def _instruction(self, prompt: str) -> str:
        """GEPA: a whole new instruction, in JSON."""
        return json.dumps({"new_instruction": _instruction_of(self._attended(prompt))})

    def _reflection(self, prompt: str) -> str:
        """ACE, one run: the rule of its judgement."""
        seen = self._attended(prompt)
        rules = [sentence(mark, gate) for mark, gate in RULE.findall(_input(prompt, "judgement")) if mark in seen]
        insight = " ".join(dict.fromkeys(rules)) or "Look at the mark."
        return in_fields(what_went_wrong="the gate", cause="?", correct_approach="?", key_insight=insight, votes="[]")

    def _curation(self, prompt: str) -> str:
        """ACE, curation: one addition for each rule of the reflections that the playbook lacks."""
        seen, known = self._attended(prompt), rules_in(_input(prompt, "playbook"))
        cited: dict[str, list[str]] = {}
        for rid, body in RECORD.findall(_input(prompt, "reflections")):
            for mark in rules_in(body):
                cited.setdefault(mark, []).append(rid)
        return lessons_reply(
            (", ".join(ids), sentence(mark, seen[mark]))
            for mark, ids in cited.items()
            if mark in seen and mark not in known
        )

    def _advice(self, prompt: str) -> str:
        """SIMBA: advice from the rule that the reward information of its one example states."""
        seen = self._attended(prompt)
        told = rules_in(_input(prompt, "worse_reward_info") + _input(prompt, "better_reward_info"))
        advice = " ".join(sentence(mark, gate) for mark, gate in told.items() if mark in seen) or "Look at the mark."
        return in_fields(discussion="the gate was wrong", module_advice=json.dumps({"self": advice}))

    def _observations(self, prompt: str) -> str:
        """MIPROv2: observations on ten labelled examples, each of which is as good as its rule here."""
        seen = self._attended(prompt, with_examples=True)
        known = rules_in(_input(prompt, "prior_observations"))
        new = [sentence(mark, gate) for mark, gate in seen.items() if mark not in known]
        return in_fields(observations=" ".join(new) + " " if new else "COMPLETE")

    def _summary(self, prompt: str) -> str:
        """MIPROv2: the observations in short."""
        sentences = [sentence(mark, gate) for mark, gate in self._attended(prompt).items()]
        return in_fields(summary=" ".join(sentences[:SUMMARY_SENTENCES] if self._is_brief else sentences))

    def _proposal(self, prompt: str) -> str:
        """MIPROv2: an instruction from the summary and up to three solved examples."""
        return in_fields(proposed_instruction=_instruction_of(self._attended(prompt, with_examples=True)))


def in_fields(**fields: str) -> str:
    """Return a reply in DSPy's chat format."""
    return "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in {**fields, "completed": ""}.items())


def _instruction_of(rules: dict[str, str]) -> str:
    return "\n".join(("Name the gate of the parcel.", *(sentence(mark, gate) for mark, gate in rules.items())))


def form_of(prompt: str) -> str:
    """Return which form of answer a prompt asks for: the first output field that matters here."""
    asked = re.findall(r"`(?:\[\[ ## )?(\w+)(?: ## \]\])?`", prompt.rpartition("Respond with")[2])
    form = next(
        (name for name in asked if name not in ("what_went_wrong", "cause", "correct_approach", "discussion")), ""
    )
    return "curated lessons" if form == "lessons" and "[[ ## reflections ## ]]" in prompt else form


def _input(prompt: str, name: str) -> str:
    """Return the value of an input field of a prompt; empty when there is none."""
    head = f"[[ ## {name} ## ]]\n"
    value = prompt.rpartition(head)[2] if head in prompt else ""
    return re.split(r"^\[\[ ## ", value, maxsplit=1, flags=re.MULTILINE)[0]


@dataclass(frozen=True)
class Setup:
    """What every method is given."""

    task: Task
    budget: int
    """Metric calls."""
    batch: int
    """Examples of a large batch."""
    threads: int
    seed: int


def gepa(setup: Setup, metric: Metric, reflection: dspy.LM, **options: Any) -> Any:
    """Return a `dspy.GEPA` with its defaults."""
    return dspy.GEPA(
        metric=metric,
        max_metric_calls=setup.budget,
        reflection_lm=reflection,
        num_threads=setup.threads,
        seed=setup.seed,
        **options,
    )


def ace(setup: Setup, metric: Metric, reflection: dspy.LM) -> ACE:
    """Return an `ACE` with its defaults, which goes through the train set as often as the budget allows."""
    return ACE(
        metric,
        reflection_lm=reflection,
        max_epochs=setup.budget,
        budget=Budget(max_metric_calls=setup.budget),
        num_threads=setup.threads,
        seed=setup.seed,
        progress=False,
    )


def combee(setup: Setup, base: Any) -> Combee:
    """Return a `Combee` with its defaults but for the batch size."""
    return Combee(base, batch_size=setup.batch, num_threads=setup.threads, seed=setup.seed, progress=False)


def compile_mipro(setup: Setup, metric: Metric, reflection: dspy.LM, program: dspy.Module) -> dspy.Module:
    """Run MIPROv2 in its "light" setting, which bootstraps demos and takes about the default budget."""
    optimizer = dspy.MIPROv2(
        metric=metric.score_only,
        prompt_model=reflection,
        auto="light",
        num_threads=setup.threads,
        seed=setup.seed + 1,
        verbose=False,
    )
    return optimizer.compile(program, trainset=setup.task.train, valset=setup.task.val)


def compile_simba(setup: Setup, metric: Metric, reflection: dspy.LM, program: dspy.Module) -> dspy.Module:
    """Run SIMBA with batches small enough for several steps, on the half of the train set that has every rule once.

    It scores its winners on the whole train set at the end, which takes two fifths of the default budget with the half.
    """
    train = setup.task.train[: len(setup.task.gate_of)]
    size, candidates = min(8, len(train)), 3
    steps = max(1, (setup.budget - (candidates + 1) * len(train)) // (size * (2 * candidates + 1)))
    optimizer = dspy.SIMBA(
        metric=metric,  # pyright: ignore[reportArgumentType] - it takes a `Prediction` with feedback, too
        bsize=size,
        num_candidates=candidates,
        max_steps=steps,
        prompt_model=reflection,
        num_threads=setup.threads,
    )
    return optimizer.compile(program, trainset=train, seed=setup.seed)


Method = Callable[[Setup, Metric, dspy.LM, dspy.Module], dspy.Module]


def _with_val(make: Callable[[Setup, Metric, dspy.LM], Any]) -> Method:
    """Return the method of an optimizer that takes a train and a validation set."""
    return lambda setup, metric, reflection, program: make(setup, metric, reflection).compile(
        program, trainset=setup.task.train, valset=setup.task.val
    )


METHODS: dict[str, Method] = {
    "dspy.GEPA, batch 3 (default)": _with_val(gepa),
    "dspy.GEPA, batch {batch}": _with_val(
        lambda setup, *rest: gepa(setup, *rest, reflection_minibatch_size=setup.batch)
    ),
    "dspy.MIPROv2": compile_mipro,
    "dspy.MIPROv2, long summaries": compile_mipro,
    "dspy.SIMBA": compile_simba,
    "ACE, one after another": _with_val(ace),
    "Combee(dspy.GEPA), batch {batch}": _with_val(lambda setup, *rest: combee(setup, gepa(setup, *rest))),
    "Combee(ACE), batch {batch}": _with_val(lambda setup, *rest: combee(setup, ace(setup, *rest))),
}
LONG_SUMMARIES = "dspy.MIPROv2, long summaries"


class UnusableReplies(BaseCallback, logging.Handler):
    """Counts the replies that an adapter could not parse, and the errors that DSPy logs instead of raising them."""

    def __init__(self) -> None:
        logging.Handler.__init__(self, logging.ERROR)
        self.count = 0

    def on_adapter_parse_end(
        self, call_id: str, outputs: dict[str, Any] | None, exception: BaseException | None = None
    ) -> None:
        """Note a reply that was parsed, or was not."""
        self.count += exception is not None

    def emit(self, record: logging.LogRecord) -> None:
        """Note an error that was logged."""
        self.count += 1

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Count inside the block, in which nothing is printed."""
        logger = logging.getLogger("dspy")
        level = logger.level
        logger.addHandler(self)
        logger.setLevel(logging.ERROR)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(level)


@dataclass(frozen=True)
class Row:
    """What one method came to with one seed."""

    score: float
    """Share of the held-out examples."""
    rules: int
    """Rules that the final prompt states or shows."""
    prompt_tokens: float
    """Input tokens of one held-out call."""
    metric_calls: int
    task_calls: int
    reflection_calls: int
    reflection_tokens: int
    """Input tokens of all reflection calls."""
    unusable: int
    """Replies that an adapter could not parse, errors that DSPy logged, prompts of an unknown form."""
    seconds: float


def waits(median: float, sigma: float, seed: int) -> Callable[[str, int], float]:
    """Return a function of prompt and call number that says how long the call takes."""
    return lambda prompt, number: median * math.exp(sigma * random.Random(f"{seed}/{number}/{prompt}").gauss(0, 1))


def run(name: str, setup: Setup, capacity: float, latency: tuple[float, float] | None = None) -> Row:
    """Run one method.

    Args:
        name: One of `METHODS`.
        setup: What it is given.
        capacity: Items that a reflection call attends to.
        latency: Median seconds of a task call (twice that for a reflection call) and the spread; None for no waiting.
    """
    model = ReflectionModel(capacity, setup.seed, is_brief=name != LONG_SUMMARIES)
    median, sigma = latency or (0.0, 0.0)
    task = ScriptedEngine(TaskModel(setup.seed), latency=waits(median, sigma, setup.seed))
    reflection = ScriptedEngine(model, latency=waits(2 * median, sigma, setup.seed))
    metric, unusable = Metric(), UnusableReplies()
    began = time.monotonic()
    with dspy.context(lm=scripted_lm(task), callbacks=[unusable]), unusable.watching():
        program = METHODS[name](setup, metric, scripted_lm(reflection), dspy.Predict(RouteParcel))
    seconds = time.monotonic() - began
    score, prompts = held_out(program, setup)
    return Row(
        score=score,
        rules=len(rules_in(prompts[0].rpartition("A parcel of")[0], with_examples=True)),
        prompt_tokens=statistics.mean(map(count_tokens, prompts)),
        metric_calls=metric.calls,
        task_calls=task.calls,
        reflection_calls=reflection.calls,
        reflection_tokens=sum(map(count_tokens, reflection.prompts)),
        unusable=unusable.count + len(model.unknown_forms),
        seconds=seconds,
    )


def held_out(program: dspy.Module, setup: Setup) -> tuple[float, list[str]]:
    """Return the share of the held-out examples that a program gets right, and the prompts."""
    engine = ScriptedEngine(TaskModel(-1 - setup.seed))
    with dspy.context(lm=scripted_lm(engine)):
        right = [program(**example.inputs()).gate == example.gate for example in setup.task.test]
    return statistics.mean(right), engine.prompts


def with_spread(values: Sequence[float], form: str = ".0f") -> str:
    """Return the mean and the standard deviation of the seeds."""
    mean, spread = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{mean:{form}} ± {spread:{form}}"


HEAD = (
    "optimizer",
    "held out, %",
    "rules in the prompt",
    "tokens of a held-out call",
    "metric calls",
    "task calls",
    "reflection calls",
    "tokens they read",
    "unusable replies",
)


def cells(rows: Sequence[Row]) -> list[str]:
    """Return the cells of one method's seeds, in the order of `HEAD` without the name."""
    return [
        with_spread([100 * row.score for row in rows]),
        with_spread([row.rules for row in rows]),
        f"{statistics.mean(row.prompt_tokens for row in rows):,.0f}",
        f"{statistics.mean(row.metric_calls for row in rows):,.0f}",
        f"{statistics.mean(row.task_calls for row in rows):,.0f}",
        f"{statistics.mean(row.reflection_calls for row in rows):,.0f}",
        f"{statistics.mean(row.reflection_tokens for row in rows):,.0f}",
        str(sum(row.unusable for row in rows)),
    ]


class Figure:
    """The tables, with the settings that they share."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments

    def world(self, capacity: float) -> None:
        """Print what every method reaches with one capacity."""
        arguments = self._arguments
        title = "loses nothing" if math.isinf(capacity) else f"attends to {capacity:.0f} items a call"
        print(f"\n### A reflection model that {title}; {arguments.budget} metric calls, {arguments.seeds} seeds\n")
        _print_head(HEAD)
        for name in arguments.optimizers:
            if name == LONG_SUMMARIES and arguments.quick:
                continue
            rows = [run(name, self._setup(seed), capacity) for seed in range(arguments.seeds)]
            print(f"| {self._shown(name)} | {' | '.join(cells(rows))} |", flush=True)

    def wall_times(self) -> None:
        """Print how long every method takes when calls do, with a reflection model that loses nothing."""
        arguments = self._arguments
        print(
            f"\n### Wall time: a task call takes {arguments.median} s in the median, a reflection call "
            f"{2 * arguments.median} s, log-normal with sigma {arguments.sigma}; {arguments.threads} threads, seed 0\n"
        )
        _print_head(("optimizer", "held out, %", "metric calls", "reflection calls", "wall time, s"))
        for name in arguments.optimizers:
            if name == LONG_SUMMARIES:
                continue
            row = run(name, self._setup(0), math.inf, (arguments.median, arguments.sigma))
            print(
                f"| {self._shown(name)} | {100 * row.score:.0f} | {row.metric_calls} | {row.reflection_calls} "
                f"| {row.seconds:.1f} |",
                flush=True,
            )

    def _setup(self, seed: int) -> Setup:
        arguments = self._arguments
        task = make_task(arguments.rules, seed)
        return Setup(task, arguments.budget, arguments.batch, arguments.threads, seed)

    def _shown(self, name: str) -> str:
        return name.format(batch=self._arguments.batch)


def _print_head(names: Sequence[str]) -> None:
    print("| " + " | ".join(names) + " |")
    print("| --- |" + " ---: |" * (len(names) - 1))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", type=int, default=60)
    parser.add_argument("--budget", type=int, default=620, help="metric calls of each optimizer")
    parser.add_argument("--batch", type=int, default=40, help="examples of a large batch")
    parser.add_argument("--capacities", type=float, nargs="*", default=[math.inf, 20, 10], help="none: wall times only")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--median", type=float, default=0.2, help="seconds of a task call")
    parser.add_argument("--sigma", type=float, default=0.6, help="spread of the log-normal latency")
    parser.add_argument("--optimizers", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="NAME")
    parser.add_argument("--no-wall-times", action="store_true")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seeds, arguments.capacities, arguments.median = 1, [math.inf, 20], 0.01
    figure = Figure(arguments)
    for capacity in arguments.capacities:
        figure.world(capacity)
    if not arguments.no_wall_times:
        figure.wall_times()


if __name__ == "__main__":
    main()
