"""The round loop: generate, reflect, aggregate, update, validate, for any prompt learner and any aggregation."""

from dspy_combee.rounds.learner_extras import (
    CondensesReflections,
    FreezesPredictors,
    JoinsUpdates,
    KeepsPrograms,
    NamesLearnedLines,
    PlansRounds,
    PreparesPrograms,
    RoundsPlan,
)
from dspy_combee.rounds.loop import run_rounds
from dspy_combee.rounds.records import (
    BatchSizePolicy,
    ComponentUpdate,
    FixedBatchSize,
    RoundRecord,
    RoundSchedule,
    RoundsResult,
    StopReason,
    Validation,
)
from dspy_combee.rounds.run_files import spent_before
from dspy_combee.rounds.source import Batch, ExampleSource, TraceSource, TrainingSource
from dspy_combee.rounds.validation import validate

__all__ = [
    "Batch",
    "BatchSizePolicy",
    "CondensesReflections",
    "ComponentUpdate",
    "ExampleSource",
    "FixedBatchSize",
    "FreezesPredictors",
    "JoinsUpdates",
    "KeepsPrograms",
    "NamesLearnedLines",
    "PlansRounds",
    "PreparesPrograms",
    "RoundsPlan",
    "RoundRecord",
    "RoundSchedule",
    "RoundsResult",
    "StopReason",
    "TraceSource",
    "TrainingSource",
    "Validation",
    "run_rounds",
    "spent_before",
    "validate",
]
