"""Combee as GEPA's instruction proposer: the one open seam of `dspy.GEPA`.

One call of the proposer turns the reflective records of an iteration into new instructions. Importing this file
imports gepa; `dspy_combee` does so only when it is used.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import dspy
from dspy.teleprompt.gepa import instruction_proposal

from dspy_combee.aggregation.base import Aggregated, Aggregation, AggregationJob
from dspy_combee.aggregation.salvage import Salvage
from dspy_combee.aggregation.scan import DEFAULT_REFLECTION_CHARS, Scan
from dspy_combee.aggregation.single_pass import SinglePass
from dspy_combee.aggregation.waves import CallRunner
from dspy_combee.learners.base import Curate, Update
from dspy_combee.learners.gepa_curate import LessonCurate, Proposer, RewriteCurate, join_lessons
from dspy_combee.learners.gepa_records import (
    ReflectiveRecord,
    as_reflections,
    counting,
    identify,
    without_perfect,
)
from dspy_combee.lessons import Lesson, LessonUpdate, attach_lessons, fit_lessons, merge_in_code, split_instruction
from dspy_combee.records import render_record
from dspy_combee.rule_sentences import repeated_advice
from dspy_combee.runtime.execution.base import Executor
from dspy_combee.runtime.execution.threads import ThreadExecutor, default_num_workers
from dspy_combee.scan import SMALL_BATCH
from dspy_combee.seeding import branch_rng
from dspy_combee.tool_blocks import keep_tool_block

logger = logging.getLogger(__name__)

InstructionProposer: Any = instruction_proposal.InstructionProposer
"""DSPy's own proposer; the type checker takes its decorated class for a function."""

Form = Literal["lessons", "rewrite"]
DEFAULT_INSTRUCTION_CHARS = 40_000


@dataclass(frozen=True, slots=True)
class ProposalReport:
    """What one proposal did to one component, for the run's records."""

    component: str
    records: tuple[ReflectiveRecord, ...]
    """The records that were read."""
    aggregated: Aggregated | None
    """What the calls gave; None when no call was made."""
    text: str | None
    """The new instruction; None when nothing usable came back."""
    lessons: tuple[Lesson, ...] = ()
    """The lessons that stand in the new instruction, with all record ids known for them."""
    left_out: tuple[Lesson, ...] = ()
    """Lessons that had to go because of `max_instruction_chars`."""
    error: str = ""
    """Why there is no text."""

    @property
    def has_failed(self) -> bool:
        """Whether calls were made and none gave anything that can be used."""
        aggregated = self.aggregated
        return aggregated is not None and aggregated.update is None and any(call.error for call in aggregated.calls)


@dataclass(frozen=True, slots=True)
class TaughtInstruction:
    """An instruction with lessons behind its own text."""

    text: str
    lessons: tuple[Lesson, ...]
    """Those that stand in it."""
    left_out: tuple[Lesson, ...]
    """Those that had to go because of `max_instruction_chars`."""


@dataclass(slots=True)
class ProposerHooks:
    """What a run that is observed by Combee plugs into its proposer. The defaults suit plain `dspy.GEPA`."""

    pending: Callable[[], Sequence[tuple[Mapping[str, str], Mapping[str, Sequence[Any]], Sequence[str]]]] = tuple
    """All proposals of this iteration that will be asked for, so that they can be worked on in one wave."""
    extra_records: Callable[[Mapping[str, Sequence[Any]]], Sequence[Mapping[str, Any]]] = lambda dataset: ()
    """Records that GEPA left out of a reflective dataset (crashed examples)."""
    on_report: Callable[[ProposalReport], None] = lambda report: None
    """Told of every component of every proposal."""
    perfect_score: float | None = None
    """Records with this score or more are left out of large batches; None keeps all."""
    tool_blocks: Mapping[str, str] = field(default_factory=dict)
    """The tool description of each component that has one; it stays word for word."""
    stage: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Opened around the calls, so that what they spend is known apart."""


class CombeeProposer:
    """Propose instructions by parallel scan over many reflective records.

    Use it in a `dspy.GEPA` call of your own, `dspy.GEPA(..., instruction_proposer=CombeeProposer())`, or let
    `Combee(dspy.GEPA(...))` do so, which adds the batch-size controller, crashed examples, provenance and budgets.

    It never raises because a model call failed, since GEPA would pay for the whole iteration again: a component for
    which nothing usable came back is left out, and GEPA keeps its parent. Answers are remembered: asked again about
    the same rollouts, it answers without a call.
    """

    def __new__(cls, proposer: Proposer | None = None, **settings: Any) -> CombeeProposer:
        """Make the proposer one of DSPy's own kind exactly when it wraps one of that kind.

        DSPy's adapter decides by the class whether records keep their values (images, histories) or become text.
        """
        is_builtin = proposer is None or isinstance(proposer, InstructionProposer)
        return object.__new__(_BuiltinCombeeProposer if is_builtin else CombeeProposer)

    def __init__(
        self,
        proposer: Proposer | None = None,
        *,
        aggregation: Aggregation | None = None,
        form: Form = "lessons",
        max_instruction_chars: int = DEFAULT_INSTRUCTION_CHARS,
        executor: Executor | None = None,
        seed: int = 0,
        plain_up_to: int = SMALL_BATCH,
        hooks: ProposerHooks | None = None,
    ) -> None:
        """Store the settings; nothing is called.

        Args:
            proposer: The proposer whose single call is replaced; None for DSPy's default one.
            aggregation: How records meet; None for `Scan()`.
            form: "lessons" keeps the user's text and adds checked lessons behind it, "rewrite" is the published form.
            max_instruction_chars: The longest instruction ever proposed; lessons that do not fit are named, longer
                rewritten ones refused.
            executor: Where the calls run; None for threads, as many as `dspy.settings.num_threads`.
            seed: Decides the shuffles.
            plain_up_to: Up to this many records of a component that has learned nothing yet, the wrapped proposer is
                simply called; 0 for never.
            hooks: What an observed run plugs in.

        Raises:
            ValueError: `form` is unknown or `max_instruction_chars` is below 200.
        """
        if form not in ("lessons", "rewrite"):
            raise ValueError(f"form must be 'lessons' or 'rewrite', got {form!r}")
        if max_instruction_chars < 200:
            raise ValueError(f"max_instruction_chars must be at least 200, got {max_instruction_chars}")
        self.proposer: Proposer = proposer if proposer is not None else InstructionProposer()
        self.aggregation: Aggregation = aggregation if aggregation is not None else Scan()
        self.form: Form = form
        self.max_instruction_chars = max_instruction_chars
        self.executor = executor
        self.seed = seed
        self.plain_up_to = plain_up_to
        self.hooks = hooks or ProposerHooks()
        self._numbers = counting()
        self._provenance: dict[str, dict[str, tuple[str, ...]]] = {}
        self._answered: deque[_Proposal] = deque(maxlen=64)

    def __call__(
        self,
        candidate: Mapping[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: Sequence[str],
    ) -> dict[str, str]:
        """Return the new instruction of each component for which one came back.

        Args:
            candidate: Every component's current instruction.
            reflective_dataset: The records of each component, in GEPA's shape.
            components_to_update: The components to propose for.
        """
        wanted = _Proposal(candidate, reflective_dataset, components_to_update)
        answered = self._find(wanted)
        if answered is None:
            pending = [_Proposal(*proposal) for proposal in self.hooks.pending()]
            others = [one for one in pending if one.key != wanted.key and self._find(one) is None]
            with self.hooks.stage(), dspy.context(send_stream=None):
                self._work([wanted, *others])
            answered = wanted
        return dict(answered.answers)

    def lessons_of(self, component: str, instruction: str) -> tuple[Lesson, ...]:
        """Return the lessons that stand in an instruction, with all records that taught the like."""
        known = self._provenance.get(component, {})
        _, lessons = split_instruction(instruction)
        return tuple(Lesson(one.text, known.get(one.text, ()), one.heading) for one in lessons)

    def remember_provenance(self, component: str, lessons: Sequence[Lesson]) -> None:
        """Take over which records taught which lesson, from an earlier part of the run."""
        known = self._provenance.setdefault(component, {})
        for lesson in lessons:
            known[lesson.text] = tuple(dict.fromkeys((*known.get(lesson.text, ()), *lesson.record_ids)))

    def curate_for(self, candidate: Mapping[str, str], component: str, feedbacks: Iterable[str]) -> Curate:
        """Return the one aggregation call for a component; `feedbacks` are those of the records of the batch."""
        if self.form == "lessons":
            known = self.lessons_of(component, candidate[component])
            return cast("Curate", LessonCurate(repeated_advice(feedbacks), known))
        return RewriteCurate(component, candidate, self.proposer, self.max_instruction_chars)

    def with_lessons(self, component: str, current: str, update: LessonUpdate) -> TaughtInstruction:
        """Return an instruction with the lessons of an update in place of those in it, as many as fit."""
        own, _ = split_instruction(current)
        known = self.lessons_of(component, current)
        lessons = update.entries if update.covers_known else merge_in_code([*known, *update.entries])
        kept, left_out = fit_lessons(lessons, self.max_instruction_chars - len(own) - 2)
        self.remember_provenance(component, kept)
        return TaughtInstruction(attach_lessons(own, kept), kept, left_out)

    def _find(self, wanted: _Proposal) -> _Proposal | None:
        return next((one for one in self._answered if one.key == wanted.key), None)

    def _work(self, proposals: Sequence[_Proposal]) -> None:
        """Work on all proposals in one wave and store their answers."""
        for proposal in proposals:
            proposal.parts = [
                self._part(proposal, component)
                for component in proposal.components
                if component in proposal.candidate and component in proposal.dataset
            ]
        parts = [part for proposal in proposals for part in proposal.parts]
        self._run_plain([part for part in parts if part.is_plain])
        scanned = [part for part in parts if not part.is_plain]
        executor = self.executor or ThreadExecutor(default_num_workers())
        path = hashlib.sha256("".join(proposal.digest for proposal in proposals).encode()).hexdigest()
        results = self.aggregation.aggregate(
            [part.job for part in scanned], executor=executor, rng=branch_rng(self.seed, "proposal", path)
        )
        for part, result in zip(scanned, results, strict=True):
            part.report = self._finish(part, result)
        for proposal in proposals:
            self._store(proposal)

    def _part(self, proposal: _Proposal, component: str) -> _Part:
        records = identify([*proposal.dataset[component], *self.hooks.extra_records(proposal.dataset)], self._numbers)
        read = without_perfect(records, self.hooks.perfect_score)
        known = self.lessons_of(component, proposal.candidate[component])
        is_one_call = self.aggregation.calls_for(len(read)) == 1
        is_plain = is_one_call and (self.form == "rewrite" or not known) and len(records) <= self.plain_up_to
        reflections = as_reflections(read, component, max_chars=self._chars_a_record(len(read), is_one_call))
        feedbacks = [str(record.record.get("Feedback", "")) for record in read]
        curate = self.curate_for(proposal.candidate, component, feedbacks)
        job = AggregationJob(component, reflections, curate, join=_join if self.form == "lessons" else None)
        return _Part(component, proposal.candidate, tuple(read), known, job, is_plain)

    def _chars_a_record(self, count: int, is_one_call: bool) -> int:
        """Return how long a record may be: the wrapped proposer reads records, whose text no aggregation splits."""
        reading = _without_salvage(self.aggregation)
        own = reading.max_reflection_chars if isinstance(reading, Scan | SinglePass) else None
        is_shared = is_one_call and (own is not None)
        limit = own or DEFAULT_REFLECTION_CHARS
        return max(200, limit // max(1, count)) if is_shared else limit

    def _run_plain(self, parts: Sequence[_Part]) -> None:
        """Make the wrapped proposer's own single call for parts that have but one group."""
        if not parts:
            return
        executor = self.executor or ThreadExecutor(default_num_workers())
        jobs = [
            AggregationJob(
                part.component,
                part.job.reflections,
                RewriteCurate(part.component, part.candidate, self.proposer, self.max_instruction_chars),
            )
            for part in parts
        ]
        reading = _without_salvage(self.aggregation)
        runner = reading.runner if isinstance(reading, Scan | SinglePass) else CallRunner()
        results = SinglePass(runner=runner).aggregate(jobs, executor=executor, rng=branch_rng(self.seed, "plain"))
        for part, result in zip(parts, results, strict=True):
            part.report = self._finish(part, result)

    def _finish(self, part: _Part, result: Aggregated) -> ProposalReport:
        if result.update is None or not result.update.entries:
            error = next((call.error for call in result.calls if call.error), "no call found anything to learn")
            return ProposalReport(part.component, part.records, result, None, error=error)
        if self.form == "lessons" and not part.is_plain:
            return self._with_lessons(part, result)
        block = self.hooks.tool_blocks.get(part.component)
        text = keep_tool_block(result.update.entries[0].text, block)
        if text.strip() == part.candidate[part.component].strip():
            note = "the proposal is the current instruction"
            return ProposalReport(part.component, part.records, result, None, error=note)
        return ProposalReport(part.component, part.records, result, text)

    def _with_lessons(self, part: _Part, result: Aggregated) -> ProposalReport:
        current = part.candidate[part.component]
        taught = self.with_lessons(part.component, current, cast("LessonUpdate", result.update))
        text, kept, left_out = taught.text, taught.lessons, taught.left_out
        if text == current:
            note = "the batch taught nothing that the instruction does not say"
            return ProposalReport(part.component, part.records, result, None, kept, left_out, note)
        return ProposalReport(part.component, part.records, result, text, kept, left_out)

    def _store(self, proposal: _Proposal) -> None:
        for part in proposal.parts:
            report = part.report
            assert report is not None
            if report.text is not None:
                proposal.answers[part.component] = report.text
            else:
                logger.debug("No new instruction for %s: %s", part.component, report.error)
            self.hooks.on_report(report)
        self._answered.append(proposal)


class _BuiltinCombeeProposer(CombeeProposer, InstructionProposer):
    """The same, recognised by DSPy's adapter as one of its own, so that records keep their values."""


@dataclass(slots=True)
class _Part:
    """One component of one proposal on its way."""

    component: str
    candidate: Mapping[str, str]
    records: tuple[ReflectiveRecord, ...]
    known: tuple[Lesson, ...]
    job: AggregationJob
    is_plain: bool
    report: ProposalReport | None = None


class _Proposal:
    """One call of the proposer, known by what it was asked and by the very records it was asked about.

    It keeps the records alive, so that no later one can be taken for them. GEPA shows its callbacks copies of the
    records that share their values.
    """

    def __init__(
        self,
        candidate: Mapping[str, str],
        dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components: Sequence[str],
    ) -> None:
        self.candidate = candidate
        self.dataset = dataset
        self.components = tuple(components)
        self.parts: list[_Part] = []
        self.answers: dict[str, str] = {}
        self.digest = _digest(candidate, dataset, self.components)
        # The same texts from other rollouts are another question: the model may have another answer this time.
        self.key = (self.digest, tuple(id(value) for value in _values(dataset)))


def _without_salvage(aggregation: Aggregation) -> Aggregation:
    return aggregation.inner if isinstance(aggregation, Salvage) else aggregation


def _values(dataset: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Any]:
    return (value for name in sorted(dataset) for record in dataset[name] for value in record.values())


def _digest(
    candidate: Mapping[str, str], dataset: Mapping[str, Sequence[Mapping[str, Any]]], components: tuple[str, ...]
) -> str:
    """Return a text that is equal for equal questions: the texts, not the objects, decide."""
    parts = [repr(sorted(candidate.items())), repr(components)]
    parts.extend(render_record(name, record) for name in sorted(dataset) for record in dataset[name])
    return hashlib.sha256("\x1f".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _join(updates: Sequence[Update]) -> Update:
    return cast("Update", join_lessons(cast("Any", updates)))
