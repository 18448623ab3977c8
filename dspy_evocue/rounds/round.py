"""One round of EvoCUE: record, judge, propose, try, fit, compile, confirm, inherit or not."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dspy_evocue.acceptance import for_run
from dspy_evocue.artifact import Evolved, attach
from dspy_evocue.episodes import Recording, RunPlan, plan_runs, program_key
from dspy_evocue.instrument import editable_predictors, state_of
from dspy_evocue.knowledge import untested_evidence
from dspy_evocue.memory import MemoryRecord, TrialMemory
from dspy_evocue.proposal_checks import ProposedEdit, SiteUse
from dspy_evocue.proposer import ProposalRequest, Proposals
from dspy_evocue.public_episodes import PublicEpisode
from dspy_evocue.report.result import CandidateOutcome, ConfirmationOutcome, Round
from dspy_evocue.residual_goals import ResidualGoals
from dspy_evocue.rounds.base_runs import BaseRuns
from dspy_evocue.rounds.candidate_trials import Candidate, CandidateTrials, TriedCandidate
from dspy_evocue.rounds.compile_edits import CompiledEdits, compile_edits
from dspy_evocue.rounds.confirmation import Confirmation
from dspy_evocue.rounds.paid_steps import PaidSteps
from dspy_evocue.rounds.proposed_edits import edit_of, edit_problems, fit_together, operations_text, skill_problems
from dspy_evocue.rounds.public_view import public_episode
from dspy_evocue.rounds.reflection import Reflection
from dspy_evocue.rounds.scoring import CountedMetric
from dspy_evocue.rounds.settings import LearnerSettings
from dspy_evocue.rounds.tasks import Task, TaskPools, draw_confirmation, draw_learning
from dspy_evocue.site_map import list_sites


@dataclass(frozen=True, slots=True)
class RoundParts:
    """What all rounds of a run share."""

    settings: LearnerSettings
    metric: CountedMetric
    pools: TaskPools
    base_runs: BaseRuns
    reflection: Reflection
    memory: TrialMemory
    paid: PaidSteps


@dataclass(slots=True)
class RoundRun:
    """A round while it runs; `record` says how far it has come, whatever ends it."""

    parts: RoundParts
    program: Any
    """The parent."""
    number: int
    tried_before: Sequence[ProposedEdit]
    """Proposals of earlier rounds."""
    hypotheses: Sequence[str]
    """What earlier proposals expected and no trial has settled."""
    record: Round = field(init=False)
    proposed: tuple[ProposedEdit, ...] = ()
    """This round's sound proposals."""
    is_perfect: bool = False
    """Whether the parent solved every task that was recorded."""

    def __post_init__(self) -> None:
        self.record = Round(self.number, program_key(self.program), {})

    def run(self) -> Any:
        """Run the round; return the program that the next one starts from."""
        tasks, recordings = self._record()
        if self.is_perfect:
            self._note("Every recorded task is solved: nothing was proposed.")
            return self.program
        candidates = self._propose(tasks, recordings)
        tried = self._try(candidates, tasks, recordings)
        return self._confirm(compile_edits(tried, fits=functools.partial(fit_together, self.program)))

    def _record(self) -> tuple[tuple[Task, ...], list[Recording]]:
        settings = self.parts.settings
        tasks = draw_learning(self.parts.pools, round_number=self.number, count=settings.proposal_tasks)
        recordings = self.parts.base_runs.record(self._plan, tasks, self.parts.paid, name=self._name)
        scores = {task.task_id: run.episode.score for task, run in zip(tasks, recordings, strict=True)}
        sites = used_sites(self.program, recordings)
        self.record = replace(self.record, base_scores=scores, sites=sites)
        unreached = sorted(set(editable_predictors(self.program)) - {use.target for use in sites})
        if unreached:
            names = ", ".join(unreached)
            self._note(f"Never entered in {len(recordings)} recorded runs: {names}. Nothing is proposed for them.")
        self.is_perfect = all(score is not None and score >= settings.perfect_score for score in scores.values())
        return tasks, recordings

    def _propose(self, tasks: Sequence[Task], recordings: Sequence[Recording]) -> list[Candidate]:
        usable = [(task, run) for task, run in zip(tasks, recordings, strict=True) if not run.episode.missing]
        episodes = [public_episode(task, run) for task, run in usable]
        perfect = self.parts.settings.perfect_score
        failed = [one for one in episodes if one.final_score is None or one.final_score < perfect]
        reflection = self.parts.reflection
        goals = reflection.goals(failed, self.record.parent_version, name=self._name)
        self.record = replace(self.record, diagnoses={name: str(found) for name, found in goals.items()})
        cards = reflection.cards(episodes, name=self._name)
        untested = untested_evidence(ideas=self.parts.settings.knowledge, cards=cards, hypotheses=list(self.hypotheses))
        edges = used_edges(recordings)
        proposals = reflection.proposals(self._request(episodes, edges, goals, untested), name=self._name)
        self._take_down(proposals)
        return [Candidate(proposed, edit_of(proposed, self.program)) for proposed in self.proposed]

    def _request(
        self,
        episodes: Sequence[PublicEpisode],
        edges: tuple[SiteUse, ...],
        goals: dict[str, ResidualGoals],
        untested: str,
    ) -> ProposalRequest:
        return ProposalRequest(
            episodes=tuple(episodes),
            sites=self.record.sites,
            goals=goals,
            earlier=self._earlier(),
            tried=frozenset(edit.key for edit in self.tried_before),
            untested=untested,
            operations=self._operations(edges) if self.parts.settings.skills else "",
            edges=edges,
            skill_problems=functools.partial(skill_problems, program=self.program),
            max_candidates=self.parts.settings.candidates_per_round,
        )

    def _operations(self, edges: Sequence[SiteUse]) -> str:
        """Return what the proposer is told about skills; on an explicit controller, also how its edges were used."""
        used = "\n".join(f"- {use}" for use in edges)
        return operations_text(self.program) + (f"\nHow often the edges were taken:\n{used}" if edges else "")

    def _earlier(self) -> str:
        """Return the memory's index, after what the program carries by now."""
        index = self.parts.memory.index()
        if state_of(self.program) is None or not Evolved(self.program).edits:
            return index
        return (
            "The program carries these edits; a new one at the same entry replaces them, so repeat in it what is to "
            f"stay:\n{Evolved(self.program).explain()}\n\n{index}"
        )

    def _take_down(self, proposals: Proposals) -> None:
        # A proposer of the user's own need not have checked anything.
        problems = [edit_problems(proposed, self.program) for proposed in proposals.candidates]
        self.proposed = tuple(edit for edit, wrong in zip(proposals.candidates, problems, strict=True) if not wrong)
        refused = tuple((one.edit.text, " ".join(one.problems)) for one in proposals.rejected)
        refused += tuple(
            (edit.text, " ".join(wrong)) for edit, wrong in zip(proposals.candidates, problems, strict=True) if wrong
        )
        self.record = replace(self.record, refused=refused)
        if proposals.failure:
            self._note(f"Nothing was proposed: {proposals.failure}.")
        elif not self.proposed:
            self._note("Nothing was proposed that could be tried.")
        for proposed in self.proposed:
            edit = edit_of(proposed, self.program)
            self.parts.memory.remember(
                MemoryRecord(
                    key=f"{self._name}/candidate/{edit.edit_id}",
                    kind="candidate",
                    edit_id=edit.edit_id,
                    parent_version=self.record.parent_version,
                    content={
                        "round": self.number,
                        "text": proposed.text,
                        "at": [str(site) for site in proposed.at],
                        "scope": proposed.scope,
                        "expected_effect": proposed.expected_effect,
                        "cited_tasks": list(proposed.cited_tasks),
                        "edit": edit.to_dict(),
                    },
                )
            )

    def _try(
        self, candidates: Sequence[Candidate], tasks: Sequence[Task], recordings: Sequence[Recording]
    ) -> list[TriedCandidate]:
        stage = CandidateTrials(
            settings=self.parts.settings,
            plan=self._plan,
            tasks=tasks,
            recordings=recordings,
            memory=self.parts.memory,
            paid=self.parts.paid,
            version=self.record.parent_version,
            name=self._name,
            number=self.number,
        )
        tried = stage.try_all(candidates)
        self._set_outcomes(tried)
        not_restored = sum(trial.missing == "control_check" for one in tried for trial in one.trials)
        if not_restored:
            self._note(
                f"{not_restored} trials say nothing, because the tools have a state that was not restored; give "
                "environment= (deepcopy_environment, reexecuting_environment, or one of your own)."
            )
        return tried

    def _confirm(self, compiled: CompiledEdits) -> Any:
        settings = self.parts.settings
        if not compiled.members:
            return self.program
        ids = tuple(one.candidate.edit.edit_id for one in compiled.members)
        places = draw_confirmation(self.parts.pools, round_number=self.number, pairs=settings.confirmation_pairs)
        confirmed = Confirmation(
            plan=self._plan,
            edits=compiled.edits,
            edit_ids=ids,
            criterion=for_run(settings.criterion, settings.max_rounds),
            largest_gain=settings.largest_gain,
            places=places,
            memory=self.parts.memory,
            paid=self.parts.paid,
            version=self.record.parent_version,
            name=self._name,
            number=self.number,
        ).run()
        outcome = ConfirmationOutcome(confirmed.pairs, confirmed.planned, confirmed.decision, ids)
        self.record = replace(self.record, confirmation=outcome)
        accepted = confirmed.decision.accepted
        fates = dict.fromkeys(ids, "inherited" if accepted else "not confirmed")
        fates.update({one.candidate.edit.edit_id: "replaced" for one in compiled.replaced})
        self._set_fates(fates)
        return attach(self.program, *compiled.edits, features=settings.features) if accepted else self.program

    def _set_outcomes(self, tried: Sequence[TriedCandidate]) -> None:
        outcomes = tuple(
            CandidateOutcome(
                edit_id=one.candidate.edit.edit_id,
                edit=one.edit,
                expected_effect=one.candidate.proposed.expected_effect,
                cited_tasks=one.candidate.proposed.cited_tasks,
                trials=one.trials,
                planned_trials=one.planned,
                fitted=one.fitted,
                passed=one.passes,
                reason=one.reason,
                fate="undecided" if one.passes else "rejected",
            )
            for one in tried
        )
        self.record = replace(self.record, candidates=outcomes)

    def _set_fates(self, fates: dict[str, str]) -> None:
        candidates = tuple(replace(one, fate=fates.get(one.edit_id, one.fate)) for one in self.record.candidates)
        self.record = replace(self.record, candidates=candidates)

    def _note(self, note: str) -> None:
        self.record = replace(self.record, notes=(*self.record.notes, note))

    @property
    def _name(self) -> str:
        return f"round {self.number}"

    @property
    def _plan(self) -> RunPlan:
        settings = self.parts.settings
        return plan_runs(
            self.program,
            self.parts.metric,
            environment=settings.environment,
            features=settings.features,
            failure_score=settings.failure_score,
        )


def used_edges(recordings: Sequence[Recording]) -> tuple[SiteUse, ...]:
    """Return the edges of an explicit controller that the recorded runs took, the most used first; none of others."""
    taken = [
        [(event.source, event.node) for event in recording.tape.events if event.kind == "edge"]
        for recording in recordings
    ]
    entries = Counter(pair for pairs in taken for pair in pairs)
    episodes = Counter(pair for pairs in taken for pair in set(pairs))
    return tuple(SiteUse(*pair, count, episodes[pair]) for pair, count in entries.most_common())


def used_sites(program: Any, recordings: Sequence[Recording]) -> tuple[SiteUse, ...]:
    """Return the entries on which an edit can act and that the recorded runs used, the most used first."""
    found = list_sites(program, recordings=recordings)
    attachable = {node.name for node in found.nodes if node.attachable}
    return tuple(
        SiteUse(edge.source, edge.target, edge.count, edge.runs) for edge in found.edges if edge.target in attachable
    )
