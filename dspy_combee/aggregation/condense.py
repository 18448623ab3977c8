"""Summaries of reflections, for the aggregations that put a summary before the one aggregation call.

They are the baselines that Combee is compared with: what a summary leaves out, no later call can bring back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dspy

from dspy_combee.aggregation.base import AggregationJob
from dspy_combee.learners.base import Entry, Reflection, TextUpdate
from dspy_combee.replies import refuse_cut_prediction, usable_text


class SummarizeReflections(dspy.Signature):
    """Summarise what these reflections on an assistant's runs teach.

    Keep every specific rule with its condition, and every code, label, name and number. Put the [record id] in front of
    what a record teaches.
    """

    reflections: str = dspy.InputField(desc="the reflections, each headed by its [record id]")
    summary: str = dspy.OutputField(desc="the summary and nothing else")


def summarize(reflections: Sequence[Reflection]) -> TextUpdate:
    """Ask `dspy.settings.lm` for one summary of the reflections (a `Curate`).

    Raises:
        ReflectionError: The reply is blank, cut off or still reasoning.
    """
    predict = dspy.Predict(SummarizeReflections)
    with dspy.context(trace=None):
        reply = predict(reflections="\n\n".join(headed(reflection) for reflection in reflections))
    refuse_cut_prediction(predict)
    record_ids = tuple(dict.fromkeys(rid for reflection in reflections for rid in reflection.record_ids))
    return TextUpdate((Entry(usable_text(reply.summary), record_ids),))


def headed(reflection: Reflection) -> str:
    """Return a reflection's text under its record ids, unless it stands under them already."""
    head = f"[{', '.join(reflection.record_ids)}]"
    return reflection.text if reflection.text.startswith(head) else f"{head}\n{reflection.text}"


def condensed(job: AggregationJob, reflections: Sequence[Reflection], summary: str) -> Reflection:
    """Return one reflection that stands for several.

    Where the job does not say how, the details of GEPA's shape are replaced by a record whose feedback is the summary.
    """
    if job.condense is not None:
        return job.condense(reflections, summary)
    ids = tuple(dict.fromkeys(record_id for reflection in reflections for record_id in reflection.record_ids))
    is_gepa = all(isinstance(r.details, Mapping) and "Feedback" in r.details for r in reflections)
    details = {"Inputs": {}, "Generated Outputs": "", "Feedback": summary} if is_gepa else None
    return Reflection(summary, ids, job.component, details=details)
