"""Ctrl-C in a run: no further call starts, and what was learned is there."""

import threading

import dspy
import pytest
from interrupted import PressedWhileBusy


@pytest.mark.parametrize("at_call", [1, 4, 12, 20])
def test_an_interrupt_keeps_the_program_so_far_and_starts_nothing_more(bed, at_call):
    interrupted = threading.Event()
    after = []

    def interrupting(prompt, number):
        if number == at_call:
            interrupted.set()
            raise KeyboardInterrupt
        if interrupted.is_set():
            after.append(number)
        return bed.answer(prompt)

    optimizer = bed.optimizer()
    with pytest.raises(KeyboardInterrupt):
        bed.compile(optimizer, lm=bed.task_lm(interrupting))
    result = optimizer.last_result
    assert result.stop_reason == "interrupted"
    assert result.best_program.evocue.edits == ()
    # Calls that four threads had in flight may still end; a trial has two arms.
    assert len(after) <= 2 * 4


class AskTwice(dspy.Module):
    """An agent that has more to ask when it is interrupted."""

    def __init__(self):
        super().__init__()
        self.ask = dspy.Predict("question -> answer")
        self.check = dspy.Predict("question -> answer")

    def forward(self, question):
        answer = self.ask(question=question)
        self.check(question=question)
        return answer


@pytest.mark.parametrize("first_call", [1, 9])
def test_no_call_starts_after_ctrl_c_while_workers_are_busy(bed, tmp_path, first_call):
    """Press it while four workers wait for their model: no run goes on to its next call."""
    pressed = PressedWhileBusy(bed.answer, first_call)
    optimizer = bed.optimizer(log_dir=tmp_path)
    pressed.during(lambda: bed.compile(optimizer, program=AskTwice(), lm=bed.task_lm(pressed)))
    assert optimizer.last_result.stop_reason == "interrupted"
    assert len(pressed.started) == pressed.at_interrupt
    again = bed.optimizer(log_dir=tmp_path)
    bed.compile(again, program=AskTwice())
    assert again.last_result.stop_reason == "perfect"


def test_an_interrupt_in_the_reflection_model_can_return_the_program(bed):
    def interrupting(prompt, number):
        if "untested_evidence" in prompt:
            raise KeyboardInterrupt

    optimizer = bed.optimizer(adviser=bed.adviser(reply=interrupting), on_interrupt="return")
    program, _ = bed.compile(optimizer)
    assert program is optimizer.last_result.best_program
    assert optimizer.last_result.stop_reason == "interrupted"
    assert len(optimizer.last_result.rounds) == 1
