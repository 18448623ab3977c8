"""Sequential ACE against Combee over ACE at equal work: the same examples, simulated latencies, wall time.

Every model call waits (log-normal, `--median` seconds for a rollout, twice that for a reflection or a curation) and
answers; ACE, Combee, threads and DSPy's adapters are the real ones. One epoch each; at batch 1 every example is
curated alone, as in sequential ACE.

    python benchmarks/combee_ace_speed.py --examples 120 --batch 40
"""

from __future__ import annotations

import argparse
import math
import random
import re
import time
from collections.abc import Callable

import dspy

from dspy_combee import ACE, Combee, Playbook
from dspy_combee.testing import ScriptedEngine, asks_for_lessons, lessons_reply, scripted_lm, shown_reflections


def example(number: int) -> dspy.Example:
    """Return one question whose answer nobody could guess."""
    return dspy.Example(question=f"code of item {number}?", answer=f"K-{number}7").with_inputs("question")


def metric(gold: dspy.Example, pred: dspy.Prediction, trace: object = None) -> dspy.Prediction:
    """Score an exact match; the feedback states the rule."""
    number = re.findall(r"\d+", gold.question)[0]
    feedback = f"The code of item {number} is {gold.answer}."
    return dspy.Prediction(score=float(pred.answer == gold.answer), feedback=feedback)


def answer(prompt: str, _: int) -> str:
    """Play the task model, which knows nothing."""
    return "[[ ## answer ## ]]\nunknown"


def reflect(prompt: str, _: int) -> str:
    """Play the reflection model: pass the rule on."""
    if "Say what one run" in prompt:
        rule = re.findall(r"feedback: (The code of item \d+ is K-\d+\.)", prompt)[0]
        fields = {"what_went_wrong": "x", "cause": "x", "correct_approach": "x", "key_insight": rule, "votes": "[]"}
    elif asks_for_lessons(prompt):
        return lessons_reply(shown_reflections(prompt))
    else:
        fields = {"merges": "[]", "refuted": "none"}
    return "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in fields.items())


def waits(median: float, seed: int, sigma: float) -> Callable[[str, int], float]:
    """Return a function of prompt and call number that says how long the call takes."""
    return lambda prompt, number: median * math.exp(sigma * random.Random(f"{seed}/{number}/{prompt}").gauss(0, 1))


def run(arguments: argparse.Namespace, batch: int, seed: int) -> tuple[float, int, int]:
    """Return the wall time of one epoch, the calls and the entries of the playbook."""
    task = ScriptedEngine(answer, latency=waits(arguments.median, seed, arguments.sigma))
    reflection = ScriptedEngine(reflect, latency=waits(2 * arguments.median, seed, arguments.sigma))
    threads = 1 if batch == 1 else arguments.threads
    learner = ACE(metric, reflection_lm=scripted_lm(reflection), num_threads=threads, progress=False)
    optimizer = Combee(learner, batch_size=batch, num_threads=threads, seed=seed, progress=False)
    began = time.monotonic()
    with dspy.context(lm=scripted_lm(task)):
        taught = optimizer.compile(
            dspy.Predict("question -> answer"), trainset=[example(number) for number in range(arguments.examples)]
        )
    return time.monotonic() - began, task.calls + reflection.calls, len(Playbook.from_program(taught))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=120)
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--threads", type=int, default=40)
    parser.add_argument("--median", type=float, default=0.2, help="seconds of a rollout's call")
    parser.add_argument("--sigma", type=float, default=0.6, help="spread of the log-normal latency")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.examples, arguments.median, arguments.seeds = 40, 0.02, 1
    print("| seed | learner | batch | calls | playbook entries | wall time, s | ratio |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for seed in range(arguments.seeds):
        sequential, calls, entries = run(arguments, 1, seed)
        print(f"| {seed} | ACE, one after another | 1 | {calls} | {entries} | {sequential:.1f} | 1.0x |", flush=True)
        seconds, calls, entries = run(arguments, arguments.batch, seed)
        row = f"| {seed} | Combee over ACE | {arguments.batch} | {calls} | {entries} | {seconds:.1f} "
        print(f"{row}| {sequential / seconds:.1f}x |", flush=True)


if __name__ == "__main__":
    main()
