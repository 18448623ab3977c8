"""How often noise is inherited, how often a real gain is found, and what stopping early saves.

Run `python benchmarks/evocue_acceptance.py` (about five minutes; `--seeds 100` for a quick look, `--no-gepa` to leave
out the comparison; the row of Optuna's pruner needs scipy and optuna).

Scores are coin flips: each arm of a pair succeeds with its own chance, independently, which is the noisiest metric
there is. An edit that does nothing leaves the chance at 0.5; a real one raises it by 0.4.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from statistics import mean

from dspy_combee.seeding import branch_rng
from dspy_evocue.acceptance import AcceptanceCriterion, Anytime, MeanGain, Robust, Verdict, for_run, should_stop
from dspy_evocue.rules import FittedRule, Rule, RuleEvidence, fit_rule

ROUNDS = 3
CANDIDATES = 2
TRIAL_TASKS = 8
FEATURES = [f"feature {number}" for number in range(6)]
Pair = Callable[[random.Random], float]


@dataclass(frozen=True)
class Remembered:
    """A criterion that remembers its verdicts by the counts: coin flips have no other content."""

    criterion: AcceptanceCriterion
    verdicts: dict[tuple[int, int, int], Verdict] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """The name of the criterion, with its alpha."""
        alpha = f" {self.criterion.alpha:.2g}" if isinstance(self.criterion, Anytime) else ""
        return self.criterion.name + alpha

    def judge(self, differences: Sequence[float]) -> Verdict:
        """Judge as the criterion does."""
        key = (sum(d > 0 for d in differences), sum(d < 0 for d in differences), len(differences))
        if key not in self.verdicts:
            self.verdicts[key] = self.criterion.judge(differences)
        return self.verdicts[key]


CRITERIA = (MeanGain(), Robust(), Anytime(alpha=0.1), Anytime(alpha=0.05))


def coin_pair(before: float, after: float) -> Pair:
    """Return a pair of independent successes with these chances."""
    return lambda rng: float(rng.random() < after) - float(rng.random() < before)


def matched_pair(gain: float) -> Pair:
    """Return a pair that gains with this chance and is equal otherwise, as with a metric without noise."""
    return lambda rng: float(rng.random() < gain)


EFFECTS = {
    "nothing": coin_pair(0.5, 0.5),
    "0.5 to 0.9": coin_pair(0.5, 0.9),
    "0.3 to 0.7": coin_pair(0.3, 0.7),
    "0.1 to 0.5": coin_pair(0.1, 0.5),
    "+0.4, no noise": matched_pair(0.4),
}


def one_look(seeds: int) -> None:
    """Print how often one confirmation of a fixed size accepts, by true effect."""
    print(f"\nOne confirmation, looked at once at its end: share of {seeds} accepted, by true effect\n")
    print("| criterion | tasks | " + " | ".join(EFFECTS) + " |")
    print("|---|---|" + "---|" * len(EFFECTS))
    for criterion in map(Remembered, (*CRITERIA, Anytime(alpha=0.1 / ROUNDS))):
        for tasks in (8, 12, 16, 24):
            shares = []
            for name, pair in EFFECTS.items():
                rngs = (branch_rng(seed, "one look", name, tasks) for seed in range(seeds))
                shares.append(mean(criterion.judge([pair(rng) for _ in range(tasks)]).accepted for rng in rngs))
            print(f"| {criterion.name} | {tasks} | " + " | ".join(f"{share:.3f}" for share in shares) + " |")


@dataclass
class Run:
    """What one simulated run came to."""

    inherited: bool = False
    confirmation_pairs: int = 0
    looks: int = 0


def one_run(criterion: AcceptanceCriterion, after: float, tasks: int, rng: random.Random) -> Run:
    """Simulate three rounds of two candidates; one in each round has the true effect, the other does nothing."""
    run = Run()
    for _ in range(ROUNDS):
        fitted = [try_candidate(after if number == 0 else 0.5, rng) for number in range(CANDIDATES)]
        rules = [None if one is None or not one.passes else one.rule for one in fitted]
        if any(rules):
            run.looks += 1
            accepted, pairs = confirm(criterion, rules[0], after, tasks, rng)
            run.confirmation_pairs += pairs
            if accepted:
                # A run that has something to find has found it only when the good candidate was compiled in.
                run.inherited = after == 0.5 or rules[0] is not None
                break
    return run


def state(rng: random.Random) -> dict[str, str]:
    """Draw the features of a checkpoint: they have nothing to do with the score."""
    return {name: rng.choice("abc") for name in FEATURES}


def try_candidate(after: float, rng: random.Random) -> FittedRule | None:
    """Simulate the paired trials of one candidate, and fit its rule."""
    rows = [
        RuleEvidence(f"t{task}", float(rng.random() < 0.5), float(rng.random() < after), state(rng))
        for task in range(TRIAL_TASKS)
    ]
    return fit_rule(rows, features=FEATURES)


def confirm(
    criterion: AcceptanceCriterion, rule: Rule | None, after: float, tasks: int, rng: random.Random
) -> tuple[bool, int]:
    """Simulate the confirmation, looking after each pair where the criterion allows it."""
    differences: list[float] = []
    sequential = criterion.name.startswith("anytime")
    for _ in range(tasks):
        acts = rule is not None and rule.holds(state(rng))
        differences.append(coin_pair(0.5, after if acts else 0.5)(rng))
        if sequential and criterion.judge(differences).accepted:
            return True, len(differences)
        if should_stop(criterion, differences, tasks):
            return False, len(differences)
    return criterion.judge(differences).accepted, len(differences)


def whole_runs(seeds: int) -> None:
    """Print false inheritance and power of whole runs."""
    print(f"\nWhole runs ({ROUNDS} rounds, {CANDIDATES} candidates, {TRIAL_TASKS} trials each with rules over")
    print(f"{len(FEATURES)} features of noise), share of {seeds} runs that inherit; the anytime criteria look after")
    print("every pair and share their alpha between the rounds; hopeless confirmations stop early\n")
    print("| criterion | most confirmation pairs | nothing to find: of 20 runs | +0.4 found |", end="")
    print(" pairs a confirmation, nothing to find / +0.4 |")
    print("|---|---|---|---|---|")
    for shared in CRITERIA:
        criterion = Remembered(for_run(shared, ROUNDS))
        for tasks in (8, 12, 16, 24):
            null = [one_run(criterion, 0.5, tasks, branch_rng(seed, "null", tasks)) for seed in range(seeds)]
            real = [one_run(criterion, 0.9, tasks, branch_rng(seed, "real", tasks)) for seed in range(seeds)]
            used = [
                sum(run.confirmation_pairs for run in runs) / sum(run.looks for run in runs) for runs in (null, real)
            ]
            print(
                f"| {Remembered(shared).name} | {tasks} | {20 * mean(run.inherited for run in null):.1f} | "
                f"{mean(run.inherited for run in real):.2f} | {used[0]:.1f} / {used[1]:.1f} |"
            )


def wilcoxon_stops(differences: Sequence[float]) -> bool:
    """Ask Optuna's Wilcoxon pruner, with the parent as the best trial so far. Needs scipy."""
    import warnings

    import optuna

    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.WilcoxonPruner())
    parent, edited = study.ask(), study.ask()
    for step, difference in enumerate(differences):
        parent.report(max(0.0, -difference), step)
        edited.report(max(0.0, difference), step)
    study.tell(parent, mean(max(0.0, -difference) for difference in differences))
    return edited.should_prune()


STOPPING: dict[str, Callable[[Sequence[float]], bool]] = {
    "none": lambda differences: False,
    "only when no gain could do": lambda differences: should_stop("mean_gain", differences, TRIAL_TASKS, threshold=0),
    "chance below 0.05 (default)": lambda differences: should_stop("mean_gain", differences, TRIAL_TASKS),
    "no gain in the first half": lambda differences: len(differences) == 4 and max(differences) <= 0,
    "default, or no gain in the first half": lambda differences: (
        should_stop("mean_gain", differences, TRIAL_TASKS) or (len(differences) == 4 and max(differences) <= 0)
    ),
    "Optuna's Wilcoxon pruner": wilcoxon_stops,
}
CANDIDATE_EFFECTS = {
    "no change at all": matched_pair(0.0),
    "coin flips": coin_pair(0.5, 0.5),
    "0.7 to 0.3": coin_pair(0.7, 0.3),
    "0.3 to 0.7": coin_pair(0.3, 0.7),
    "+0.4, no noise": matched_pair(0.4),
}


def early_stopping(seeds: int) -> None:
    """Print the share of trial pairs saved and, for good candidates, the passes lost."""
    print(f"\nStopping hopeless candidates in their {TRIAL_TASKS} trials: pairs saved / passes lost, by true effect\n")
    print("| rule | " + " | ".join(CANDIDATE_EFFECTS) + " |")
    print("|---|" + "---|" * len(CANDIDATE_EFFECTS))
    for name, stops in STOPPING.items():
        if "Optuna" in name and not (find_spec("scipy") and find_spec("optuna")):
            continue
        cells = []
        for effect, pair in CANDIDATE_EFFECTS.items():
            saved = lost = 0
            count = min(seeds, 200) if "Optuna" in name else seeds
            for seed in range(count):
                rng = branch_rng(seed, "stopping", effect)
                full = [pair(rng) for _ in range(TRIAL_TASKS)]
                used = next((n for n in range(1, TRIAL_TASKS) if stops(full[:n])), TRIAL_TASKS)
                saved += TRIAL_TASKS - used
                lost += used < TRIAL_TASKS and sum(full) > 0
            cells.append(f"{saved / count / TRIAL_TASKS:.0%} / {lost / count:.1%}")
        print(f"| {name} | " + " | ".join(cells) + " |")


def rule_fitting(seeds: int) -> None:
    """Print how often a rule passes on noise, and how long 300 trials with 20 features take."""
    print(
        f"\nRules fitted to {TRIAL_TASKS} coin-flip trials with 10 features: share that passes, by minimum of tasks\n"
    )
    names = [f"feature {number}" for number in range(10)]
    for minimum in (1, 2, 3, 4, 6, 8):
        passed = 0
        for seed in range(seeds):
            rng = branch_rng(seed, "noise rules")
            rows = [
                RuleEvidence(f"t{n}", float(rng.random() < 0.5), float(rng.random() < 0.5), drawn(names, rng))
                for n in range(TRIAL_TASKS)
            ]
            fitted = fit_rule(rows, features=names, minimum_tasks=minimum)
            passed += fitted is not None and fitted.passes
        print(f"- at least {minimum}: {passed / seeds:.2f}")
    rng = branch_rng(0, "speed")
    names = [f"feature {number}" for number in range(20)]
    rows = [RuleEvidence(f"t{n % 60}", rng.random(), rng.random(), drawn(names, rng)) for n in range(300)]
    began = time.perf_counter()
    fit_rule(rows, features=names)
    print(f"\n300 trials, 20 features: {time.perf_counter() - began:.2f} s")


def drawn(names: Sequence[str], rng: random.Random) -> dict[str, str]:
    """Draw one of three values for each feature."""
    return {name: rng.choice("abc") for name in names}


def gepa_on_noise(seeds: int = 20) -> None:
    """Print in how many of 20 runs dspy.GEPA returns another program when the metric is a coin flip."""
    import logging

    import dspy

    from dspy_combee.testing import scripted_lm

    logging.getLogger("dspy").setLevel(logging.CRITICAL)
    changed = 0
    for seed in range(seeds):
        coin = branch_rng(seed, "coin")
        task_lm = scripted_lm(lambda prompt, number: "[[ ## answer ## ]]\nx\n\n[[ ## completed ## ]]")
        reflection_lm = scripted_lm(lambda prompt, number: f'{{"new_instruction": "Answer. (wording {number})"}}')
        rows = [dspy.Example(question=f"q{n}", answer="x").with_inputs("question") for n in range(24)]
        student = dspy.Predict("question -> answer")

        def flip(gold, pred, trace=None, pred_name=None, pred_trace=None, coin=coin):
            return dspy.Prediction(score=float(coin.random() < 0.5), feedback="heads or tails")

        optimizer = dspy.GEPA(metric=flip, reflection_lm=reflection_lm, max_metric_calls=192, num_threads=1, seed=seed)
        with dspy.context(lm=task_lm):
            compiled = optimizer.compile(student, trainset=rows[:16], valset=rows[16:])
        changed += compiled.signature.instructions != student.signature.instructions
    print(f"\ndspy.GEPA (192 metric calls, 16 train and 8 val rows) on a coin flip: {changed} of {seeds} runs return")
    print("another program as the better one")


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description="False inheritance and power of EvoCUE's acceptance criteria")
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--no-gepa", action="store_true")
    arguments = parser.parse_args()
    one_look(arguments.seeds)
    whole_runs(arguments.seeds)
    early_stopping(arguments.seeds)
    rule_fitting(min(arguments.seeds, 300))
    if not arguments.no_gepa:
        gepa_on_noise()


if __name__ == "__main__":
    main()
