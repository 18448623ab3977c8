"""ACE as a prompt learner: generate, reflect on each run, curate the reflections into a playbook, update.

The playbook lives in the predictors' instructions, so the learner itself holds nothing that a run changes. ACE: Agentic
Context Engineering. How a batch of reflections meets in one or many curate calls is not decided here.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import dspy

from dspy_combee.clusters import Embedder
from dspy_combee.learners.ace_curate import PlaybookCurate, ask, votes_in
from dspy_combee.learners.ace_signatures import KeyInsights, Reflect, ReflectWithoutLabels
from dspy_combee.learners.base import Reflection, Trajectory, Update
from dspy_combee.learners.playbook_update import PlaybookUpdate, join_updates
from dspy_combee.learners.run_program import run_program
from dspy_combee.metrics import MetricCall
from dspy_combee.playbook import Playbook, approximate_tokens, playbook_of, set_playbook
from dspy_combee.playbook.limit import CountTokens
from dspy_combee.playbook.text import split_instructions
from dspy_combee.program_state import state_of, with_state
from dspy_combee.provenance import SourcedLine
from dspy_combee.trajectory_text import (
    components_that_ran,
    names_of_components,
    render_case,
    render_judgement,
    render_run,
)
from dspy_combee.truncation import cut_middle

logger = logging.getLogger(__name__)

MAX_JUDGEMENT_CHARS = 1_000
"""The most of each part of a judgement (feedback, each expected field) that stands behind a reflection."""

Scope = Literal["predictor", "program"]


@dataclass(frozen=True, slots=True)
class ACESettings:
    """How ACE learns; see `dspy_combee.ACE` for what each setting means."""

    reflection_lm: Any = None
    reflection_rounds: int = 1
    max_playbook_tokens: int = 8_000
    count_tokens: CountTokens = approximate_tokens
    embed: Embedder | None = None
    scope: Scope = "predictor"
    use_labels: bool = True
    frozen: tuple[str, ...] = field(default=())
    max_reflection_chars: int = 20_000


class ACELearner:
    """The four steps of ACE (a `PromptLearner`). Safe to use from several threads."""

    def __init__(self, metric: MetricCall | None, settings: ACESettings) -> None:
        """Store the metric (None only without labels) and the settings."""
        self._metric = metric
        self._settings = settings

    def generate(self, program: Any, example: Any, record_id: str) -> Trajectory:
        """Run the program on one example and score it.

        Raises:
            LMUnavailableError: The model failed: there is nothing to learn from, and no score.
            MetricError: The metric raised, or returned something that is no score.
        """
        return run_program(self._metric, program, example, record_id)

    def reflect(self, program: Any, trajectory: Trajectory) -> Sequence[Reflection]:
        """Say what one run teaches: one reflection a predictor that an insight or a vote is about.

        Raises:
            ReflectionError: The reply was cut off, or cannot be parsed.
        """
        books = self.playbooks(program)
        if not books:
            return ()
        names = names_of_components(program)
        ran = [name for name in components_that_ran(trajectory, names) if name in books]
        # The predictor whose call failed is not in the trace.
        known = ran if trajectory.error is None else []
        concerned = [""] if self._settings.scope == "program" else (known or list(books))
        with self._reflection_model():
            reply = self._ask_reflector(program, trajectory, concerned, books, names)
        return reflections_from(reply, trajectory, concerned, use_labels=self._settings.use_labels)

    def curate(self, program: Any, reflections: Sequence[Reflection]) -> PlaybookUpdate:
        """Distil reflections on one predictor, or updates of its playbook, into one update: one call.

        Raises:
            ReflectionError: The reply was cut off, or none of it makes sense.
        """
        component = reflections[0].component
        book = self.playbooks(program)[component]
        with self._reflection_model():
            return PlaybookCurate(component, self._task(program, component), book)(reflections)

    def join(self, updates: Sequence[Update]) -> PlaybookUpdate:
        """Join updates in code, for when the call that should merge them failed; nothing is lost."""
        return join_updates(update for update in updates if isinstance(update, PlaybookUpdate))

    def condense(self, reflections: Sequence[Reflection], summary: str) -> Reflection:
        """Return one reflection for several, with the summary as its text; every vote stays with its run."""
        votes = [
            [entry_id, tag, record_id]
            for reflection in reflections
            for entry_id, tag, record_id in votes_in(reflection)
        ]
        ids = tuple(dict.fromkeys(record_id for reflection in reflections for record_id in reflection.record_ids))
        return Reflection(summary, ids, reflections[0].component, details={"votes": votes})

    def update(self, program: Any, update: Update) -> Any:
        """Return a copy of the program whose playbook has the update applied, deduplicated and within its limit."""
        if not isinstance(update, PlaybookUpdate):
            raise TypeError(f"update must be a PlaybookUpdate, got {type(update).__name__}")
        settings = self._settings
        changed = program.deepcopy()
        book = self.playbooks(changed)[update.component]
        book = book.apply([*update.operations, *update.votes]).deduplicated(embed=settings.embed)
        limited = book.limited(settings.max_playbook_tokens, count_tokens=settings.count_tokens)
        if limited.dropped:
            # An empty playbook is no choice of lessons: the limit is too small for any.
            logger.log(
                logging.INFO if limited.kept else logging.WARNING,
                "The playbook of %s would exceed max_playbook_tokens=%d: %d entries were dropped, %s; %d are left",
                update.component or "the program",
                settings.max_playbook_tokens,
                len(limited.dropped),
                ", ".join(f"{entry.id} ({entry.text:.40})" for entry in limited.dropped),
                len(limited.kept),
            )
        self.write(changed, {update.component: book.keeping(limited.kept)})
        return changed

    def playbooks(self, program: Any) -> dict[str, Playbook]:
        """Return the playbook of each predictor that may learn, by name; of the program as a whole under ""."""
        learning = self.learning_predictors(program)
        if self._settings.scope == "program":
            return {"": playbook_of(next(iter(learning.values())))} if learning else {}
        return {name: playbook_of(predictor) for name, predictor in learning.items()}

    def write(self, program: Any, books: Mapping[str, Playbook]) -> None:
        """Write playbooks, by predictor name, into the program that is given."""
        learning = self.learning_predictors(program)
        for component, book in books.items():
            targets = list(learning.values()) if self._settings.scope == "program" else [learning[component]]
            for predictor in targets:
                set_playbook(predictor, book)

    def with_playbooks(self, program: Any, books: Playbook | Mapping[str, Playbook] | None) -> Any:
        """Return a copy of the program that starts from these playbooks: one for all, or by predictor name.

        Raises:
            ValueError: A name is not that of a predictor that learns.
        """
        started = program.deepcopy()
        known = self.playbooks(started)
        if isinstance(books, Playbook):
            books = dict.fromkeys(known, books)
        unknown = sorted(set(books or {}) - set(known))
        if unknown:
            raise ValueError(f"playbook must be by predictor name, one of {sorted(known)}, got {unknown}")
        self.write(started, books or {})
        return started

    def learning_predictors(self, program: Any) -> dict[str, Any]:
        """Return the predictors that are not frozen, by name."""
        return {name: p for name, p in program.named_predictors() if name not in self._settings.frozen}

    def freezing(self, names: Sequence[str]) -> ACELearner:
        """Return the same learner, which teaches these predictors nothing."""
        frozen = copy.copy(self)
        frozen._settings = replace(self._settings, frozen=tuple(dict.fromkeys((*self._settings.frozen, *names))))
        return frozen

    def learned_lines(self, program: Any) -> tuple[SourcedLine, ...]:
        """Return the entries of all playbooks with the records behind each."""
        return tuple(
            SourcedLine(component, entry.text, entry.record_ids)
            for component, book in self.playbooks(program).items()
            for entry in book.entries
        )

    def dump_program(self, program: Any) -> dict[str, Any]:
        """Return what a checkpoint keeps of a program, as JSON data: its state, and the playbooks with provenance."""
        return {
            "state": state_of(program),
            "playbooks": {name: book.to_dict() for name, book in self.playbooks(program).items()},
        }

    def load_program(self, program: Any, state: Mapping[str, Any]) -> Any:
        """Return a copy of the program in the state of a checkpoint."""
        restored = with_state(program, state["state"])
        self.write(restored, {name: Playbook.from_dict(book) for name, book in state["playbooks"].items()})
        return restored

    def going_back(self, kept: Any, discarded: Any) -> Any:
        """Return a copy of the kept program whose playbooks give no number that those of the discarded one gave."""
        program, later = kept.deepcopy(), self.playbooks(discarded)
        books = self.playbooks(program)
        self.write(program, {name: book.numbering_after(later[name]) for name, book in books.items()})
        return program

    def describe_program(self, program: Any) -> str:
        """Return the size of the playbooks in a few words, for the log line of a round."""
        count = self._settings.count_tokens
        sizes = [(len(book), count(book.render()) if book.entries else 0) for book in self.playbooks(program).values()]
        return f"playbook {sum(entries for entries, _ in sizes)} entries, {sum(tokens for _, tokens in sizes)} tokens"

    def _task(self, program: Any, component: str) -> str:
        learning = self.learning_predictors(program)
        names = list(learning) if self._settings.scope == "program" else [component]
        texts = [split_instructions(learning[name].signature.instructions).own_text for name in names]
        if len(names) == 1:
            return texts[0]
        return "\n\n".join(f"# {name}\n{text}" for name, text in zip(names, texts, strict=True))

    def _ask_reflector(
        self,
        program: Any,
        trajectory: Trajectory,
        concerned: Sequence[str],
        books: Mapping[str, Playbook],
        names: Mapping[object, str],
    ) -> Any:
        signature, inputs = self._reflector(program, trajectory, concerned, names)
        inputs["playbook"] = _shown_playbooks(books, concerned)
        reply = ask(signature, **inputs)
        for _ in range(self._settings.reflection_rounds - 1):
            sharper = signature.insert(
                -1, "earlier_reflection", dspy.InputField(desc="your earlier reflection: make it more specific"), str
            )
            reply = ask(sharper, **inputs, earlier_reflection=reflection_text(reply))
        return reply

    def _reflector(
        self, program: Any, trajectory: Trajectory, concerned: Sequence[str], names: Mapping[object, str]
    ) -> tuple[Any, dict[str, Any]]:
        """Return the signature to ask and its inputs, but for the playbook."""
        tasks = [self._task(program, name) for name in concerned]
        inputs: dict[str, Any] = {
            "task": tasks[0]
            if len(tasks) == 1
            else "\n\n".join(f"# {n}\n{t}" for n, t in zip(concerned, tasks, strict=True)),
            "run": render_run(trajectory, names, max_chars=self._settings.max_reflection_chars),
        }
        signature: Any = ReflectWithoutLabels
        if self._settings.use_labels:
            signature, inputs["judgement"] = Reflect, render_judgement(trajectory)
        if len(concerned) > 1:
            description = f"one specific lesson a component that it concerns; components: {', '.join(concerned)}"
            signature = signature.delete("key_insight").insert(
                -2, "key_insights", dspy.OutputField(desc=description), KeyInsights
            )
        return signature, inputs

    def _reflection_model(self) -> AbstractContextManager[Any]:
        """Return the context of the reflection model; a repeat that the caller wants sampled anew stays one."""
        lm = self._settings.reflection_lm
        if lm is None:
            return nullcontext()
        wanted = getattr(dspy.settings.lm, "kwargs", {}).get("rollout_id")
        if wanted is not None and lm is not dspy.settings.lm:
            lm = lm.copy(rollout_id=wanted, temperature=lm.kwargs.get("temperature") or 0.7)
        return dspy.context(lm=lm)


def reflection_text(reply: Any) -> str:
    """Return everything that a reflector replied, the insight first."""
    insights = [item.insight for item in reply.key_insights.root] if "key_insights" in reply else [reply.key_insight]
    return _whole_reply(reply, "\n".join(str(insight or "") for insight in insights))


def reflections_from(
    reply: Any, trajectory: Trajectory, concerned: Sequence[str], *, use_labels: bool
) -> tuple[Reflection, ...]:
    """Turn a reflector's reply into one reflection a predictor; votes ride along in `details`.

    An insight about a predictor that does not exist goes to the last one that ran: it made the output. With labels the
    curator reads the judgement first and then the insight, without the analysis that led to it: a weak reflector loses
    the specific rule that the feedback states, and a weak curator copies whatever it reads first and most of.
    """
    by_component: dict[str, list[str]] = {name: [] for name in concerned}
    if "key_insights" in reply:
        for item in reply.key_insights.root:
            by_component.get(item.component, by_component[concerned[-1]]).append(item.insight.strip())
    else:
        by_component[concerned[0]].append(str(reply.key_insight or "").strip())
    votes = _votes_by_component(reply.votes.root, concerned)
    judgement = render_judgement(trajectory, max_chars=MAX_JUDGEMENT_CHARS)
    details = {"case": render_case(trajectory, max_chars=MAX_JUDGEMENT_CHARS)}
    if use_labels:
        details["feedback"] = cut_middle(trajectory.feedback, MAX_JUDGEMENT_CHARS)
    return tuple(
        Reflection(
            text=f"{judgement}\nReflection: {insight}".strip() if use_labels else _whole_reply(reply, insight),
            record_ids=(trajectory.record_id,),
            component=name,
            score=trajectory.score if use_labels else None,
            details={"votes": votes[name], **details},
        )
        for name, insights in by_component.items()
        if (insight := "\n".join(filter(None, insights))) or votes[name]
    )


def _whole_reply(reply: Any, insight: str) -> str:
    parts = (
        ("Reflection", insight),
        ("What went wrong", reply.what_went_wrong),
        ("Cause", reply.cause),
        ("Right approach", reply.correct_approach),
    )
    return "\n".join(f"{name}: {str(text).strip()}" for name, text in parts if str(text or "").strip())


def _votes_by_component(votes: Sequence[Any], concerned: Sequence[str]) -> dict[str, list[list[str]]]:
    """Sort votes by predictor; where there are several, an id is shown as `predictor/e1`."""
    sorted_votes: dict[str, list[list[str]]] = {name: [] for name in concerned}
    for vote in votes:
        component, _, entry_id = vote.entry_id.rpartition("/")
        component = concerned[0] if len(concerned) == 1 else component
        if component in sorted_votes:
            sorted_votes[component].append([entry_id, vote.tag])
    return sorted_votes


def _shown_playbooks(books: Mapping[str, Playbook], concerned: Sequence[str]) -> str:
    if len(concerned) == 1:
        book = books[concerned[0]]
        return book.listing() or "(empty)"
    lines = [f"[{name}/{entry.id}] {entry.text}" for name in concerned for entry in books[name].entries]
    return "\n".join(lines) or "(empty)"
