"""What of a recorded run the learner may see: the agent's own words, what its tools returned, and the final score.

Labels, the metric's words and the reasons for a missing score stay behind: nothing here reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dspy_evocue.checkpoints import Event
from dspy_evocue.entries import NodeKind
from dspy_evocue.episodes import Recording
from dspy_evocue.public_episodes import PublicEpisode, episode_from, shown_value
from dspy_evocue.rounds.tasks import Task

RESULT_NODE = "result"
"""The last step of an episode: what the program returned."""
ERROR_NODE = "error"
"""The last step of an episode in which the program raised."""


def public_episode(task: Task, recording: Recording) -> PublicEpisode:
    """Return a recorded run as the agent itself could tell it, plus the final score."""
    steps = [(event.node, _TEXTS[event.kind](event)) for event in recording.tape.events if event.kind in _TEXTS]
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


def _tool_text(event: Event) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in event.inputs.items())
    return f"called with ({arguments}) -> {_raised(event) or shown_value(event.output)}"


def _predictor_text(event: Event) -> str:
    return _raised(event) or _fields_text(event.output)


def _action_text(event: Event) -> str:
    if event.error is None and event.output is None:
        return "acted on the world; what came of it shows in later steps only"
    return _raised(event) or _fields_text(event.output)


def _raised(event: Event) -> str:
    return "" if event.error is None else f"raised {type(event.error).__name__}: {event.error}"


_TEXTS: Mapping[NodeKind, Callable[[Event], str]] = {
    "predictor": _predictor_text,
    "frozen": _predictor_text,
    "unattached": _predictor_text,
    "tool": _tool_text,
    "action": _action_text,
}
"""What is shown of which kind of node. A kind that is not here is not shown: a "mark", an "edge" and a "skill" say only
that the run passed there, and nothing was said or seen."""


def _fields_text(output: Any) -> str:
    items: Any = output.items() if isinstance(output, Mapping) or hasattr(output, "items") else None
    if items is None:
        return shown_value(output)
    # A ReAct program returns its whole trajectory once more: the steps have shown it already.
    return "\n".join(f"{name}: {shown_value(value)}" for name, value in items if name != "trajectory")
