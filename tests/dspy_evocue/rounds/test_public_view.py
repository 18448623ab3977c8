"""What of a recorded run the learner may see."""

import dspy

from dspy_combee.testing import scripted_lm
from dspy_evocue import mark_node
from dspy_evocue.episodes import plan_runs, record_run
from dspy_evocue.rounds.public_view import public_episode
from dspy_evocue.rounds.tasks import Task
from dspy_evocue.testing import chat_reply, scripted_agent_lm


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


class Booker(dspy.Module):
    """Plan, pass plain code, act in plain code, report by a predictor that it makes on the way."""

    def __init__(self):
        super().__init__()
        self.plan = dspy.Predict("question -> plan")
        self.check = dspy.ChainOfThought("plan -> verdict")
        self.check._compiled = True

    def forward(self, question):
        plan = self.plan(question=question).plan
        mark_node("thinking")
        self.check(plan=plan)
        mark_node("book", is_action=True)
        return dspy.Predict("plan -> answer")(plan=plan)


def judging_metric(example, prediction, trace=None):
    """Judge as metrics of users do: with a model, a tool and plain code of their own, all of which see the label."""
    mark_node("CANARY-MARK", is_action=True)
    dspy.Tool(search)(query=example.answer)
    judge = dspy.Predict("answer, label -> verdict")
    return float(judge(answer=prediction.answer, label=example.answer).verdict == "yes")


def test_actions_of_plain_code_are_shown_marks_are_not_and_nothing_of_the_metrics_own_work():
    example = dspy.Example(question="where?", answer="CANARY-LABEL").with_inputs("question")
    reply = chat_reply(reasoning="so", plan="book it", answer="done", verdict="yes")
    with dspy.context(lm=scripted_lm(lambda prompt, number: reply)):
        recording = record_run(plan_runs(Booker(), judging_metric), example)
    shown = public_episode(Task("t1", example), recording)
    assert shown.final_score == 1.0
    assert [step.node for step in shown.steps] == [
        "plan",
        "frozen:check.predict",
        "book",
        "unattached:plan -> answer",
        "result",
    ]
    assert shown.steps[2].text == "acted on the world; what came of it shows in later steps only"
    assert "CANARY" not in shown.history()
    assert "None" not in shown.history()


class Describer(dspy.Module):
    """Look at a picture and at another one that a tool fetches."""

    def __init__(self):
        super().__init__()
        self.look = dspy.Predict("picture: dspy.Image, history: dspy.History -> answer: str")
        self.fetch = dspy.Tool(fetch_picture)

    def forward(self, picture, history):
        found = self.fetch(name="map")
        return dspy.Prediction(answer=self.look(picture=picture, history=history).answer, pictures=[found])


def fetch_picture(name: str) -> dspy.Image:
    """Fetch a picture."""
    return dspy.Image(url="data:image/png;base64,AAAA")


def test_pictures_are_shown_as_a_placeholder_and_histories_turn_by_turn():
    history = dspy.History(messages=[{"question": "before?", "answer": "b"}])
    picture = dspy.Image(url="data:image/png;base64,BBBB")
    example = dspy.Example(picture=picture, history=history).with_inputs("picture", "history")
    with dspy.context(lm=scripted_lm(lambda prompt, number: chat_reply(answer="done"))):
        recording = record_run(plan_runs(Describer(), metric), example.copy(answer="CANARY"))
    shown = public_episode(Task("t1", example), recording)
    assert shown.task_text() == "picture: [image]\nhistory: question = before?; answer = b"
    assert "tool:fetch_picture: called with (name='map') -> [image]" in shown.history()
    assert shown.history().endswith("pictures: [image]")
    assert "base64" not in shown.history()
