"""Jobs whose calls really go through dspy.LM, with a scripted engine behind it."""

import random
import re
from dataclasses import dataclass, field
from typing import Any

import dspy
import pytest

from dspy_combee.aggregation.base import AggregationJob
from dspy_combee.learners.base import Entry, Reflection, TextUpdate
from dspy_combee.runtime.execution.threads import ThreadExecutor
from dspy_combee.testing import ScriptedEngine, scripted_lm


def curate(reflections):
    """Ask the model about the reflections and make each line of its reply an entry that cites what it read."""
    shown = "\n".join(f"<{' '.join(one.record_ids)}> {one.text}" for one in reflections)
    lines = dspy.settings.lm(shown)[0].splitlines()
    ids = tuple(dict.fromkeys(rid for one in reflections for rid in one.record_ids))
    return TextUpdate(tuple(Entry(line, tuple(r for r in ids if r in line.split()) or ids) for line in lines if line))


def echo(prompt, _number):
    """Answer with one line a record id."""
    return "\n".join(dict.fromkeys(re.findall(r"r\d+", prompt)))


@dataclass
class Bench:
    """A scripted model and the jobs it serves."""

    reply: Any = echo
    latency: Any = None
    num_threads: int = 16
    engine: Any = field(init=False)

    def __post_init__(self):
        self.engine = ScriptedEngine(self.reply, latency=self.latency)

    def job(self, count, component="a", text="rule", **settings):
        reflections = tuple(Reflection(f"{text} {n}", (f"r{n}",), component) for n in range(count))
        return AggregationJob(component, reflections, curate, **settings)

    def run(self, aggregation, *jobs, seed=0):
        with dspy.context(lm=scripted_lm(self.engine)):
            return aggregation.aggregate(jobs, executor=ThreadExecutor(self.num_threads), rng=random.Random(seed))


@pytest.fixture
def make_bench():
    return Bench


@pytest.fixture
def ids_in():
    return lambda prompt: set(re.findall(r"r\d+", prompt))
