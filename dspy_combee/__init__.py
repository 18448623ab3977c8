"""Combee: learn from hundreds of traces at once, without the lessons turning to mush.

Everything that users import is here; it is loaded when it is first used, so that importing the package stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspy_combee.ace import ACE
    from dspy_combee.aggregation.base import Aggregation
    from dspy_combee.aggregation.hierarchical import Hierarchical
    from dspy_combee.aggregation.salvage import Salvage
    from dspy_combee.aggregation.scan import Scan
    from dspy_combee.aggregation.single_pass import SinglePass
    from dspy_combee.aggregation.summarize import Summarize
    from dspy_combee.aggregation.top_k import TopK
    from dspy_combee.batch_size import BatchSizeController
    from dspy_combee.combee import Combee
    from dspy_combee.learners.base import Entry, PromptLearner, Reflection, TextUpdate, Trajectory, Update
    from dspy_combee.learners.gepa_proposer import CombeeProposer
    from dspy_combee.learners.gepa_state import load_candidates
    from dspy_combee.metrics import five_argument_metric
    from dspy_combee.playbook import Playbook
    from dspy_combee.report.result import CombeeResult
    from dspy_combee.retrieval import with_retrieval
    from dspy_combee.runtime.budget import Budget, Price, Spend
    from dspy_combee.runtime.local_lm import local_lm, resolve_lm
    from dspy_combee.traces import TraceMapping, TraceReader

_HOME = {
    "ACE": "dspy_combee.ace",
    "Aggregation": "dspy_combee.aggregation.base",
    "BatchSizeController": "dspy_combee.batch_size",
    "Budget": "dspy_combee.runtime.budget",
    "Combee": "dspy_combee.combee",
    "CombeeProposer": "dspy_combee.learners.gepa_proposer",
    "CombeeResult": "dspy_combee.report.result",
    "Entry": "dspy_combee.learners.base",
    "Hierarchical": "dspy_combee.aggregation.hierarchical",
    "Playbook": "dspy_combee.playbook",
    "Price": "dspy_combee.runtime.budget",
    "PromptLearner": "dspy_combee.learners.base",
    "Reflection": "dspy_combee.learners.base",
    "Salvage": "dspy_combee.aggregation.salvage",
    "Scan": "dspy_combee.aggregation.scan",
    "SinglePass": "dspy_combee.aggregation.single_pass",
    "Spend": "dspy_combee.runtime.budget",
    "Summarize": "dspy_combee.aggregation.summarize",
    "TextUpdate": "dspy_combee.learners.base",
    "TopK": "dspy_combee.aggregation.top_k",
    "TraceMapping": "dspy_combee.traces",
    "TraceReader": "dspy_combee.traces",
    "Trajectory": "dspy_combee.learners.base",
    "Update": "dspy_combee.learners.base",
    "five_argument_metric": "dspy_combee.metrics",
    "load_candidates": "dspy_combee.learners.gepa_state",
    "local_lm": "dspy_combee.runtime.local_lm",
    "resolve_lm": "dspy_combee.runtime.local_lm",
    "with_retrieval": "dspy_combee.retrieval",
}

__all__ = [
    "ACE",
    "Aggregation",
    "BatchSizeController",
    "Budget",
    "Combee",
    "CombeeProposer",
    "CombeeResult",
    "Entry",
    "Hierarchical",
    "Playbook",
    "Price",
    "PromptLearner",
    "Reflection",
    "Salvage",
    "Scan",
    "SinglePass",
    "Spend",
    "Summarize",
    "TextUpdate",
    "TopK",
    "TraceMapping",
    "TraceReader",
    "Trajectory",
    "Update",
    "five_argument_metric",
    "load_candidates",
    "local_lm",
    "resolve_lm",
    "with_retrieval",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
