"""What a decision costs: trials from checkpoints against full reruns, and what stopping early saves.

Run `python benchmarks/evocue_decision_cost.py` (a minute, scripted agent, no model).
"""

from __future__ import annotations

import dspy

from dspy_evocue import CallSite, EvoCUE, InstructionEdit, TrialRequest, record_runs, run_trials
from dspy_evocue.demo.office import OfficeDesk, office_agent, office_environment, office_metric, office_tasks
from dspy_evocue.demo.scripted import LESSON, adviser_lm, clerk_lm, clerk_policy
from dspy_evocue.testing import Action, AgentTurn, scripted_agent_lm

HASTE = "Close the ticket right away."
NOTHING = "Please work carefully."
SITES = ("START", "tool:read_ticket", "tool:book_room", "tool:file_expense", "tool:close_ticket")


def hasty_policy(turn: AgentTurn) -> Action:
    """Act as the clerk does, but close the ticket where a harmful lesson says so."""
    number, arguments = clerk_policy(turn)
    if HASTE in turn.prompt and number not in ("finish", "read_ticket"):
        return "close_ticket", {
            "number": next(word for word in turn.prompt.split() if word.startswith("T-")).strip(".:")
        }
    return number, arguments


def checkpoints(tasks: list[dspy.Example]) -> None:
    """Print the model calls of eight trials by the depth of their checkpoint."""
    desk = OfficeDesk()
    agent, metric, environment = office_agent(desk), office_metric(desk), office_environment(desk)
    print("| the edit acts on | model calls: 8 full pairs | from checkpoints | saved | input tokens saved |")
    print("|---|---|---|---|---|")
    with dspy.context(lm=clerk_lm()):
        runs = record_runs(agent, tasks, metric, environment=environment, num_threads=1)
        for source in SITES:
            edit = InstructionEdit(at=CallSite(source, "react"), text=LESSON)
            spent = {}
            for from_start in (True, False):
                requests = [
                    TrialRequest(edit, task, None if from_start else run, number + 1, from_start)
                    for number, (task, run) in enumerate(zip(tasks, runs, strict=True))
                ]
                records = run_trials(agent, requests, metric, environment=environment, num_threads=1, progress=False)
                arms = [record.parent + record.edited for record in records]
                spent[from_start] = (sum(arm.lm_calls for arm in arms), sum(arm.input_tokens for arm in arms))
            (full, full_tokens), (restored, restored_tokens) = spent[True], spent[False]
            print(
                f"| {source} -> react | {full} | {restored} | {1 - restored / full:.0%} | "
                f"{1 - restored_tokens / full_tokens:.0%} |"
            )


def early_stopping() -> None:
    """Print what whole runs save on candidates that help, do nothing and harm."""
    print("\n| candidate | tasks solved without it | inherited | trials run | confirmation pairs run | scored runs |")
    print("|---|---|---|---|---|---|")
    for name, text, share in (("helps", LESSON, 0.4), ("does nothing", NOTHING, 0.4), ("harms", HASTE, 0.8)):
        desk = OfficeDesk()
        candidate = {"text": text, "at": ["tool:* -> react"], "expected_effect": "better"}
        optimizer = EvoCUE(
            office_metric(desk),
            reflection_lm=adviser_lm(candidates=[candidate]),
            environment=office_environment(desk),
            max_rounds=1,
            num_threads=1,
            progress=False,
        )
        with dspy.context(lm=scripted_agent_lm(hasty_policy)):
            optimizer.compile(office_agent(desk), trainset=office_tasks(40, seed=3, plain_share=share))
        result = optimizer.last_result
        (one,) = result.rounds
        planned = sum(candidate.planned_trials for candidate in one.candidates)
        pairs = "0 of 0"
        if one.confirmation is not None:
            pairs = f"{len(one.confirmation.pairs)} of {one.confirmation.planned_pairs}"
        trials = f"{len(result.trials)} of {planned}"
        print(f"| {name} | {share:.0%} | {len(result.edits)} | {trials} | {pairs} | {result.spend.metric_calls} |")


if __name__ == "__main__":
    print("Eight trials of one edit on the office desk, scripted agent\n")
    checkpoints(office_tasks(8, seed=5, plain_share=0.0))
    early_stopping()
