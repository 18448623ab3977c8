"""What a run of EvoCUE may cost at the most, worked out from its settings without calling a model."""

from __future__ import annotations

from dataclasses import dataclass

import dspy

from dspy_combee.estimate import calls_per_rollout
from dspy_evocue.control.program import ControlProgram
from dspy_evocue.rounds.settings import LearnerSettings
from dspy_evocue.rounds.tasks import TaskPools


@dataclass(frozen=True, slots=True)
class Estimate:
    """Upper bounds for one `compile`."""

    metric_calls: int
    """Runs that are scored."""
    task_runs: int
    """Runs of the program, whole or from a checkpoint."""
    task_calls: int | None
    """Calls of the task model in them; None when a module's calls have no bound that can be known."""
    reflection_calls: int
    """Calls of the reflection model when none has to be repeated."""
    metric_calls_per_round: int
    """What one round takes of `metric_calls`."""
    learning_tasks: int
    """Tasks that proposals and trials come from."""
    confirmation_tasks: int
    """Tasks that only confirm."""
    reasons: tuple[str, ...]
    """How the numbers came about, and what they leave out."""

    @property
    def lm_calls(self) -> int | None:
        """Calls of all models; None when the task model's cannot be bounded."""
        return None if self.task_calls is None else self.task_calls + self.reflection_calls

    def __str__(self) -> str:
        calls = "an unknown number of" if self.task_calls is None else f"{self.task_calls}"
        return (
            f"at most {self.metric_calls} scored runs, {calls} task model calls and {self.reflection_calls} reflection "
            f"calls; {'; '.join(self.reasons)}"
        )


def estimate_run(settings: LearnerSettings, student: dspy.Module, pools: TaskPools) -> Estimate:
    """Return the bounds for a program and its tasks.

    A trial runs two arms from a checkpoint, and both again from the start when the checkpoint cannot be reached; then
    one of the first two has no score. A skill on an edge of an explicit controller is tried a second time on each task,
    from a later checkpoint only.
    """
    recorded = min(settings.proposal_tasks, len(pools.learning))
    tried = settings.candidates_per_round * min(settings.trial_tasks, recorded)
    again = tried if settings.skills and isinstance(student, ControlProgram) else 0
    pairs = settings.confirmation_pairs
    per_round = recorded + 3 * tried + 2 * again + 2 * pairs
    runs = settings.max_rounds * (recorded + 4 * tried + 2 * again + 2 * pairs)
    per_run = calls_per_rollout(student)
    cards = 1 if settings.max_cards else 0
    return Estimate(
        metric_calls=settings.max_rounds * per_round,
        task_runs=runs,
        task_calls=None if per_run is None else runs * per_run,
        # Fragments, proposal, revision, and the first and last of them once more when they cannot be parsed.
        reflection_calls=settings.max_rounds * (recorded + cards + 6),
        metric_calls_per_round=per_round,
        learning_tasks=len(pools.learning),
        confirmation_tasks=len(pools.confirmation),
        reasons=(
            f"{settings.max_rounds} rounds of {recorded} recorded runs, {tried + again} trials and {pairs} "
            "confirmation pairs",
            "a run is taken to call each predictor once, and those of a loop with max_iters that often",
            "calls before a checkpoint and stopping early make it less",
            "repeated calls after failures and the metric's own calls are not included",
        ),
    )
