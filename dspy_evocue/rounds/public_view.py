"""What of a recorded run the learner may see: the agent's own words, what its tools returned, and the final score.

Labels, the metric's words and the reasons for a missing score stay behind: nothing here reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspy_evocue.checkpoints import Event
from dspy_evocue.episodes import Recording
from dspy_evocue.public_episodes import PublicEpisode, episode_from
from dspy_evocue.rounds.tasks import Task

_SILENT = ("mark", "edge", "skill")
"""Kinds of events in which nothing is said or observed."""
RESULT_NODE = "result"
"""The last step of an episode: what the program returned."""
ERROR_NODE = "error"
"""The last step of an episode in which the program raised."""


def public_episode(task: Task, recording: Recording) -> PublicEpisode:
    """Return a recorded run as the agent itself could tell it, plus the final score."""
    steps = [(event.node, _event_text(event)) for event in recording.tape.events if event.kind not in _SILENT]
    episode = recording.episode
    if episode.error:
        steps.append((ERROR_NODE, episode.error))
    elif episode.prediction is not None:
        steps.append((RESULT_NODE, _fields_text(episode.prediction)))
    inputs = {**_opened_task(recording), **dict(task.example.inputs().items())}
    return episode_from(task.task_id, inputs, steps, episode.score)


def _opened_task(recording: Recording) -> dict[str, Any]:
    """Return the task that a controller's own start has opened, as its first model call was shown it.

    An example may name a world's task by its id only, which tells the learner nothing.
    """
    events = recording.tape.events
    if not any(event.kind == "edge" for event in events):
        return {}
    shown = next((event.inputs for event in events if event.kind == "predictor" and "task" in event.inputs), {})
    return {"task": shown["task"]} if shown else {}


def _event_text(event: Event) -> str:
    outcome = f"raised {type(event.error).__name__}: {event.error}" if event.error is not None else None
    if event.kind == "tool":
        arguments = ", ".join(f"{name}={value!r}" for name, value in event.inputs.items())
        return f"called with ({arguments}) -> {outcome or event.output}"
    return outcome or _fields_text(event.output)


def _fields_text(output: Any) -> str:
    items: Any = output.items() if isinstance(output, Mapping) or hasattr(output, "items") else None
    if items is None:
        return str(output)
    # A ReAct program returns its whole trajectory once more: the steps have shown it already.
    return "\n".join(f"{name}: {value}" for name, value in items if name != "trajectory")
