"""The demo: what it shows, on the scripted agent and on the short one."""

import json
import re

import dspy
import pytest

from dspy_combee.testing import scripted_lm
from dspy_evocue.__main__ import main
from dspy_evocue.demo.claims import CODE
from dspy_evocue.demo.office import OfficeDesk, lay_out, office_tasks
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
    held_out = shown[shown.index("On the held-out tasks") :]
    assert re.search(r"success \d+\.\d% before, 100\.0% after", held_out), held_out
    assert "What EvoCUE learned" in (tmp_path / "report.html").read_text(encoding="utf-8")


class ClaimsModels:
    """Scripted models of the claims desk under the names by which the command line asks for them."""

    def __init__(self, interrupt_at=None):
        self.clerk = scripted_lm(self._clerk, model="clerk")
        self.adviser = scripted_lm(self._adviser, model="adviser")
        self._interrupt_at = interrupt_at

    @property
    def calls(self):
        return self.clerk.engine.calls + self.adviser.engine.calls

    def resolve(self, name):
        return self.adviser if name == "the adviser" else self.clerk

    def _clerk(self, prompt, number):
        if number == self._interrupt_at:
            raise KeyboardInterrupt
        claim = re.findall(r"\[\[ ## read_so_far ## \]\]\n(.*)", prompt)[-1]
        if claim == "(nothing)":
            return chat_reply(answer=re.findall(r"C-\d+", prompt)[-1])
        return chat_reply(answer=f"{claim} {CODE if CODE in prompt else ''}")

    def _adviser(self, prompt, number):
        if "[[ ## requirements ## ]]" in prompt:
            return chat_reply(requirements="[]")
        if "[[ ## cards ## ]]" in prompt:
            return chat_reply(cards="[]")
        code = re.findall(r"must contain the code (\S+)\.", prompt)
        places = ("START -> clerk", "tool:* -> clerk") if code else ()
        edits = [{"text": f"Put {code[0]} into it.", "at": [at], "expected_effect": "no return"} for at in places]
        return chat_reply(candidates=json.dumps(edits))


def without_times(shown):
    return re.sub(r"\d+\.\d s\b", "", shown)


def run_live(models, log_dir, *arguments):
    names = ["--live", "--lm", "the clerk", "--reflection-lm", "the adviser"]
    return main([*names, "--log-dir", str(log_dir), *arguments], resolve=models.resolve)


def test_the_live_demo_shows_everything_that_its_table_needs(capsys, tmp_path):
    assert run_live(ClaimsModels(), tmp_path) == 0
    shown = capsys.readouterr().out
    assert "SCRIPTED" not in shown
    assert "Task model: clerk, reflection model: adviser" in shown
    assert re.search(r"tool:read_claim -> clerk +3 in 3 of 3 runs", shown)
    assert "Learning takes at most" in shown
    assert re.search(r"Round 1: the program scores 0\.\d\d on 6 recorded tasks", shown)
    assert re.search(r"on START -> clerk:\n.*\n    task .*\n(    \w+ .* -> .*\n){4}    0 better", shown)
    assert re.search(r"on tool:\* -> clerk:\n.*\n    task .*\n(    \w+ .* -> .*\n){4}    3 better", shown)
    assert re.search(r"Confirmation .* Accepted by anytime", shown)
    assert f"adds \"Put {CODE} into it.\" to 'clerk' entered from tool:*" in shown
    assert re.search(r"It took \d+ model calls .* and \d+ scored runs, .* and \d.* since this start", shown)
    assert re.search(r"success 25\.0% before, 100\.0% after\n.*better.*\n(.*\n)+  in \d", shown)


def test_an_interrupted_live_demo_shows_what_it_has_and_goes_on_without_paying_twice(capsys, tmp_path):
    whole = ClaimsModels()
    assert run_live(whole, tmp_path / "whole") == 0
    expected = capsys.readouterr().out
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    for at_call in (12, 30, whole.clerk.engine.calls - 3):
        first, rest = ClaimsModels(interrupt_at=at_call), ClaimsModels()
        assert run_live(first, tmp_path / str(at_call)) == 130
        interrupted = capsys.readouterr()
        assert "Round 1: the program scores" in interrupted.out
        assert ("The run ended early and no edit was inherited until then" in interrupted.out) == (at_call < 40)
        assert f"--log-dir {tmp_path / str(at_call)} goes on from here" in interrupted.err
        assert run_live(rest, tmp_path / str(at_call)) == 0
        assert without_times(capsys.readouterr().out) == without_times(expected)
        # The three runs for the call sites are made again; the trial in flight had at most one call behind it.
        assert first.calls + rest.calls <= whole.calls + 3 * 2 + 2


def test_an_unknown_model_is_refused_before_anything_is_shown(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--live", "--lm", "local/nonsense"])
    assert "local/default" in capsys.readouterr().err


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
