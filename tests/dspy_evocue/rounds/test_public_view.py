"""What of a recorded run the learner may see."""

import dspy

from dspy_evocue.episodes import plan_runs, record_run
from dspy_evocue.rounds.public_view import public_episode
from dspy_evocue.rounds.tasks import Task
from dspy_evocue.testing import scripted_agent_lm


def search(query: str) -> str:
    """Search."""
    if query == "bad":
        raise ValueError("no such thing")
    return f"found {query}"


def policy(turn):
    return [("search", {"query": "a"}), ("search", {"query": "bad"}), ("finish", {})][turn.step]


def metric(example, prediction, trace=None):
    return dspy.Prediction(score=0.25, feedback=f"secret {example.answer}")


def test_an_episode_tells_what_was_done_and_seen_and_the_score_and_no_label():
    example = dspy.Example(question="where?", answer="CANARY").with_inputs("question")
    agent = dspy.ReAct("question -> answer", tools=[search])
    with dspy.context(lm=scripted_agent_lm(policy)):
        recording = record_run(plan_runs(agent, metric), example)
    shown = public_episode(Task("t1", example), recording)
    history = shown.history()
    assert shown.task_text() == "question: where?"
    assert shown.final_score == 0.25
    assert "tool:search: called with (query='a') -> found a" in history
    assert "raised ValueError: no such thing" in history
    assert "next_tool_name: search" in history
    assert history.rstrip().endswith("answer: done")
    assert "CANARY" not in history
    assert "secret" not in history
    assert history.count("found a") == 1
