"""EvoCUE: learn at which call site of a DSPy program a lesson acts, with evidence that it helped there."""

from dspy_evocue.artifact import attach, load
from dspy_evocue.call_sites import CallSite
from dspy_evocue.edits import InstructionEdit
from dspy_evocue.environments import (
    Environment,
    current_world,
    deepcopy_environment,
    reexecuting_environment,
)
from dspy_evocue.observer import mark_node
from dspy_evocue.rules import FeatureTest, Rule
from dspy_evocue.site_map import list_sites
from dspy_evocue.trial_record import TrialRecord
from dspy_evocue.trial_runs import TrialRequest, record_runs, run_trials
from dspy_evocue.trials import paired_trial

__all__ = [
    "CallSite",
    "Environment",
    "FeatureTest",
    "InstructionEdit",
    "Rule",
    "TrialRecord",
    "TrialRequest",
    "attach",
    "current_world",
    "deepcopy_environment",
    "list_sites",
    "load",
    "mark_node",
    "paired_trial",
    "record_runs",
    "reexecuting_environment",
    "run_trials",
]
