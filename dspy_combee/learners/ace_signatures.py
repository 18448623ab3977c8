"""What the reflector and the curator of ACE are asked, and how their typed replies are read.

Lists of items are read leniently: one that makes no sense is dropped and the rest is kept. A reply that is no list
at all is an error, because "nothing to say" and "could not be read" are different answers; only votes that are missing
or no list are none, because the insight beside them is worth more than they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, ClassVar, Generic, Literal, TypeVar

import dspy
import pydantic
from json_repair import loads as repair_json

from dspy_combee.runtime.python_syntax import literal
from dspy_combee.signatures import ExtractedLesson

_NOTHING = {"", "none", "null", "n/a", "[]", "no operations", "nothing"}
_TAGS = {"helpful", "harmful", "neutral"}

Item = TypeVar("Item", bound=pydantic.BaseModel)


def _as_list(value: Any) -> list[Any]:
    """Return the items of a reply in whatever wrapping they came: a list, `{"operations": [...]}`, or one item.

    Raises:
        ValueError: When the reply is none of these.
    """
    if isinstance(value, pydantic.BaseModel):
        value = value.model_dump()
    if isinstance(value, str):
        if value.strip().strip(".").lower() in _NOTHING:
            return []
        value = repair_json(value)
        if not isinstance(value, (list, dict)) or not value:
            raise ValueError("the reply must be a JSON list")
    if value is None:
        return []
    if isinstance(value, dict) and value and {str(item).lower() for item in value.values()} <= _TAGS:
        return [{key: item} for key, item in value.items()]
    if isinstance(value, dict):
        lists = [item for item in value.values() if isinstance(item, list)]
        is_wrapper = len(value) == 1 and (lists or value.get("root") is not None)
        return lists[0] if is_wrapper and lists else [value]
    if isinstance(value, (list, tuple)):
        return list(value)
    raise ValueError(f"the reply must be a JSON list, got {type(value).__name__}")


class _Items(pydantic.RootModel[list[Item]], Generic[Item]):
    """A list that keeps its good items."""

    item_type: ClassVar[type[pydantic.BaseModel]]
    is_optional: ClassVar[bool] = False
    """Whether a reply that is no list is read as an empty one."""

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _keep_good_items(cls, value: Any, handler: pydantic.ModelWrapValidatorHandler[Any]) -> Any:
        if isinstance(value, cls):
            return value
        try:
            items = _as_list(value)
        except ValueError:
            if not cls.is_optional:
                raise
            items = []
        return handler(list(_good_items(cls.item_type, items)))


def _good_items(item_type: type[Item], items: Iterable[Any]) -> Iterator[Item]:
    for raw in items:
        with suppress(pydantic.ValidationError):
            yield item_type.model_validate(raw)


def _as_ids(value: Any) -> Any:
    """Read ids however they came: one, several in one text, a list, in brackets."""
    if isinstance(value, (str, int)):
        value = re.split(r"[\s,;]+", str(value))
    if isinstance(value, (list, tuple)):
        return [text for text in (str(item).strip("[]()\"'` ") for item in value) if text]
    return value


def _renamed(value: Any, **aliases: tuple[str, ...]) -> Any:
    """Return a reply's item with the usual other spellings of its keys put right."""
    if not isinstance(value, dict):
        return value
    fixed = {str(key).strip().lower(): item for key, item in value.items()}
    for name, others in aliases.items():
        for other in others:
            if name not in fixed and other in fixed:
                fixed[name] = fixed.pop(other)
    return {key: item for key, item in fixed.items() if item is not None}


class EntryVote(pydantic.BaseModel):
    """What a run says about one playbook entry."""

    entry_id: str
    tag: Literal["helpful", "harmful", "neutral"]

    @pydantic.model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        value = _renamed(value, entry_id=("id", "entry", "bullet_id", "bullet"), tag=("vote", "label"))
        if isinstance(value, dict) and len(value) == 1:  # {"e1": "helpful"}
            value = dict(zip(("entry_id", "tag"), next(iter(value.items())), strict=True))
        if isinstance(value, str) and ":" in value:  # "e1: helpful"
            value = dict(zip(("entry_id", "tag"), value.split(":", 1), strict=True))
        if not isinstance(value, dict):
            return value
        return {
            key: str(item).strip("[]\"' ").lower() if key == "tag" else str(item).strip("[]\"' ")
            for key, item in value.items()
        }


class Votes(_Items[EntryVote]):
    """Votes on entries."""

    item_type: ClassVar[type[pydantic.BaseModel]] = EntryVote
    is_optional: ClassVar[bool] = True


def _no_votes() -> Votes:
    return Votes([])


class CuratedLesson(ExtractedLesson):
    """One specific rule, and where it is filed.

    Defaults are factories, here and below: strict providers refuse a schema that states a default.
    """

    section: str = pydantic.Field(default_factory=str, description="a heading of one or two words to file it under")


class CuratedChange(pydantic.BaseModel):
    """One change to entries that the playbook has."""

    operation: Literal["UPDATE", "MERGE", "REMOVE"]
    entry_ids: list[str] = pydantic.Field(default_factory=list, description="the entries that it changes")
    text: str = pydantic.Field(default_factory=str, description="their new text; empty for REMOVE")
    record_ids: list[str] = pydantic.Field(
        default_factory=list, description="the ids of the reflections that it comes from"
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        value = _renamed(
            value,
            operation=("type", "op", "action"),
            text=("content", "lesson", "rule"),
            entry_ids=("entry_id", "ids", "id", "bullet_id"),
            record_ids=("records", "record_id", "record", "sources"),
        )
        if isinstance(value, dict):
            name = str(value.get("operation", "")).strip().upper()
            # An addition in this place is a change to no entry, which becomes a new one.
            value["operation"] = {"DELETE": "REMOVE", "MODIFY": "UPDATE", "EDIT": "UPDATE", "ADD": "UPDATE"}.get(
                name, name
            )
        return value

    _ids = pydantic.field_validator("entry_ids", "record_ids", mode="before")(_as_ids)


def read_changes(items: Iterable[Any]) -> tuple[CuratedChange, ...]:
    """Return the items that are changes, typed; one that makes no sense is dropped and the rest is kept."""
    return tuple(_good_items(CuratedChange, items))


class LessonMerge(pydantic.BaseModel):
    """One text in the place of several numbered lessons."""

    numbers: list[int]
    text: str

    @pydantic.model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        value = _renamed(value, numbers=("number", "ids", "lessons"), text=("content", "lesson", "merged"))
        if isinstance(value, dict) and "numbers" in value:
            value["numbers"] = _numbers(value["numbers"])
        return value


class LessonMerges(_Items[LessonMerge]):
    """Merges of numbered lessons."""

    item_type: ClassVar[type[pydantic.BaseModel]] = LessonMerge


def _numbers(value: Any) -> list[int]:
    if isinstance(value, str):
        try:
            value = literal(value)
        except (ValueError, SyntaxError):
            value = re.findall(r"\d+", value)
    items = value if isinstance(value, (list, tuple)) else [value]
    return [int(number) for item in items for number in re.findall(r"\d+", str(item))]


class KeyInsight(pydantic.BaseModel):
    """What one component should know next time."""

    component: str = ""
    insight: str

    @pydantic.model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        return (
            {"insight": value} if isinstance(value, str) else _renamed(value, insight=("key_insight", "lesson", "text"))
        )


class KeyInsights(_Items[KeyInsight]):
    """What the components should know next time."""

    item_type: ClassVar[type[pydantic.BaseModel]] = KeyInsight


class Reflect(dspy.Signature):
    """Say what one run of an assistant teaches.

    You see what the assistant was told, the playbook of lessons that it had at hand, what it did, and how that was
    judged. Find the root cause and not the symptom. Where the judgement states a rule or the right answer, the key
    insight must state it too. It must be usable next time without this run at hand: state the exact condition under
    which it holds and what to do then, and copy every number, code, label, name and format exactly as the judgement
    gives them. Say nothing that would fit any task. Vote only on entries that mattered in this run.
    """

    task: str = dspy.InputField(desc="what the assistant was told")
    playbook: str = dspy.InputField(desc="the lessons it had at hand, each with its [id]")
    run: str = dspy.InputField(desc="what the assistant was given and what it did")
    judgement: str = dspy.InputField(desc="the score, the feedback on it and the expected output, as far as known")
    what_went_wrong: str = dspy.OutputField(desc="the mistake, or 'nothing'")
    cause: str = dspy.OutputField(desc="why it happened")
    correct_approach: str = dspy.OutputField(desc="what would have been right, step by step")
    key_insight: str = dspy.OutputField(desc="the one specific lesson: its condition and what to do")
    votes: Votes = dspy.OutputField(
        desc="entries of the playbook that were helpful, harmful or neutral; [] for none", default_factory=_no_votes
    )


class ReflectWithoutLabels(dspy.Signature):
    """Say what one run of an assistant teaches.

    You see what the assistant was told, the playbook of lessons that it had at hand, and what it did. Nobody has
    checked the result: judge from the run itself (errors, contradictions, what its steps and observations show). The
    key insight must be usable next time without this run at hand: state the exact condition under which it holds and
    what to do then, with every number, code, label, name and format that it needs. Say nothing that would fit any
    task. Vote only on entries that mattered in this run.
    """

    task: str = dspy.InputField(desc="what the assistant was told")
    playbook: str = dspy.InputField(desc="the lessons it had at hand, each with its [id]")
    run: str = dspy.InputField(desc="what the assistant was given and what it did")
    what_went_wrong: str = dspy.OutputField(desc="the mistake that the run itself shows, or 'nothing'")
    cause: str = dspy.OutputField(desc="why it happened")
    correct_approach: str = dspy.OutputField(desc="what would have been better, step by step")
    key_insight: str = dspy.OutputField(desc="the one specific lesson: its condition and what to do")
    votes: Votes = dspy.OutputField(
        desc="entries of the playbook that were helpful, harmful or neutral; [] for none", default_factory=_no_votes
    )


class Curate(dspy.Signature):
    """List the specific rule that each reflection teaches: one lesson for each reflection, none left out.

    State the whole condition of a rule and copy codes, labels, names and numbers exactly. Where the rule itself is
    quoted, take it from there. Leave out general advice that would fit any task.
    """

    task: str = dspy.InputField(desc="what the assistant was told")
    reflections: str = dspy.InputField(desc="the reflections, each headed by its [record id]")
    lessons: list[CuratedLesson] = dspy.OutputField(desc="one lesson for each reflection, in their order")


class CurateGrown(dspy.Signature):
    """List the specific rule that each reflection teaches: one lesson for each reflection, none left out.

    State the whole condition of a rule and copy codes, labels, names and numbers exactly. Where the rule itself is
    quoted, take it from there. Leave out general advice that would fit any task, and rules that the entries state.
    Then change entries of the playbook where the reflections call for it: UPDATE one to make it more exact, MERGE
    entries that say the same, REMOVE one that did harm.
    """

    task: str = dspy.InputField(desc="what the assistant was told")
    playbook: str = dspy.InputField(desc="entries of its playbook that mattered, each with its [id]")
    reflections: str = dspy.InputField(desc="the reflections, each headed by its [record id]")
    lessons: list[CuratedLesson] = dspy.OutputField(desc="one lesson for each reflection, in their order")
    changes: list[CuratedChange] = dspy.OutputField(
        desc="changes to entries of the playbook; [] for none", default_factory=list
    )


class MergeLessons(dspy.Signature):
    """Find rules that say the same and give one text for them.

    The rules are numbered; those that you do not mention are kept as they are, so mention only what overlaps. A
    merged text must hold the condition and every number, code, label and name of all its parts. Where two rules
    contradict each other, name the number of the one with the weaker evidence.
    """

    rules: str = dspy.InputField(desc="one a line: number, section, text, records behind it")
    contradictions: str = dspy.InputField(
        desc="pairs that may contradict each other, with the records behind each side"
    )
    merges: LessonMerges = dspy.OutputField(desc="numbers and the one text that stands for them; [] for none")
    refuted: str = dspy.OutputField(desc="numbers of contradicted rules to leave out, or 'none'")
