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
import logging
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback
from parcel_world import Metric, ReflectionModel, RouteParcel, Task, TaskModel, make_task, rules_in

from dspy_combee import ACE, Budget, Combee
from dspy_combee.testing import ScriptedEngine, count_tokens, scripted_lm


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
