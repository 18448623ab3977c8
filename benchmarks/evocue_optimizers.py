"""EvoCUE against dspy.GEPA, MIPROv2 and SIMBA on the office desk, at about as many model calls.

Run `python benchmarks/evocue_optimizers.py` (some minutes; scripted agent and adviser, no model). What a scripted world
can show: whether a method's reflection gets to see what went wrong, where it puts the lesson, what that costs in every
later run, and what it does when there is nothing to learn. It cannot show how well a model writes.
"""

from __future__ import annotations

import argparse
import contextvars
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

import dspy

from dspy_combee.runtime.budget import Meter
from dspy_combee.runtime.quiet import quiet_progress
from dspy_combee.testing import scripted_lm
from dspy_evocue import EvoCUE
from dspy_evocue.demo.office import OfficeDesk, lay_out, office_agent, office_environment, office_metric, office_tasks
from dspy_evocue.demo.scripted import LESSON, adviser_lm, clerk_lm
from dspy_evocue.testing import chat_reply

_DESK: contextvars.ContextVar[OfficeDesk] = contextvars.ContextVar("desk")
LM_CALLS = 450


class DeskPerRun(dspy.Module):
    """The same agent with a desk of its own for every run, for optimizers that know of no environment."""

    def __init__(self, tasks: list[dspy.Example]) -> None:
        super().__init__()
        self._tasks = {task.request: task for task in tasks}
        self.agent = dspy.ReAct("request -> answer", tools=list(map(_shared_tool, TOOLS)), max_iters=8)

    def forward(self, request: str) -> dspy.Prediction:
        """Handle one ticket on a desk of its own."""
        desk = OfficeDesk()
        lay_out(desk, self._tasks[request])
        token = _DESK.set(desk)
        try:
            prediction = self.agent(request=request)
        finally:
            _DESK.reset(token)
        task = self._tasks[request]
        return dspy.Prediction(answer=prediction.answer, settled=office_metric(desk)(task, prediction))


TOOLS = ("read_ticket", "book_room", "file_expense", "add_note", "close_ticket")


def _shared_tool(name: str) -> dspy.Tool:
    plain = dspy.Tool(getattr(OfficeDesk(), name))
    return dspy.Tool(
        lambda **arguments: getattr(_DESK.get(), name)(**arguments), name=name, desc=plain.desc, args=plain.args
    )


def settled(example: object, prediction: object, trace: object = None, *rest: object) -> float:
    return float(getattr(prediction, "settled", 0.0))


def settled_five(
    gold: object, pred: object, trace: object = None, pred_name: object = None, pred_trace: object = None
) -> dspy.Prediction:
    score = settled(gold, pred)
    return dspy.Prediction(score=score, feedback="" if score else "The ticket is not settled.")


def reflecting_lm(text: str) -> dspy.LM:
    """Return a model that adds the lesson wherever its prompt shows accounting's remark, whatever the method asks."""

    def reply(prompt: str, call_number: int) -> str:
        seen = "Returned by accounting" in prompt
        if "new_instruction" in prompt:
            before = re.findall(r"(?s)\[\[ ## current_instruction ## \]\]\n(.*?)\n\n\[\[ ##", prompt)
            current = before[-1] if before else "Handle the ticket."
            return json.dumps({"new_instruction": f"{current}\n{text}" if seen else current})
        if "module_advice" in prompt:
            advice = {"agent.react": text} if seen else {}
            return chat_reply(discussion="what differs", module_advice=json.dumps(advice))
        fields = re.findall(r"\[\[ ## (\w+) ## \]\]", prompt.rpartition("Respond with the corresponding")[2])
        value = text if seen else "Handle the ticket with the tools."
        return chat_reply(**{name: value for name in fields if name != "completed"})

    return scripted_lm(reply)


@dataclass(frozen=True)
class Row:
    """What one method came to."""

    calls: int
    solved: float
    prompt_tokens: float
    """Input tokens of one held-out run."""
    changed: bool
    """Whether the returned program differs from the student."""


def gepa(train: list, val: list, program: dspy.Module, reflection: dspy.LM) -> dspy.Module:
    runs = LM_CALLS // 6
    return dspy.GEPA(
        metric=settled_five, max_metric_calls=runs, reflection_lm=reflection, reflection_minibatch_size=3, num_threads=1
    ).compile(program, trainset=train, valset=val[:8])


def mipro(train: list, val: list, program: dspy.Module, reflection: dspy.LM) -> dspy.Module:
    return dspy.MIPROv2(
        metric=settled, prompt_model=reflection, auto=None, num_candidates=3, num_threads=1, verbose=False
    ).compile(program, trainset=train, valset=val[:8], num_trials=4, minibatch=False)


def simba(train: list, val: list, program: dspy.Module, reflection: dspy.LM) -> dspy.Module:
    return dspy.SIMBA(
        metric=settled, bsize=8, num_candidates=2, max_steps=1, max_demos=0, prompt_model=reflection, num_threads=1
    ).compile(program, trainset=train, seed=0)


def others(tasks: list, test: list, text: str) -> dict[str, Row]:
    """Run the three other optimizers, each on half of the tasks for training and half for validation."""
    rows = {}
    methods: dict[str, Callable[..., dspy.Module]] = {"dspy.GEPA": gepa, "dspy.MIPROv2": mipro, "dspy.SIMBA": simba}
    for name, method in methods.items():
        half = len(tasks) // 2
        meter = Meter()
        student = DeskPerRun([*tasks, *test])
        with dspy.context(lm=clerk_lm()), meter.installed(), quiet_progress(keep_main_bar=False):
            program = method(tasks[:half], tasks[half:], student, reflecting_lm(text))
        changed = program.dump_state() != student.dump_state()
        rows[name] = held_out(program, test, settled, None, meter, changed)
    return rows


def evocue(tasks: list, test: list, text: str) -> Row:
    desk = OfficeDesk()
    entries = ("START -> react", "tool:* -> react")
    candidates = [{"text": text, "at": [at], "expected_effect": "no remark"} for at in entries]
    optimizer = EvoCUE(
        office_metric(desk),
        reflection_lm=adviser_lm(candidates=candidates),
        environment=office_environment(desk),
        num_threads=1,
        progress=False,
    )
    meter = Meter()
    with dspy.context(lm=clerk_lm()), meter.installed():
        program = optimizer.compile(office_agent(desk), trainset=tasks)
    changed = bool(optimizer.last_result.edits)
    return held_out(program, test, office_metric(desk), office_environment(desk), meter, changed)


def held_out(program, test, metric, environment, meter, changed) -> Row:
    from dspy_evocue import record_runs

    with dspy.context(lm=clerk_lm()):
        runs = record_runs(program, test, metric, environment=environment, num_threads=1)
    solved = sum(run.episode.score or 0.0 for run in runs) / len(test)
    tokens = sum(run.episode.spend.input_tokens for run in runs) / len(test)
    return Row(meter.spend.lm_calls, solved, tokens, changed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    for name in ("dspy", "dspy.teleprompt", "dspy.evaluate"):
        logging.getLogger(name).setLevel(logging.ERROR)
    tasks = office_tasks(56, seed=seed)
    learning, test = tasks[:40], tasks[40:]
    for title, text in (("a lesson that helps", LESSON), ("a text that does nothing", "Please work carefully.")):
        print(f"\nThe adviser writes {title}; {len(test)} held-out tasks\n")
        print("| optimizer | model calls | held-out tasks solved | input tokens a run | program changed |")
        print("|---|---|---|---|---|")
        rows = {"EvoCUE": evocue(learning, test, text), **others(learning, test, text)}
        for name, row in rows.items():
            changed = "yes" if row.changed else "no"
            print(f"| {name} | {row.calls} | {row.solved:.0%} | {row.prompt_tokens:.0f} | {changed} |")


if __name__ == "__main__":
    main()
