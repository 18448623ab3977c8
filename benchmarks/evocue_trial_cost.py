"""What paired trials cost: model calls by checkpoint depth, overhead of recording and of an edit, trials a second.

    python benchmarks/evocue_trial_cost.py

Everything runs on the scripted engine, so the numbers are calls, tokens and this machine's own time, not a model's.
"""

import argparse
import time

import dspy
from dspy.utils.callback import BaseCallback

from dspy_combee.testing import scripted_lm
from dspy_evocue import CallSite, InstructionEdit, Rule, TrialRequest, attach, paired_trial, record_runs, run_trials
from dspy_evocue.checkpoints import Recorder
from dspy_evocue.features import FeatureSet
from dspy_evocue.instrument import observed
from dspy_evocue.observer import following
from dspy_evocue.running import Execution
from dspy_evocue.testing import chat_reply, scripted_agent_lm

STEPS = 16
EXAMPLE = dspy.Example(question="look into every room").with_inputs("question")


def look(room: str) -> str:
    """Look into a room."""
    return f"nothing in {room}"


def step_number(state):
    """Say at which step of the loop the agent is."""
    return str(state.visit - 1)


def searcher():
    """Return an agent of 16 steps, and its scripted model."""
    lm = scripted_agent_lm(
        lambda turn: ("look", {"room": f"room {turn.step}"}) if turn.step < STEPS else ("finish", {})
    )
    return dspy.ReAct("question -> answer", tools=[look], max_iters=STEPS + 2), lm


def solved(gold, pred, trace=None):
    return 1.0


def calls_by_depth():
    """Print calls and tokens of a trial against two full runs, by how deep the checkpoint lies."""
    print("| checkpoint before step | calls of both arms | of two full runs | tokens of both arms | of two full runs |")
    print("| --- | --- | --- | --- | --- |")
    agent, lm = searcher()
    with dspy.context(lm=lm):
        (recording,) = record_runs(agent, [EXAMPLE], solved, features=[step_number], num_threads=1)
        for step in (0, 4, 8, 12, 15):
            edit = InstructionEdit(at=CallSite("*", "react"), text="Lesson.", when=Rule.of(step_number=str(step)))
            trial = paired_trial(agent, edit, EXAMPLE, solved, recording=recording, features=[step_number])
            arms, prefix = trial.parent + trial.edited, trial.prefix + trial.prefix
            print(
                f"| {step} | {arms.lm_calls} | {arms.lm_calls + prefix.lm_calls} | {arms.total_tokens} | "
                f"{arms.total_tokens + prefix.total_tokens} |"
            )


def seconds_a_call(variants, *, repeats, rounds=10):
    """Return the best mean of each variant, in processor time; all take turns, so that a busy machine counts little."""
    best = {}
    for _ in range(rounds):
        for name, run in variants.items():
            began = time.thread_time()
            for _ in range(repeats):
                run()
            mean = (time.thread_time() - began) / repeats
            best[name] = min(mean, best.get(name, mean))
    return best


class Two(dspy.Module):
    """Two predictors, one after the other."""

    def __init__(self):
        super().__init__()
        self.first = dspy.Predict("question -> answer")
        self.second = dspy.Predict("question -> answer")

    def forward(self, question):
        """Call both."""
        self.first(question=question)
        return self.second(question=question)


def overhead(repeats):
    """Print the processor time that one predictor call takes: plain, in an edited program, and recorded."""
    lm = scripted_lm(lambda prompt, number: chat_reply(answer="a"))
    program = Two()

    def edited(source, target, **when):
        evolved = attach(program, InstructionEdit(at=CallSite(source, target), text="Lesson.", when=Rule.of(**when)))
        return lambda: evolved(question="q")

    def recorded():
        with observed(program) as token, following(Execution(token, (), FeatureSet(), journal=Recorder())):
            program(question="q")

    def with_a_callback():
        with dspy.context(callbacks=[BaseCallback()]):
            program(question="q")

    variants = {
        "plain": lambda: program(question="q"),
        "plain, with a callback that does nothing": with_a_callback,
        "an edit that never acts, from `second`": edited("second", "first"),
        "an edit on one of two predictors, from `*`": edited("*", "first"),
        "an edit on one of two predictors, from START": edited("START", "first"),
        "an edit with a rule on both": edited("*", "*", visit="first", last_tool="none"),
        "recorded": recorded,
    }
    with dspy.context(lm=lm, disable_history=True):
        taken = {name: seconds / 2 for name, seconds in seconds_a_call(variants, repeats=repeats).items()}
    print("\n| one predictor call | ms | added ms |\n| --- | --- | --- |")
    for name, seconds in taken.items():
        print(f"| {name} | {1000 * seconds:.3f} | {1000 * (seconds - taken['plain']):.3f} |")


def trials_a_second(count):
    """Print how many trials a second run on one program object, with a model that takes no time and one that does."""
    print("\n| threads | trials a second, instant model | with 50 ms a call | processor ms a trial |")
    print("| --- | --- | --- | --- |")
    edit = InstructionEdit(at=CallSite("recurring", "react"), text="Lesson.")
    for threads in (1, 8, 32):
        rates, processor = [], []
        for latency in (None, lambda prompt, number: 0.05):
            lm = scripted_agent_lm(
                lambda turn: ("look", {"room": f"r{turn.step}"}) if turn.step < 3 else ("finish", {}), latency=latency
            )
            agent = dspy.ReAct("question -> answer", tools=[look])
            with dspy.context(lm=lm, disable_history=True):
                (recording,) = record_runs(agent, [EXAMPLE], solved, num_threads=1)
                requests = [TrialRequest(edit, EXAMPLE, recording=recording)] * count
                began, worked = time.perf_counter(), time.process_time()
                run_trials(agent, requests, solved, num_threads=threads, progress=False)
                rates.append(count / (time.perf_counter() - began))
                processor.append(1000 * (time.process_time() - worked) / count)
        print(f"| {threads} | {rates[0]:.1f} | {rates[1]:.1f} | {min(processor):.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=30, help="calls a timing")
    parser.add_argument("--trials", type=int, default=32, help="trials a timing")
    arguments = parser.parse_args()
    calls_by_depth()
    overhead(arguments.repeats)
    trials_a_second(arguments.trials)


if __name__ == "__main__":
    main()
