"""Figures of the explicit controller on the small code world, with a scripted agent.

Three questions: where must a lesson stand to act, what does a skill cost with a rule and without, and which rule does
the learner find by itself. The agent is scripted (`dspy_evocue.control.scripted_clerk`): it follows the house rule
exactly where the text is in the prompt of that very call. So the tables show what the controller makes visible and what
it spends, not how well a model learns.

    python benchmarks/evocue_control.py            # print the tables
    python benchmarks/evocue_control.py --write    # and put them into benchmarks/README-evocue.md
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import dspy

from dspy_combee.testing import ScriptedEngine, count_tokens, scripted_lm
from dspy_evocue import EvoCUE
from dspy_evocue.control import (
    OPERATIONS,
    ControlProgram,
    DraftState,
    Limits,
    Skill,
    SkillOperation,
    check_skill,
    returns_to,
)
from dspy_evocue.control.code_agent_graph import code_agent_graph
from dspy_evocue.control.code_world import HOUSE_RULE, check_code, open_code_world
from dspy_evocue.control.scripted_adviser import REVISION_SKILL, adviser_reply
from dspy_evocue.control.scripted_clerk import clerk_reply, hasty_clerk_reply
from dspy_evocue.rules import Rule

TASKS = (
    *(f"report-{n}" for n in range(1, 5)),
    *(f"direct-{n}" for n in range(1, 5)),
    *(f"search-{n}" for n in range(1, 17)),
)
LEARNING_TASKS = tuple(
    f"{kind}-{number}" for number in range(101, 111) for kind in ("search", "report", "direct")
) + tuple(f"search-{number}" for number in range(201, 211))
Reply = Callable[[str, int], str]
PENDING = (DraftState.PENDING_VALID, DraftState.PENDING_INVALID)
README = Path(__file__).with_name("README-evocue.md")


@dataclass(frozen=True)
class Row:
    """What one variant of the agent did on all tasks."""

    name: str
    solved: int
    model_calls: int
    out_of_budget: int
    prompt_tokens: int
    rule_tokens: int


def called_app(draft: str) -> str:
    """Return which app the pending code calls, as far as the figures care."""
    return "payments" if "payments.pay" in draft else "other"


def make_agent(limits: Limits | None = None) -> ControlProgram:
    """Return the code agent of the figures."""
    return ControlProgram.code_agent(open_code_world, check=check_code, features={"calls": called_app}, limits=limits)


def make_skill(when: Rule) -> Skill:
    """Return the skill that puts the reference into a payment before it is made."""
    revise = (SkillOperation("revise", HOUSE_RULE),)
    return Skill("reference", "prepare", "pre_commit", revise, returns_to("pre_commit", PENDING), when)


def measure(name: str, agent: ControlProgram, clerk: Reply = clerk_reply) -> Row:
    """Run every task once."""
    engine = ScriptedEngine(clerk)
    with dspy.context(lm=scripted_lm(engine)):
        runs = [agent(task_id=task_id) for task_id in TASKS]
    return Row(
        name,
        solved=sum(run.score == 1.0 for run in runs),
        model_calls=engine.calls,
        out_of_budget=sum(run.stop_reason != "finished" for run in runs),
        prompt_tokens=sum(count_tokens(prompt) for prompt in engine.prompts),
        rule_tokens=sum(prompt.count(HOUSE_RULE) for prompt in engine.prompts) * count_tokens(HOUSE_RULE),
    )


def location_rows() -> list[Row]:
    """Return the same text at no entry, the first, the recurring one, and both."""
    agent = make_agent()
    sites = (("nowhere", None), ("first entry", "START"), ("recurring entry", "recurring"), ("everywhere", "*"))
    return [
        measure(name, agent if source is None else agent.with_instruction(source, "prepare", HOUSE_RULE))
        for name, source in sites
    ]


def skill_rows(limits: Limits | None = None) -> list[Row]:
    """Return no skill, the skill with its rule, with a wrong rule, and everywhere."""
    agent = make_agent(limits)
    variants = (
        ("no skill", None),
        ("with its rule (calls is payments)", Rule.of(calls="payments")),
        ("with a wrong rule (phase is first)", Rule.of(phase="first")),
        ("everywhere", Rule()),
    )
    return [measure(name, agent if when is None else agent.with_skill(make_skill(when))) for name, when in variants]


def score(example: dspy.Example, prediction: dspy.Prediction) -> float:
    """Return what the world says of a run."""
    return prediction.score


def learner_lines(title: str, clerk: Reply, limits: Limits | None = None) -> list[str]:
    """Let the learner find the skill on tasks of its own; compare what it inherits with the skill everywhere."""
    agent = make_agent(limits)
    examples = [dspy.Example(task_id=task_id).with_inputs("task_id") for task_id in LEARNING_TASKS]
    optimizer = EvoCUE(
        score,
        reflection_lm=scripted_lm(adviser_reply([REVISION_SKILL])),
        skills=True,
        max_rounds=1,
        max_cards=0,
        num_threads=1,
        progress=False,
    )
    with dspy.context(lm=scripted_lm(clerk)):
        learned = optimizer.compile(agent, trainset=examples)
    result = optimizer.last_result
    assert result is not None, "compile leaves a result"
    (candidate,) = result.rounds[0].candidates
    rows = [
        measure("no skill", agent, clerk),
        measure("the skill everywhere", agent.with_skill(make_skill(Rule())), clerk),
        measure(f"what the learner inherited (when {candidate.edit.when})", learned, clerk),
    ]
    spend = result.spend
    return [
        f"#### {title}",
        "",
        *table(rows, with_budget=limits is not None),
        "",
        f"{len(candidate.trials)} trials: {candidate.reason}. {candidate.fate.capitalize()}. Learning took "
        f"{spend.metric_calls} scored runs and {spend.lm_calls} model calls on {len(LEARNING_TASKS)} other tasks.",
        "",
    ]


def seconds_per(action: Callable[[], object], times: int) -> float:
    """Return the mean wall time of an action."""
    began = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - began) / times


def speed_lines() -> list[str]:
    """Return what the checker and the controller themselves take."""
    graph, rng = code_agent_graph(), random.Random(0)
    skills = [
        Skill("s", "prepare", "pre_commit", tuple(SkillOperation(rng.choice(sorted(OPERATIONS))) for _ in range(6)), ())
        for _ in range(50)
    ]
    checking = seconds_per(lambda: [check_skill(skill, graph) for skill in skills], 3) / len(skills)
    agent, world = make_agent(), open_code_world("search-1")
    with dspy.context(lm=scripted_lm(clerk_reply)):
        run = agent(task_id="search-1")
        running = seconds_per(lambda: agent(task_id="search-1"), 20)
        call = {"task": world.instruction, "history": run.history, "notes": ""}
        calling = seconds_per(lambda: agent.draft(**call), 100)
    own = (running - run.model_calls * calling) / run.steps
    return [
        f"- Checking one skill of six operations: {1000 * checking:.1f} ms.",
        f"- A run of {run.steps} steps and {run.model_calls} model calls: {1000 * running:.1f} ms. DSPy's own "
        f"predictor calls (scripted engine) are {1000 * run.model_calls * calling:.1f} ms of it; a step of the "
        f"controller, the world included, takes {1000 * max(own, 0):.2f} ms.",
    ]


def table(rows: Sequence[Row], *, with_budget: bool = False) -> list[str]:
    """Return the rows as a Markdown table."""
    budget = (" out of budget |", "---:|") if with_budget else ("", "")
    lines = [
        f"| variant | solved of {len(TASKS)} |{budget[0]} model calls | prompt tokens | of these the rule's text |",
        f"|---|---:|{budget[1]}---:|---:|---:|",
    ]
    for row in rows:
        spent = f" {row.out_of_budget} |" if with_budget else ""
        lines.append(
            f"| {row.name} | {row.solved} |{spent} {row.model_calls} | {row.prompt_tokens:,} | {row.rule_tokens:,} |"
        )
    return lines


def report() -> str:
    """Run everything and return the tables as Markdown."""
    limits = Limits(max_model_calls=9)
    return "\n".join(
        [
            "### The same text at different entries of `prepare`",
            "",
            *table(location_rows()),
            "",
            "### The same skill (revise the draft before it is checked) with a rule and without",
            "",
            *table(skill_rows()),
            "",
            f"### The same with at most {limits.max_model_calls} model calls a task",
            "",
            *table(skill_rows(limits), with_budget=True),
            "",
            "### Which rule the learner finds for that skill",
            "",
            *learner_lines("Revising before anything was executed does harm", hasty_clerk_reply),
            *learner_lines("Revising does no harm anywhere", clerk_reply),
            *learner_lines(f"The same with at most {limits.max_model_calls} model calls a task", clerk_reply, limits),
            "### What the controller itself takes",
            "",
            *speed_lines(),
        ]
    )


def main() -> None:
    """Print the tables; with `--write`, put them between the markers of the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help=f"put the tables into {README.name}")
    arguments = parser.parse_args()
    text = report()
    print(text)
    if arguments.write:
        page = README.read_text(encoding="utf-8")
        marked = re.sub(
            r"(<!-- controller tables -->\n).*(<!-- end of controller tables -->)",
            lambda match: f"{match.group(1)}\n{text}\n\n{match.group(2)}",
            page,
            flags=re.DOTALL,
        )
        README.write_text(marked, encoding="utf-8")


if __name__ == "__main__":
    main()
