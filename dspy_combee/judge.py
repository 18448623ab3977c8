"""A model judges what was learned against the reflections it came from: is it all there, and is it specific?

A measurement, never a part of a run: coverage is what context overload takes first, specificity is what generic advice
lacks. Reflections are judged in small groups, so that the judge itself is not overloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import dspy
from pydantic import BaseModel, Field

from dspy_combee.provenance import RecordSource
from dspy_combee.replies import refuse_cut_prediction
from dspy_combee.runtime.execution.base import Executor
from dspy_combee.runtime.execution.threads import ThreadExecutor, default_num_workers
from dspy_combee.runtime.retry import RetryPolicy, call_with_retry
from dspy_combee.seeding import branch_rng

GROUP_SIZE = 5
"""So many reflections a call of the judge sees."""


class Verdict(BaseModel):
    """What the judge says of one reflection."""

    record_id: str = Field(description="the id of the reflection")
    covered: Literal["fully", "partly", "no"] = Field(
        description="fully: condition and consequence both stand in the lessons; partly: only one does, or vaguely"
    )
    specific: Literal["specific", "generic"] = Field(
        description="generic: what the lessons say of it would fit any task"
    )


class JudgeLessons(dspy.Signature):
    """Judge whether lessons keep what each reflection teaches.

    For each reflection, look for its specific rule in the lessons. Codes, names, numbers and conditions must be there;
    a general remark on the subject does not count.
    """

    lessons: str = dspy.InputField(desc="what was learned")
    reflections: str = dspy.InputField(desc="the reflections, each headed by its [record id]")
    verdicts: list[Verdict] = dspy.OutputField(desc="one verdict for each reflection, in their order")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the judge said of all reflections."""

    fully: int
    """Reflections whose rule stands in the lessons, with its condition."""
    partly: int
    missing: int
    generic: int
    """Of those covered fully or partly, for how many the lessons say only what would fit any task."""
    unjudged: tuple[str, ...] = ()
    """Reflections for which no verdict came; they are in no other number."""
    fully_covered: tuple[str, ...] = ()
    """The record ids of those that are covered fully, so that a judge can be compared with a count."""

    @property
    def coverage(self) -> float | None:
        """Share of what is kept, a part counting half; None when nothing was judged."""
        judged = self.fully + self.partly + self.missing
        return (self.fully + 0.5 * self.partly) / judged if judged else None

    @property
    def specificity(self) -> float | None:
        """Share of the covered reflections for which the lessons are specific; None when none is covered."""
        covered = self.fully + self.partly
        return 1 - self.generic / covered if covered else None


def judge_lessons(
    lessons: str,
    reflections: Sequence[tuple[str, str]] | Sequence[RecordSource],
    *,
    lm: Any = None,
    executor: Executor | None = None,
    group_size: int = GROUP_SIZE,
) -> Judgement:
    """Judge lessons (a rendered playbook, an instruction) against the reflections they came from.

    Args:
        lessons: The text that was learned.
        reflections: Record id and text of each, or the sources of a result (`result.provenance.sources.values()`).
        lm: The judge; None for that of `dspy.settings`.
        executor: Where the calls run; None for threads.
        group_size: Reflections a call sees, at least 1.

    Raises:
        ValueError: there are no reflections, or `group_size` is below 1.
    """
    if group_size < 1:
        raise ValueError(f"group_size must be at least 1, got {group_size}")
    shown = [(one.record_id, one.feedback) if isinstance(one, RecordSource) else one for one in reflections]
    if not shown:
        raise ValueError("reflections must hold at least one, got none")
    groups = [shown[start : start + group_size] for start in range(0, len(shown), group_size)]
    model = lm if lm is not None else dspy.settings.lm

    def judge(index: int) -> list[Verdict]:
        rng = branch_rng(0, "judge", index)
        return call_with_retry(lambda: _ask(lessons, groups[index], model), RetryPolicy(), rng)

    outcomes = (executor or ThreadExecutor(default_num_workers())).run(judge, range(len(groups)))
    return _counted(shown, [verdict for outcome in outcomes for verdict in outcome.value or ()])


def _ask(lessons: str, group: Sequence[tuple[str, str]], lm: Any) -> list[Verdict]:
    predict = dspy.Predict(JudgeLessons)
    with dspy.context(lm=lm, trace=None):
        reply = predict(lessons=lessons, reflections="\n\n".join(f"[{rid}]\n{text}" for rid, text in group))
    refuse_cut_prediction(predict)
    return list(reply.verdicts)


def _counted(shown: Sequence[tuple[str, str]], verdicts: Sequence[Verdict]) -> Judgement:
    """Count one verdict a reflection, the first; those on records that were not shown count for nothing."""
    by_id = {rid.casefold(): rid for rid, _ in shown}
    first: dict[str, Verdict] = {}
    for verdict in verdicts:
        rid = by_id.get(verdict.record_id.strip("[] ").casefold())
        if rid is not None:
            first.setdefault(rid, verdict)
    covered = [one for one in first.values() if one.covered != "no"]
    return Judgement(
        fully=sum(one.covered == "fully" for one in covered),
        partly=sum(one.covered == "partly" for one in covered),
        missing=len(first) - len(covered),
        generic=sum(one.specific == "generic" for one in covered),
        unjudged=tuple(rid for rid, _ in shown if rid not in first),
        fully_covered=tuple(rid for rid, _ in shown if rid in first and first[rid].covered == "fully"),
    )
