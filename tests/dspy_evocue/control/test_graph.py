"""A graph is sound by construction, is a value, and reads back equal."""

import json

import pytest

from dspy_evocue.control.code_agent_graph import code_agent_graph
from dspy_evocue.control.draft import DraftState
from dspy_evocue.control.errors import GraphError
from dspy_evocue.control.graph import ControlGraph
from dspy_evocue.control.mermaid import draw_graph
from dspy_evocue.control.skills import Branch, Skill, SkillOperation, returns_to
from dspy_evocue.control.wiring import Condition, Edge, Node
from dspy_evocue.rules import Rule

GRAPH = code_agent_graph()
VALID, INVALID = DraftState.PENDING_VALID, DraftState.PENDING_INVALID
WRITE, RUN, STOP = Node("write", "draft"), Node("run", "commit"), Node("stop", "stop")
SOUND = (Edge("write", "run", Condition(draft=VALID)), Edge("write", "write"), Edge("run", "stop"))
SKILL = Skill(
    "fix",
    "prepare",
    "pre_commit",
    (SkillOperation("validate", branches=(Branch("success", "valid"), Branch(2))), SkillOperation("revise", "Look.")),
    returns_to("pre_commit", (VALID, INVALID)),
    Rule.of(phase="late"),
)


def test_a_small_sound_graph_is_accepted():
    ControlGraph((WRITE, RUN, STOP), SOUND, "write")


@pytest.mark.parametrize(
    ("nodes", "edges", "start", "message"),
    [
        ((WRITE, RUN, STOP), SOUND, "begin", "start must be one of write, run, stop, got 'begin'"),
        ((WRITE, WRITE, STOP), SOUND, "write", "node names must differ, got 'write' twice"),
        ((WRITE, RUN), SOUND[:2], "write", "a graph must have a node with the operation 'stop', got none"),
        ((WRITE, RUN, STOP, Node("x", "leap")), SOUND, "write", "operation of node 'x' must be one of draft"),
        ((WRITE, RUN, STOP, Node("x", "return")), SOUND, "write", "operation of node 'x' must be one of draft"),
        ((WRITE, RUN, STOP), (*SOUND, Edge("run", "end")), "write", "names a node that does not exist: end"),
        ((WRITE, RUN, STOP), (*SOUND[:2], SOUND[2], SOUND[2]), "write", "edges must differ, got run -> stop"),
        ((WRITE, RUN, STOP), (*SOUND, Edge("stop", "run")), "write", "no edge may leave a stop node"),
        (
            (WRITE, RUN, STOP),
            (Edge("write", "run", Condition("valid")), *SOUND),
            "write",
            "edge write -> run waits for 'valid', but write ends in drafted, error",
        ),
        (
            (WRITE, RUN, STOP),
            (*SOUND, Edge("run", "write", Condition("ok"))),
            "write",
            "edge run -> write stands after an edge of run that is always taken",
        ),
        (
            (WRITE, RUN, STOP),
            (Edge("write", "run"), SOUND[2]),
            "write",
            r"run \(commit\) needs the draft to be pending-valid, but can be reached with it pending-invalid",
        ),
        ((WRITE, RUN, STOP), (SOUND[0], SOUND[2]), "write", "no edge leaves write after drafted with the"),
        ((WRITE, RUN, STOP), (*SOUND[:2], Edge("run", "stop", scope="day")), "write", "scope of edge run -> stop"),
    ],
)
def test_a_graph_that_cannot_run_is_refused_with_the_reason(nodes, edges, start, message):
    with pytest.raises(GraphError, match=message):
        ControlGraph(nodes, edges, start)


def test_a_graph_with_skills_and_instructions_reads_back_equal_from_json():
    graph = GRAPH.with_skill(SKILL).with_instruction("recurring", "prepare", "Naïve «text» {x}", scope="next_action")
    assert ControlGraph.from_dict(json.loads(json.dumps(graph.to_dict()))) == graph


@pytest.mark.parametrize("broken", [{}, {"format": 2}, {"format": 1}, {"format": 1, "nodes": [{}]}])
def test_a_broken_file_is_refused(broken):
    with pytest.raises(GraphError, match="saved graph"):
        ControlGraph.from_dict(broken)


def test_taking_an_instruction_away_gives_back_an_equal_graph():
    told = GRAPH.with_instruction("*", "prepare", "Hello", scope="next_action")
    assert told != GRAPH
    assert told.with_instruction("*", "prepare", "") == GRAPH


def test_an_instruction_on_an_edge_that_does_not_exist_names_those_that_do():
    with pytest.raises(ValueError, match="no edge prepare -> stop; the edges are start -> prepare, "):
        GRAPH.with_instruction("prepare", "stop", "Hello")


def test_first_and_recurring_entries_are_told_apart():
    first = GRAPH.with_instruction("START", "prepare", "x")
    recurring = GRAPH.with_instruction("recurring", "prepare", "x")
    assert [edge.name for edge in first.edges if edge.instruction] == ["start -> prepare"]
    assert [edge.name for edge in recurring.edges if edge.instruction] == ["route -> prepare"]


def test_the_description_of_a_site_says_which_entries_and_drafts_it_reaches():
    assert GRAPH.describe_site("recurring", "prepare") == (
        "route -> prepare is entered with the draft empty or pending-invalid."
    )
    assert GRAPH.describe_site("pre_commit", "commit") == (
        "pre_commit -> commit is entered with the draft pending-valid when error, draft pending-valid.\n"
        "pre_commit -> commit is entered with the draft pending-valid when draft pending-valid."
    )
    assert GRAPH.describe_site("stop", "start").startswith("No edge stop -> start; the edges are")


def test_an_unknown_skill_cannot_be_removed():
    with pytest.raises(ValueError, match="skill_id must be one of fix, got 'mend'"):
        GRAPH.with_skill(SKILL).without_skill("mend")


def test_the_picture_has_every_node_and_counts_and_escapes_what_skills_say():
    graph = GRAPH.with_skill(SKILL)
    picture = draw_graph(graph, {"start -> prepare": 3})
    assert picture.startswith("flowchart TD\n")
    assert all(f'"{node.name}' in picture for node in graph.wiring.nodes)
    assert '-->|"3x"|' in picture
    assert 'subgraph s0["fix: when phase is late"]' in picture
    assert picture.count("subgraph") == picture.count("    end\n") == 1


def test_a_skill_explains_itself_in_words():
    assert SKILL.explain().split("\n")[:3] == [
        "On prepare -> pre_commit, when phase is late:",
        "  1. validate; to success after valid; to 2 always",
        '  2. revise told "Look."',
    ]


@pytest.mark.parametrize("broken", [{}, {"skill_id": "a"}, {**SKILL.to_dict(), "operations": ["revise"]}])
def test_a_skill_of_the_wrong_form_is_refused_when_it_is_read(broken):
    with pytest.raises(ValueError, match="a skill must have"):
        Skill.from_dict(broken)


def test_a_branch_target_that_a_proposer_wrote_as_text_is_a_number():
    written = SKILL.to_dict()
    written["operations"][0]["branches"][1]["target"] = "2"
    assert Skill.from_dict(written) == SKILL


def test_an_unknown_draft_state_is_refused_with_the_known_ones():
    written = {**SKILL.to_dict(), "returns": [{"status": "success", "draft": "valid", "target": "commit"}]}
    with pytest.raises(ValueError, match="a draft state must be empty, pending-valid, pending-invalid, got 'valid'"):
        Skill.from_dict(written)
