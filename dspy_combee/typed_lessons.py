"""Ask for lessons as a typed JSON list, and read what came: of all forms tried, the one that a small model fills in.

`benchmarks/lesson_extraction.py` compares the forms. What becomes of the lessons is not decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import dspy

from dspy_combee.lessons import Lesson, one_line
from dspy_combee.replies import recover_lists, refuse_cut_prediction
from dspy_combee.rule_sentences import rule_sentences


class _ListAdapter(dspy.JSONAdapter):
    """DSPy's own, but the system text, a third of what a call takes, is written once a signature and not a call."""

    def format_system_message(self, signature: type[dspy.Signature]) -> str:
        return _system_message(cast(Any, signature))  # a class is hashable, which the metaclass hides


@lru_cache(maxsize=8)
def _system_message(signature: type[dspy.Signature]) -> str:
    return dspy.JSONAdapter().format_system_message(signature)


def ask_for_lists(signature: type[dspy.Signature], **inputs: str) -> dict[str, list[Any]]:
    """Make one call and return the list of each output field.

    Where some items are of another shape, all are returned as the JSON reply has them, so that the good ones are not
    lost with the bad ones.

    Raises:
        ReflectionError: The reply was cut off, or has no such list.
    """
    from dspy.utils.exceptions import AdapterParseError

    predictor = dspy.Predict(signature)  # of its own, so that its history holds this call only
    try:
        with dspy.context(adapter=_ListAdapter(), trace=None):
            reply: Any = predictor(**inputs)
        found = {name: getattr(reply, name) for name in signature.output_fields}
    except AdapterParseError as error:
        found = recover_lists(error.lm_response, list(signature.output_fields))
    refuse_cut_prediction(predictor)
    return found


def read_lessons(items: Any, record_ids: Sequence[str]) -> tuple[Lesson, ...]:
    """Read a model's list of lessons item by item; what is no lesson is dropped, and so are ids that were not shown.

    Args:
        items: `ExtractedLesson`s, or what a JSON reply holds in their place.
        record_ids: The ids of the records that were shown.
    """
    known = {_bare_id(rid): rid for rid in record_ids}
    lessons: list[Lesson] = []
    for item in items if isinstance(items, list | tuple) else ():
        fields = item if isinstance(item, Mapping) else getattr(item, "__dict__", {})
        text = one_line(str(fields.get("rule") or "")).strip("* ")
        if not re.search(r"\w", text):
            continue
        cited = map(_bare_id, re.split(r"[,;&\s]+|\band\b", str(fields.get("record_id") or "")))
        ids = tuple(dict.fromkeys(known[rid] for rid in cited if rid in known))
        heading = one_line(str(fields.get("section") or ""))
        # A call that saw one record can only have learned from that one.
        lessons.append(Lesson(text, ids or (tuple(record_ids) if len(known) == 1 else ()), heading))
    return tuple(lessons)


def cut_to_rules(
    lessons: Iterable[Lesson], cases: Mapping[str, str], *, advice: frozenset[str] = frozenset()
) -> tuple[Lesson, ...]:
    """Cut each lesson down to its rule, where the model copied what stood around it too.

    A lesson that only repeats what its record was given or answered is the case and not its rule, and is left out.

    Args:
        lessons: As they were read.
        cases: What each record was given and answered, by its id.
        advice: Sentences that many feedbacks repeat word for word (`repeated_advice`).
    """
    given = "\n".join(one_line(case).casefold() for case in cases.values())
    found: list[Lesson] = []
    for lesson in lessons:
        cited = lesson.record_ids or tuple(cases)
        text = rule_sentences(lesson.text, advice=advice, case=" ".join(cases.get(rid, "") for rid in cited))
        if one_line(text).casefold() not in given:
            found.append(lesson if text == lesson.text else replace(lesson, text=text))
    return tuple(found)


def _bare_id(record_id: str) -> str:
    return re.sub(r"\W|^record", "", record_id.casefold())
