"""EvoCUE: learn at which call site of a DSPy program a lesson acts, with evidence that it helped there.

Everything that users import is here; it is loaded when it is first used, so that importing the package stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspy_combee.runtime.budget import Budget, Price, Spend
    from dspy_evocue.acceptance import Anytime, MeanGain, Robust, decide
    from dspy_evocue.artifact import attach, load
    from dspy_evocue.call_sites import CallSite
    from dspy_evocue.comparison import Comparison
    from dspy_evocue.control.check import check_skill
    from dspy_evocue.control.graph_skill_edit import GraphSkillEdit
    from dspy_evocue.control.program import ControlProgram
    from dspy_evocue.control.skill_edit import SkillEdit
    from dspy_evocue.control.skills import SkillOperation
    from dspy_evocue.edits import InstructionEdit
    from dspy_evocue.environments import (
        Environment,
        current_world,
        deepcopy_environment,
        reexecuting_environment,
    )
    from dspy_evocue.errors import StoppedByMetricError
    from dspy_evocue.evocue import EvoCUE
    from dspy_evocue.features import RunState
    from dspy_evocue.frozen_evaluation import compare
    from dspy_evocue.knowledge import KnowledgeCard
    from dspy_evocue.memory import TrialMemory
    from dspy_evocue.observer import mark_node
    from dspy_evocue.proposer import LMProposer, ProposalRequest, Proposals, Proposer
    from dspy_evocue.report.result import EvoCUEResult
    from dspy_evocue.rules import FeatureTest, FittedRule, Rule, fit_rule
    from dspy_evocue.site_map import list_sites
    from dspy_evocue.trial_record import TrialRecord
    from dspy_evocue.trial_runs import TrialRequest, TrialsInterrupted, record_runs, run_trials
    from dspy_evocue.trials import paired_trial

_HOME = {
    "Anytime": "dspy_evocue.acceptance",
    "Budget": "dspy_combee.runtime.budget",
    "CallSite": "dspy_evocue.call_sites",
    "Comparison": "dspy_evocue.comparison",
    "ControlProgram": "dspy_evocue.control.program",
    "Environment": "dspy_evocue.environments",
    "EvoCUE": "dspy_evocue.evocue",
    "EvoCUEResult": "dspy_evocue.report.result",
    "FeatureTest": "dspy_evocue.rules",
    "FittedRule": "dspy_evocue.rules",
    "GraphSkillEdit": "dspy_evocue.control.graph_skill_edit",
    "InstructionEdit": "dspy_evocue.edits",
    "KnowledgeCard": "dspy_evocue.knowledge",
    "LMProposer": "dspy_evocue.proposer",
    "MeanGain": "dspy_evocue.acceptance",
    "Price": "dspy_combee.runtime.budget",
    "ProposalRequest": "dspy_evocue.proposer",
    "Proposals": "dspy_evocue.proposer",
    "Proposer": "dspy_evocue.proposer",
    "Robust": "dspy_evocue.acceptance",
    "Rule": "dspy_evocue.rules",
    "RunState": "dspy_evocue.features",
    "StoppedByMetricError": "dspy_evocue.errors",
    "TrialsInterrupted": "dspy_evocue.trial_runs",
    "SkillEdit": "dspy_evocue.control.skill_edit",
    "SkillOperation": "dspy_evocue.control.skills",
    "Spend": "dspy_combee.runtime.budget",
    "TrialMemory": "dspy_evocue.memory",
    "TrialRecord": "dspy_evocue.trial_record",
    "TrialRequest": "dspy_evocue.trial_runs",
    "attach": "dspy_evocue.artifact",
    "check_skill": "dspy_evocue.control.check",
    "compare": "dspy_evocue.frozen_evaluation",
    "current_world": "dspy_evocue.environments",
    "decide": "dspy_evocue.acceptance",
    "deepcopy_environment": "dspy_evocue.environments",
    "fit_rule": "dspy_evocue.rules",
    "list_sites": "dspy_evocue.site_map",
    "load": "dspy_evocue.artifact",
    "mark_node": "dspy_evocue.observer",
    "paired_trial": "dspy_evocue.trials",
    "record_runs": "dspy_evocue.trial_runs",
    "reexecuting_environment": "dspy_evocue.environments",
    "run_trials": "dspy_evocue.trial_runs",
}

__all__ = [
    "Anytime",
    "Budget",
    "CallSite",
    "Comparison",
    "ControlProgram",
    "Environment",
    "EvoCUE",
    "EvoCUEResult",
    "FeatureTest",
    "FittedRule",
    "GraphSkillEdit",
    "InstructionEdit",
    "KnowledgeCard",
    "LMProposer",
    "MeanGain",
    "Price",
    "ProposalRequest",
    "Proposals",
    "Proposer",
    "Robust",
    "Rule",
    "RunState",
    "StoppedByMetricError",
    "TrialsInterrupted",
    "SkillEdit",
    "SkillOperation",
    "Spend",
    "TrialMemory",
    "TrialRecord",
    "TrialRequest",
    "attach",
    "check_skill",
    "compare",
    "current_world",
    "decide",
    "deepcopy_environment",
    "fit_rule",
    "list_sites",
    "load",
    "mark_node",
    "paired_trial",
    "record_runs",
    "reexecuting_environment",
    "run_trials",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
