"""Runs of ACE in the world of fruit codes."""

import dspy

from dspy_combee.ace import ACE
from dspy_combee.runtime.retry import RetryPolicy


def ace(world, **kwargs):
    kwargs.setdefault("retry", RetryPolicy(sleep=lambda seconds: None))
    return ACE(world.metric, reflection_lm=world.reflection_lm, progress=False, num_threads=4, **kwargs)


def compiled(world, program, optimizer, **kwargs):
    with dspy.context(lm=world.task_lm):
        return optimizer.compile(program, **kwargs)
