"""Combee as GEPA's instruction proposer: the one open seam of `dspy.GEPA`.

One call of the proposer turns the reflective records of an iteration into new instructions. Importing this file
imports gepa; `dspy_combee` does so only when it is used.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from dspy.teleprompt.gepa.instruction_proposal import InstructionProposer

from dspy_combee.aggregation.base import Aggregated, Aggregation, AggregationJob
from dspy_combee.aggregation.scan import Scan
from dspy_combee.learners.base import Curate, Update
from dspy_combee.learners.gepa_curate import LessonCurate, Proposer, RewriteCurate, join_lessons
from dspy_combee.learners.gepa_records import (
    SMALL_BATCH,
    ReflectiveRecord,
    as_reflections,
    counting,
    identify,
    without_perfect,
)
from dspy_combee.lessons import Lesson, attach_lessons, fit_lessons, merge_in_code, split_instruction
from dspy_combee.runtime.execution.base import Executor
from dspy_combee.runtime.execution.threads import ThreadExecutor, default_num_workers
from dspy_combee.seeding import branch_rng
from dspy_combee.tool_blocks import keep_tool_block

logger = logging.getLogger(__name__)

Form = Literal["lessons", "rewrite"]
DEFAULT_INSTRUCTION_CHARS = 40_000


@dataclass(frozen=True, slots=True)
class ProposalReport:
    """What one proposal did to one component, for the run's records."""

    component: str
    records: tuple[ReflectiveRecord, ...]
    """The records that were read."""
    aggregated: Aggregated | None
    """None when the wrapped proposer was simply called (one group, nothing learned before)."""
    text: str | None
    """The new instruction; None when nothing usable came back."""
    lessons: tuple[Lesson, ...] = ()
    """The lessons that stand in the new instruction, with all record ids known for them."""
    left_out: tuple[Lesson, ...] = ()
    """Lessons that had to go because of `max_instruction_chars`."""
    error: str = ""
    """Why there is no text."""


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


class CombeeProposer:
    """Propose instructions by parallel scan over many reflective records.

    Use it in a `dspy.GEPA` call of your own, `dspy.GEPA(..., instruction_proposer=CombeeProposer())`, or let
    `Combee(dspy.GEPA(...))` do so, which adds the batch-size controller, crashed examples, provenance and budgets.

    It never raises because a model call failed, since GEPA would pay for the whole iteration again: a component for
    which nothing usable came back is left out, and GEPA keeps its parent. Finished calls are remembered: asked the
    same again, it answers without a call.
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
        self.hooks = hooks or ProposerHooks()
        self._numbers = counting()
        self._provenance: dict[str, dict[str, tuple[str, ...]]] = {}
        self._answers: OrderedDict[str, dict[str, str]] = OrderedDict()

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
        if wanted.key not in self._answers:
            pending = [_Proposal(*proposal) for proposal in self.hooks.pending()]
            self._work([wanted, *(p for p in pending if p.key != wanted.key and p.key not in self._answers)])
        return dict(self._answers[wanted.key])

    def lessons_of(self, component: str, instruction: str) -> tuple[Lesson, ...]:
        """Return the lessons that stand in an instruction, with the records known for them."""
        known = self._provenance.get(component, {})
        _, lessons = split_instruction(instruction)
        return tuple(Lesson(one.text, known.get(one.text, ()), one.heading) for one in lessons)

    def remember_provenance(self, component: str, lessons: Sequence[Lesson]) -> None:
        """Take over which records taught which lesson, from an earlier part of the run."""
        known = self._provenance.setdefault(component, {})
        known.update((lesson.text, lesson.record_ids) for lesson in lessons)

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
        path = hashlib.sha256("".join(proposal.key for proposal in proposals).encode()).hexdigest()
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
        current = proposal.candidate[component]
        known = self.lessons_of(component, current)
        reflections = as_reflections(read, component)
        curate = self._curate(proposal.candidate, component, known)
        job = AggregationJob(component, reflections, curate, join=_join if self.form == "lessons" else None)
        is_one_call = self.aggregation.calls_for(len(read)) == 1
        is_plain = not known and is_one_call and (self.form == "rewrite" or len(read) <= SMALL_BATCH)
        return _Part(component, proposal.candidate, tuple(read), known, job, is_plain)

    def _curate(self, candidate: Mapping[str, str], component: str, known: tuple[Lesson, ...]) -> Curate:
        if self.form == "lessons":
            own, _ = split_instruction(candidate[component])
            return LessonCurate(own, known)
        return RewriteCurate(component, candidate, self.proposer, self.max_instruction_chars)

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
        from dspy_combee.aggregation.single_pass import SinglePass

        results = SinglePass().aggregate(jobs, executor=executor, rng=branch_rng(self.seed, "plain"))
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
        return ProposalReport(part.component, part.records, result, text)

    def _with_lessons(self, part: _Part, result: Aggregated) -> ProposalReport:
        current = part.candidate[part.component]
        own, _ = split_instruction(current)
        entries = cast("Sequence[Lesson]", result.update.entries) if result.update else ()
        lessons = merge_in_code([*part.known, *entries])
        kept, left_out = fit_lessons(lessons, self.max_instruction_chars - len(own) - 2)
        text = attach_lessons(own, kept)
        self.remember_provenance(part.component, kept)
        if text == current:
            note = "the batch taught nothing that the instruction does not say"
            return ProposalReport(part.component, part.records, result, None, kept, left_out, note)
        return ProposalReport(part.component, part.records, result, text, kept, left_out)

    def _store(self, proposal: _Proposal) -> None:
        answers: dict[str, str] = {}
        for part in proposal.parts:
            report = part.report
            assert report is not None
            if report.text is not None:
                answers[part.component] = report.text
            else:
                logger.debug("No new instruction for %s: %s", part.component, report.error)
            self.hooks.on_report(report)
        self._answers[proposal.key] = answers
        while len(self._answers) > 64:
            self._answers.popitem(last=False)


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
    """One call of the proposer, known by what it was asked."""

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
        self.key = _digest(candidate, dataset, self.components)


def _digest(
    candidate: Mapping[str, str], dataset: Mapping[str, Sequence[Mapping[str, Any]]], components: tuple[str, ...]
) -> str:
    """Return a text that is equal for equal questions: the texts, not the objects, decide."""
    from dspy_combee.records import render_record

    parts = [repr(sorted(candidate.items())), repr(components)]
    parts.extend(render_record(name, record) for name in sorted(dataset) for record in dataset[name])
    return hashlib.sha256("\x1f".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _join(updates: Sequence[Update]) -> Update:
    return join_lessons(cast("Any", updates))
