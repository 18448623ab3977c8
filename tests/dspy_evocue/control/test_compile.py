"""A skill becomes nodes and edges that do what its records say, and nothing else changes."""

from hypothesis import given
from hypothesis import strategies as st

from dspy_evocue.control.code_agent_graph import code_agent_graph
from dspy_evocue.control.compile import compile_skill
from dspy_evocue.control.draft import Draft, DraftState
from dspy_evocue.control.machine import begin, choose_edge
from dspy_evocue.control.operations import ERROR, OPERATIONS
from dspy_evocue.control.reach import ways_out
from dspy_evocue.control.skills import Branch, Skill, SkillOperation, returns_to
from dspy_evocue.control.state import ControlState
from dspy_evocue.control.wiring import Condition, Edge, Wiring
from dspy_evocue.rules import FeatureTest, Rule

GRAPH = code_agent_graph()
VALID, INVALID = DraftState.PENDING_VALID, DraftState.PENDING_INVALID
PENDING_DRAFTS = {VALID: Draft.pending("x = 1"), INVALID: Draft.pending("x =", "syntax")}


@given(
    conditions=st.lists(
        st.tuples(st.sampled_from([None, "valid", "invalid", ERROR]), st.sampled_from([None, VALID, INVALID])),
        max_size=4,
        unique=True,
    ),
    end=st.sampled_from(OPERATIONS["validate"].ends(VALID)),
)
def test_branches_are_asked_specific_first_then_unconditional_then_sequential(conditions, end):
    outcome, draft = end
    targets = list(range(2, 2 + len(conditions)))
    branches = tuple(Branch(target, *condition) for target, condition in zip(targets, conditions, strict=True))
    operations = (SkillOperation("validate", branches=branches), *[SkillOperation("reflect")] * 5)
    wiring = compile_skill(GRAPH.wiring, Skill("s", "prepare", "pre_commit", operations, returns_to("pre_commit")))
    state = ControlState(node="s.1:validate", draft=PENDING_DRAFTS[draft])

    fitting = [
        target
        for target, (wanted, state_wanted) in zip(targets, conditions, strict=True)
        if (wanted, state_wanted) != (None, None)
        and state_wanted in (None, draft)
        and (wanted == outcome or (wanted is None and outcome != ERROR))
    ]
    if outcome == ERROR:
        fitting += ["failure"]
    else:
        fitting += [t for t, condition in zip(targets, conditions, strict=True) if condition == (None, None)] + [2]
    expected = "s.failure" if fitting[0] == "failure" else f"s.{fitting[0]}:reflect"
    assert choose_edge(wiring, state, {}, outcome=outcome).target == expected


def test_the_latest_skill_at_an_edge_is_asked_first_and_passes_by_where_its_condition_fails():
    old = Skill("old", "prepare", "pre_commit", (SkillOperation("reflect"),), returns_to("pre_commit"))
    new = Skill(
        "new", "prepare", "pre_commit", (SkillOperation("revise"),), returns_to("pre_commit"), Rule.of(phase="late")
    )
    wiring = GRAPH.with_skill(old).with_skill(new).wiring
    state = ControlState(node="prepare", draft=PENDING_DRAFTS[VALID])
    assert choose_edge(wiring, state, {"phase": "late"}, outcome="drafted").target == "new.1:revise"
    assert choose_edge(wiring, state, {"phase": "first"}, outcome="drafted").target == "old.1:reflect"


def test_removing_a_skill_gives_back_an_equal_graph_whatever_the_order():
    first = Skill("a", "prepare", "pre_commit", (SkillOperation("revise"),), returns_to("pre_commit"))
    second = Skill("b", "recurring", "prepare", (SkillOperation("reflect"),), returns_to("prepare"))
    both = GRAPH.with_skill(first).with_skill(second)
    assert both.without_skill("a") == GRAPH.with_skill(second)
    assert both.without_skill("a").wiring == GRAPH.with_skill(second).wiring
    assert both.without_skill("b").without_skill("a") == GRAPH
    assert both.without_skill("b").without_skill("a").wiring == GRAPH.wiring


def test_a_skill_leaves_the_programs_own_nodes_and_edges_as_they_were():
    skill = Skill("a", "*", "prepare", (SkillOperation("reflect"),), returns_to("prepare"))
    wiring = GRAPH.with_skill(skill).wiring
    assert tuple(node for node in wiring.nodes if not node.skill) == GRAPH.nodes
    assert tuple(edge for edge in wiring.edges if not edge.skill) == GRAPH.edges


edge_tests = st.lists(st.builds(FeatureTest, st.sampled_from("fg"), st.sampled_from("12")), max_size=2).map(tuple)


@given(st.lists(edge_tests, max_size=4))
def test_the_analysis_follows_exactly_the_edges_that_some_features_choose(all_tests):
    edges = tuple(Edge("a", f"t{number}", Condition(tests=tests)) for number, tests in enumerate(all_tests))
    wiring = Wiring((), edges, "a")
    chosen = set()
    for f in "123":
        for g in "123":
            holding = [e.target for e in edges if e.when.holds("done", DraftState.EMPTY, {"f": f, "g": g})]
            chosen.add(holding[0] if holding else None)
    followed = list(ways_out(edges, "done", DraftState.EMPTY))
    assert {edge.target if edge else None for edge, _ in followed} == chosen
    for edge, features in followed:
        if edge is not None:
            assert choose_edge(wiring, begin(wiring, {}), features, outcome="done") == edge
