"""The list of call sites shows what a program really uses, and what cannot be edited in it and why."""

import json

import dspy
import pytest

from dspy_combee.testing import scripted_lm
from dspy_evocue import CallSite, list_sites, record_runs
from dspy_evocue.testing import chat_reply, scripted_agent_lm

EXAMPLES = [dspy.Example(question=f"q{index}").with_inputs("question") for index in range(2)]


def look(place: str) -> str:
    """Look at a place."""
    return f"nothing in {place}"


def searching_lm():
    return scripted_agent_lm(lambda turn: ("look", {"place": "here"}) if turn.step < 2 else ("finish", {}))


class Mixed(dspy.Module):
    """Has a frozen part, a part made inside forward, and a part that is never reached."""

    def __init__(self):
        super().__init__()
        self.frozen = dspy.ChainOfThought("question -> plan")
        self.frozen._compiled = True
        self.never = dspy.Predict("question -> answer")

    def forward(self, question):
        self.frozen(question=question)
        return dspy.Predict("question -> answer")(question=question)


def mixed_lm():
    return scripted_lm(lambda prompt, number: chat_reply(reasoning="r", plan="p", answer="a"))


def test_the_edges_of_a_react_loop_with_their_counts():
    with dspy.context(lm=searching_lm()):
        sites = list_sites(dspy.ReAct("question -> answer", tools=[look]), EXAMPLES, num_threads=2)
    assert {str(edge): (edge.count, edge.runs) for edge in sites.edges} == {
        "START -> react": (2, 2),
        "react -> tool:look": (4, 2),
        "tool:look -> react": (4, 2),
        "react -> tool:finish": (2, 2),
        "tool:finish -> extract.predict": (2, 2),
    }
    assert sites.sites[0] == CallSite("tool:look", "react")
    assert (sites.count("recurring", "react"), sites.count("tool:*", "*"), sites.count("*", "react")) == (4, 6, 6)
    assert "tool:look -> react" in str(sites)


def test_recordings_need_no_language_model():
    program = dspy.ReAct("question -> answer", tools=[look])
    with dspy.context(lm=searching_lm()):
        recordings = record_runs(program, EXAMPLES, lambda gold, pred: 1.0, num_threads=1)
    assert list_sites(program, recordings=recordings).count("START", "react") == 2


def test_what_cannot_be_edited_is_shown_with_the_reason():
    with dspy.context(lm=mixed_lm()):
        sites = list_sites(Mixed(), EXAMPLES)
    notes = {node.name: (node.calls, node.attachable, node.note) for node in sites.nodes}
    assert notes["never"] == (0, True, "")
    assert notes["frozen.predict"][:2] == (2, False)
    assert notes["frozen.predict"][2].startswith("frozen")
    assert notes["unattached:question -> answer"][:2] == (2, False)
    assert "made inside forward" in notes["unattached:question -> answer"][2]
    assert "never: never reached" in str(sites)


def test_a_run_that_fails_is_reported_and_the_others_count():
    lm = scripted_lm([chat_reply(answer="a"), "unreadable", "unreadable"])
    with dspy.context(lm=lm):
        sites = list_sites(dspy.Predict("question -> answer"), EXAMPLES)
    assert sites.count("START", "self") == 2
    assert len(sites.failures) == 1
    assert "AdapterParseError" in sites.failures[0]


def test_the_graph_is_drawn_with_counts_and_escaped_names():
    with dspy.context(lm=mixed_lm()):
        sites = list_sites(Mixed(), EXAMPLES)
    mermaid, html = sites.mermaid(), sites._repr_html_()
    assert mermaid.startswith("flowchart TD")
    assert "-->|2|" in mermaid
    assert "question -&gt; answer" in mermaid
    assert "<svg" in html
    assert "question -&gt; answer" in html
    assert json.loads(json.dumps(sites.to_dict()))["runs"] == 2


def test_the_program_is_left_as_it_is():
    program = Mixed()
    with dspy.context(lm=mixed_lm()):
        list_sites(program, EXAMPLES)
    assert type(program.never) is type(program.frozen.predict) is dspy.Predict
    assert not [name for name in vars(program.never) if "evocue" in name]


def test_examples_without_marked_inputs_are_refused():
    with pytest.raises(ValueError, match="with_inputs"):
        list_sites(Mixed(), [dspy.Example(question="q")])
