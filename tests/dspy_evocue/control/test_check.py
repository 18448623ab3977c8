"""The checker accepts exactly the skills that no run can break."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspy_evocue.call_sites import CallSite
from dspy_evocue.control.check import check_skill
from dspy_evocue.control.code_agent_graph import code_agent_graph
from dspy_evocue.control.compile import compile_skill, matching_edges
from dspy_evocue.control.draft import Draft, DraftState
from dspy_evocue.control.errors import DraftStateError, GraphError, RoutingError, SkillError
from dspy_evocue.control.graph import ControlGraph
from dspy_evocue.control.graph_skill_edit import GraphSkillEdit, find_edit_problems
from dspy_evocue.control.machine import Performed, absorb, begin, choose_edge, follow, require_draft
from dspy_evocue.control.operations import ERROR, OPERATIONS
from dspy_evocue.control.skills import Branch, Return, Skill, SkillOperation, returns_to
from dspy_evocue.control.wiring import Condition, Edge, Node
from dspy_evocue.rules import FeatureTest, Rule

GRAPH = code_agent_graph()
EMPTY, VALID, INVALID = DraftState.EMPTY, DraftState.PENDING_VALID, DraftState.PENDING_INVALID
DRAFTS = {EMPTY: Draft(), VALID: Draft.pending("x = 1"), INVALID: Draft.pending("x =", "syntax")}
REVISE = Skill("fix", "prepare", "pre_commit", (SkillOperation("revise"),), returns_to("pre_commit", (VALID, INVALID)))


@st.composite
def operation_lists(draw):
    """One to four operations, most of them with branches of the right form."""
    count = draw(st.integers(1, 4))
    listed = []
    for number in range(1, count + 1):
        name = draw(st.sampled_from(sorted(OPERATIONS)))
        is_right = draw(st.integers(0, 9)) > 0
        later = range(number + 1, count + 1) if is_right else range(1, 6)
        targets = st.sampled_from([*later, "success", "failure"])
        outcomes = st.sampled_from([None, *OPERATIONS[name].outcomes, *([] if is_right else ["valid", "ok"])])
        branch = st.builds(Branch, targets, outcomes, st.sampled_from([None, *DraftState]))
        unique = (lambda one: (one.outcome, one.draft)) if is_right else None
        listed.append(SkillOperation(name, branches=tuple(draw(st.lists(branch, max_size=2, unique_by=unique)))))
    return tuple(listed)


returns = st.lists(
    st.builds(
        Return,
        status=st.sampled_from(["success", "failure"]),
        draft=st.sampled_from(list(DraftState)),
        target=st.sampled_from(["prepare", "pre_commit", "commit", "route", "stop"]),
    ),
    max_size=6,
    unique_by=lambda one: (one.status, one.draft),
).map(tuple)
generous_returns = st.sampled_from(["pre_commit", "route", "stop"]).map(returns_to)
tests = st.builds(FeatureTest, st.sampled_from(["draft", "phase"]), st.sampled_from([*map(str, DraftState), "late"]))
skills = st.builds(
    Skill,
    skill_id=st.just("s"),
    source=st.sampled_from(["prepare", "recurring", "*", "START"]),
    target=st.sampled_from(["pre_commit", "pre_commit", "prepare", "route"]),
    operations=operation_lists(),
    returns=st.one_of(returns, generous_returns),
    when=st.lists(tests, max_size=2, unique_by=lambda test: test.feature).map(tuple).map(Rule),
)


def has_form(skill, graph):
    """Say by the words of the definition whether the skill can be compiled at all."""
    count = len(skill.operations)
    for number, operation in enumerate(skill.operations, start=1):
        if sum(branch.outcome is None and branch.draft is None for branch in operation.branches) > 1:
            return False
        for branch in operation.branches:
            if isinstance(branch.target, int) and not number < branch.target <= count:
                return False
            if branch.outcome not in (None, *OPERATIONS[operation.operation].outcomes):
                return False
    return bool(matching_edges(graph.wiring, skill.source, skill.target))


def next_number(operation, number, outcome, draft):
    """Follow the definition of branches: specific before unconditional before sequential."""
    specific = [b for b in operation.branches if (b.outcome, b.draft) != (None, None)]
    if outcome == ERROR:
        fitting = [b for b in specific if b.outcome == ERROR and b.draft in (None, draft)]
        return fitting[0].target if fitting else "failure"
    fitting = [b for b in specific if b.outcome in (None, outcome) and b.draft in (None, draft)]
    fitting += [b for b in operation.branches if (b.outcome, b.draft) == (None, None)]
    return fitting[0].target if fitting else number + 1


def breaks_inside(skill, entered):
    """Walk the skill's own records through every outcome; say whether an operation or a return lacks its draft."""
    declared = {(one.status, one.draft) for one in skill.returns}
    waiting, seen = [(1, draft) for draft in entered], set()
    while waiting:
        at, draft = waiting.pop()
        if (at, draft) in seen:
            continue
        seen.add((at, draft))
        if at in ("success", "failure") or at > len(skill.operations):
            if (at if isinstance(at, str) else "success", draft) not in declared:
                return True
            continue
        row = OPERATIONS[skill.operations[at - 1].operation]
        if draft not in row.requires:
            return True
        waiting += [(next_number(skill.operations[at - 1], at, o, after), after) for o, after in row.ends(draft)]
    return False


def replay(wiring, trace):
    """Drive the real machine along a trace; whatever error it raises comes through."""
    state = begin(wiring, {})
    for step in trace:
        node = wiring.node(step.node)
        require_draft(node, state)
        state = absorb(node, state, Performed(step.outcome, DRAFTS[step.draft]), is_model_call=False)
        edge = choose_edge(wiring, state, step.features, outcome=step.outcome)
        assert edge.target == step.target
        state = follow(wiring, state, edge)
    require_draft(wiring.node(state.node), state)


def walk_at_random(wiring, data):
    """Drive the real machine with random outcomes and features; whatever error it raises comes through."""
    state = begin(wiring, {})
    for _ in range(30):
        node = wiring.node(state.node)
        require_draft(node, state)
        if node.operation == "stop":
            return
        outcome, draft = data.draw(st.sampled_from(node.row.ends(state.draft.state)))
        features = {"phase": data.draw(st.sampled_from(["late", "empty", "pending-valid", "other"]))}
        state = absorb(node, state, Performed(outcome, DRAFTS[draft]), is_model_call=False)
        try:
            edge = choose_edge(wiring, state, features, outcome=outcome)
        except RoutingError:
            if outcome == ERROR:
                return  # the model's own error is raised there, which is no fault of the wiring
            raise
        state = follow(wiring, state, edge)


@settings(max_examples=150)
@given(skill=skills, data=st.data())
def test_what_the_checker_accepts_runs_without_a_state_error_on_random_outcomes(skill, data):
    if check_skill(skill, GRAPH):
        return
    walk_at_random(GRAPH.with_skill(skill).wiring, data)


@settings(max_examples=150)
@given(skill=skills)
def test_what_the_checker_refuses_has_a_run_that_fails_or_a_form_that_cannot_run(skill):
    problems = check_skill(skill, GRAPH)
    assert has_form(skill, GRAPH) == (not any(problem.trace == () for problem in problems))
    for problem in problems:
        if problem.trace:
            with pytest.raises((DraftStateError, RoutingError)):
                replay(compile_skill(GRAPH.wiring, skill), problem.trace)


@st.composite
def graphs(draw):
    """A graph of one to three random operations and an end, or None where the nodes cannot be run."""
    names = [f"n{number}" for number in range(draw(st.integers(1, 3)))]
    nodes = [Node(name, draw(st.sampled_from([*OPERATIONS, "code"]))) for name in names]
    targets = st.sampled_from([*names, "stop"])
    edges = []
    for node in nodes:
        conditions = st.builds(
            Condition,
            st.sampled_from([None, *node.row.outcomes]),
            st.sampled_from([None, *DraftState]),
            st.lists(tests, max_size=1).map(tuple),
        ).filter(lambda one: not one.is_unconditional)
        edges += [Edge(node.name, draw(targets), when) for when in draw(st.lists(conditions, max_size=2))]
        edges.append(Edge(node.name, draw(targets)))
    try:
        return ControlGraph((*nodes, Node("stop", "stop")), tuple(edges), "n0")
    except GraphError:
        return None


@settings(max_examples=100)
@given(graph=graphs(), skill=skills, data=st.data())
def test_the_checker_keeps_both_promises_on_any_graph(graph, skill, data):
    if graph is None:
        return
    names = st.sampled_from([node.name for node in graph.nodes])
    returns = tuple(dataclasses.replace(one, target=data.draw(names)) for one in skill.returns)
    source = data.draw(st.sampled_from(["START", "recurring", "*"]))
    skill = dataclasses.replace(skill, source=source, target=data.draw(names), returns=returns)
    problems = check_skill(skill, graph)
    if not problems:
        walk_at_random(graph.with_skill(skill).wiring, data)
    for problem in problems:
        if problem.trace:
            with pytest.raises((DraftStateError, RoutingError)):
                replay(compile_skill(graph.wiring, skill), problem.trace)


@settings(max_examples=150)
@given(skill=skills)
def test_the_checker_agrees_with_a_walk_of_the_definition(skill):
    if not has_form(skill, GRAPH):
        return
    asked = [value for feature, value in ((t.feature, t.value) for t in skill.when.tests) if feature == "draft"]
    entered = {
        draft
        for edge in matching_edges(GRAPH.wiring, skill.source, skill.target)
        for draft in GRAPH.reach.drafts_on(edge)
        if not asked or asked == [str(draft)]
    }
    refused = any(problem.sentence.startswith(("Operation", "The skill")) for problem in check_skill(skill, GRAPH))
    if breaks_inside(skill, entered):
        assert refused
    elif refused:
        # A skill may also break on a draft that it brings about itself, by returning to where it starts.
        assert any(one.target != skill.target for one in skill.returns) or skill.source in ("*", "recurring", "route")


@settings(max_examples=150)
@given(skill=skills, more=tests)
def test_a_proposed_skill_that_is_accepted_stays_sound_under_every_rule_that_trials_may_fit(skill, more):
    edit = GraphSkillEdit(CallSite(skill.source, skill.target), skill.operations, skill.returns, when=skill.when)
    if not has_form(skill, GRAPH) or find_edit_problems(edit, GRAPH):
        return
    assert check_skill(skill, GRAPH) == ()
    if len(skill.when) < 2 and more.feature not in {test.feature for test in skill.when.tests}:
        assert check_skill(dataclasses.replace(skill, when=Rule((*skill.when.tests, more))), GRAPH) == ()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"operations": ()}, "A skill must have 1 to 6 operations, got 0."),
        ({"operations": (SkillOperation("reflect"),) * 7}, "A skill must have 1 to 6 operations, got 7."),
        ({"operations": (SkillOperation("ponder"),)}, "Operation 1 must be one of draft, revise"),
        ({"target": "nowhere"}, "There is no edge prepare -> nowhere; the edges are start -> prepare,"),
        ({"returns": returns_to("nowhere")}, "A return goes to 'nowhere', which is not a node"),
        ({"operations": (SkillOperation("discard", "gently"),)}, "is performed by code and cannot be told anything."),
        ({"operations": (SkillOperation("revise", branches=(Branch(1),)),)}, "branches must go forward."),
        ({"operations": (SkillOperation("revise", branches=(Branch(2),)),)}, "but the skill has 1."),
        ({"operations": (SkillOperation("revise", branches=(Branch("end"),)),)}, "got 'end'."),
        ({"operations": (SkillOperation("revise", branches=(Branch(True),)),)}, "got True."),
        ({"operations": (SkillOperation("revise", branches=(Branch("success", "valid"),)),)}, "waits for 'valid'"),
        ({"returns": (*REVISE.returns, REVISE.returns[0])}, "two returns for success with the draft pending-valid."),
        (
            {"operations": (SkillOperation("draft"),)},
            "Operation 1 (draft) needs the draft to be empty or pending-invalid, "
            "but can be reached with it pending-valid.",
        ),
        (
            {"operations": (SkillOperation("discard"),)},
            "The skill can end in success with the draft empty, but declares no return for that.",
        ),
        (
            {"returns": returns_to("commit", (VALID, INVALID))},
            "commit (commit) needs the draft to be pending-valid, but can be reached with it pending-invalid.",
        ),
    ],
)
def test_each_refusal_says_why_in_one_sentence(change, sentence):
    problems = check_skill(dataclasses.replace(REVISE, **change), GRAPH)
    assert any(sentence in str(problem) for problem in problems), [str(problem) for problem in problems]
    assert all(str(problem).count(". ") == 0 and str(problem).endswith(".") for problem in problems)


def test_an_operation_that_the_program_has_no_part_for_is_refused():
    graph = code_agent_graph(operations=("draft", "commit"))
    (problem,) = check_skill(REVISE, graph)
    assert str(problem) == "Operation 1 (revise) is not available in this program, which has draft, commit."


def test_a_start_condition_on_the_draft_narrows_what_reaches_the_skill():
    redraft = dataclasses.replace(REVISE, operations=(SkillOperation("draft"),))
    assert check_skill(redraft, GRAPH)
    assert check_skill(dataclasses.replace(redraft, when=Rule.of(draft="pending-invalid")), GRAPH) == ()


def test_a_graph_refuses_an_unsound_skill_with_every_reason():
    with pytest.raises(SkillError, match=r"skill 'fix' is refused: The skill can end in success"):
        GRAPH.with_skill(dataclasses.replace(REVISE, returns=()))
