"""What is made of a GEPA run once it has ended, however it ended: its best program, and where that came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dspy

from dspy_combee.instructions import instructions_of, with_instructions
from dspy_combee.learners.gepa_evidence import EvidenceLog
from dspy_combee.learners.gepa_proposer import CombeeProposer
from dspy_combee.provenance import Provenance, SourcedLine


def best_candidate(state: Any, student: dspy.Module, *, with_results: bool, seed: int | None) -> dspy.Module:
    """Return the best program in GEPA's state, the first of those with the highest validation score.

    Args:
        state: GEPA's state; not modified.
        student: The program that was compiled; not modified.
        with_results: Whether the program gets the `detailed_results` that `dspy.GEPA` would have given it.
        seed: The optimizer's seed, which stands in those.
    """
    scores = list(state.program_full_scores_val_set)
    best = max(range(len(scores)), key=scores.__getitem__)
    program = with_instructions(student, state.program_candidates[best])
    if with_results:
        from dspy.teleprompt.gepa import gepa as dspy_gepa
        from gepa.core.result import GEPAResult

        results: Any = dspy_gepa.DspyGEPAResult
        result = GEPAResult.from_state(state, run_dir=None, seed=seed)
        vars(program)["detailed_results"] = results.from_gepa_result(result, _ProgramBuilder(student))
    return program


def provenance_of(program: dspy.Module, proposer: CombeeProposer, evidence: EvidenceLog) -> Provenance:
    """Return where the learned lines of a program came from."""
    lines = tuple(
        SourcedLine(name, lesson.text, lesson.record_ids)
        for name, instruction in instructions_of(program).items()
        for lesson in proposer.lessons_of(name, instruction)
    )
    return Provenance(lines, dict(evidence.read))


@dataclass(frozen=True, slots=True)
class _ProgramBuilder:
    """The one thing of GEPA's adapter that detailed results need."""

    student: dspy.Module

    def build_program(self, candidate: Mapping[str, str]) -> dspy.Module:
        return with_instructions(self.student, candidate)
