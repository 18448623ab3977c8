"""The same text at the first entry, at the recurring entry, everywhere, nowhere: success, and what the text costs.

Run `python benchmarks/evocue_location.py` (seconds, scripted agent, no model).
"""

from __future__ import annotations

import argparse

import dspy

from dspy_combee.testing import count_tokens
from dspy_evocue import CallSite, InstructionEdit, attach, record_runs
from dspy_evocue.demo.office import OfficeDesk, office_agent, office_environment, office_metric, office_tasks
from dspy_evocue.demo.scripted import LESSON, clerk_lm

PLACEMENTS = {
    "nowhere": None,
    "first entry (START -> react)": CallSite("START", "react"),
    "recurring entry (tool:* -> react)": CallSite("tool:*", "react"),
    "where it is needed (tool:file_expense -> react)": CallSite("tool:file_expense", "react"),
    "everywhere (* -> *)": CallSite("*", "*"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=16)
    tasks = office_tasks(parser.parse_args().tasks, seed=7, shortcuts=1)
    print(f"{len(tasks)} tasks: 4 without an expense, 1 whose whole work is decided on the first entry\n")
    print("| the lesson stands | tasks solved | times it was read | its tokens | all input tokens |")
    print("|---|---|---|---|---|")
    for name, site in PLACEMENTS.items():
        desk = OfficeDesk()
        agent = office_agent(desk)
        program = agent if site is None else attach(agent, InstructionEdit(at=site, text=LESSON))
        with dspy.context(lm=clerk_lm()):
            runs = record_runs(program, tasks, office_metric(desk), environment=office_environment(desk), num_threads=1)
        read = sum(event.edit_id is not None for run in runs for event in run.tape.events)
        solved = sum(int(run.episode.score or 0) for run in runs)
        inputs = sum(run.episode.spend.input_tokens for run in runs)
        print(f"| {name} | {solved} | {read} | {read * count_tokens(LESSON)} | {inputs} |")


if __name__ == "__main__":
    main()
