"""Lessons over dspy.GEPA: a reflection model that teaches them, and where to find them in a program."""

import re

from dspy_combee.lessons import split_instruction
from dspy_combee.testing import asks_for_lessons, lessons_reply


def teach(prompt, number):
    if asks_for_lessons(prompt):
        found = re.findall(r"\[(r\d+)\]\nInputs: question = (?:[A-Z]+ )?q(\d+)", prompt)
        return lessons_reply((rid, f"when asked q{q} answer {q}") for rid, q in found)
    return "[[ ## operations ## ]]\nNONE"


def lessons_in(program):
    return [
        one.text for predictor in program.predictors() for one in split_instruction(predictor.signature.instructions)[1]
    ]
