"""The demo: what it shows, on the scripted agent and on the short one."""

import json
import re

from dspy_combee.testing import scripted_lm
from dspy_evocue.__main__ import main
from dspy_evocue.demo.claims import CODE
from dspy_evocue.demo.office import OfficeDesk, lay_out, office_tasks
from dspy_evocue.demo.problem import claims_problem
from dspy_evocue.demo.tour import TourOptions, run_tour
from dspy_evocue.testing import chat_reply


def test_the_demo_shows_the_whole_way_and_writes_a_report(capsys, tmp_path):
    assert main(["--report", str(tmp_path / "report.html")]) == 0
    shown = capsys.readouterr().out
    assert "This tour is SCRIPTED: no language model runs." in shown
    assert "tool:file_expense -> react" in shown
    assert "on START -> react" in shown
    assert "0 better, 0 worse, 8 equal" in shown
    assert "6 better, 0 worse, 2 equal" in shown
    assert "The program has learned 1 edit" in shown
    assert re.search(r"success \d+\.\d% before, 100\.0% after", shown)
    assert "What EvoCUE learned" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_short_agent_can_learn_its_convention_on_the_second_entry():
    def clerk(prompt, number):
        claim = re.findall(r"\[\[ ## read_so_far ## \]\]\n(.*)", prompt)[-1]
        if claim == "(nothing)":
            return chat_reply(answer=re.findall(r"C-\d+", prompt)[-1])
        return chat_reply(answer=f"{claim} {CODE if CODE in prompt else ''}")

    def adviser(prompt, number):
        if "[[ ## requirements ## ]]" in prompt:
            return chat_reply(requirements="[]")
        if "[[ ## cards ## ]]" in prompt:
            return chat_reply(cards="[]")
        code = re.findall(r"must contain the code (\S+)\.", prompt)
        edit = {"text": f"Put {code[0]} into it.", "at": ["tool:* -> clerk"], "expected_effect": "no return"}
        return chat_reply(candidates=json.dumps([edit] if code else []))

    lines = []
    options = TourOptions(train=20, test=8, trial_tasks=4, confirmation_tasks=5, num_threads=1)
    result = run_tour(claims_problem(), scripted_lm(clerk), scripted_lm(adviser), options, lines.append)
    assert [edit.text for edit in result.edits] == [f"Put {CODE} into it."]
    assert "success 25.0% before" in "\n".join(lines)


def test_the_desk_says_what_is_missing_only_when_it_is_too_late():
    desk = OfficeDesk()
    task = next(task for task in office_tasks(8) if task.expenses)
    lay_out(desk, task)
    assert desk.file_expense(*task.expenses[0]) == "filed as E-41"
    assert "expense" not in desk.read_ticket(task.number)
    assert "E-41 is not referenced" in desk.close_ticket(task.number)
    assert desk.add_note(task.number, "E-41").startswith("error")


def test_tasks_are_distinct_and_the_same_for_a_seed():
    tasks = office_tasks(30, seed=2)
    assert len({task.request for task in tasks}) == 30
    assert [task.toDict() for task in tasks] == [task.toDict() for task in office_tasks(30, seed=2)]
