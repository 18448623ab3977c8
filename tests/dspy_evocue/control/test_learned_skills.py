"""The learner finds, tries, fits, confirms and inherits a skill of a controller's graph, as it does an instruction."""

import dataclasses

import dspy
import pytest
from killed_runs import kill_runs

import dspy_evocue
from dspy_combee.runtime.budget import Budget
from dspy_combee.testing import scripted_lm
from dspy_evocue import EvoCUE, attach, compare
from dspy_evocue.control import ControlProgram
from dspy_evocue.control.code_world import check_code, open_code_world
from dspy_evocue.control.scripted_adviser import REVISION_SKILL, adviser_reply
from dspy_evocue.control.scripted_clerk import clerk_reply, hasty_clerk_reply
from dspy_evocue.rules import Rule

TASKS = [
    dspy.Example(task_id=task_id).with_inputs("task_id")
    for n in range(1, 9)
    for task_id in (f"search-{n}", f"search-{n + 20}", f"report-{n}")
]
HELD_OUT = [
    dspy.Example(task_id=f"{kind}-{n}").with_inputs("task_id") for n in range(50, 56) for kind in ("search", "report")
]
USELESS = {**REVISION_SKILL, "skill": {**REVISION_SKILL["skill"], "operations": [{"operation": "revise"}]}}
BROKEN = {
    **REVISION_SKILL,
    "skill": {**REVISION_SKILL["skill"], "operations": [{"operation": "revise"}, {"operation": "discard"}]},
}


def score(example, prediction, trace=None):
    return prediction.score


def make_agent():
    return ControlProgram.code_agent(open_code_world, check=check_code)


def optimizer_with(reply, **settings):
    defaults = {
        "skills": True,
        "max_rounds": 2,
        "trial_tasks": 6,
        "confirmation_tasks": 8,
        "max_cards": 0,
        "num_threads": 1,
        "progress": False,
    }
    return EvoCUE(score, reflection_lm=scripted_lm(reply), **{**defaults, **settings})


def learn(reply, *, student=None, clerk=hasty_clerk_reply, **settings):
    """Return the optimizer after its run, the program, and how often the models were asked."""
    optimizer = optimizer_with(reply, **settings)
    lm = scripted_lm(clerk)
    with dspy.context(lm=lm):
        program = optimizer.compile(student or make_agent(), trainset=TASKS)
    return optimizer, program, lm.engine.calls + optimizer.reflection_lm.engine.calls


@pytest.fixture(scope="module")
def learned():
    return learn(adviser_reply([REVISION_SKILL]))


def test_a_skill_that_helps_in_one_phase_only_is_inherited_with_its_rule(learned):
    optimizer, program, _ = learned
    (edit,) = program.evocue.edits
    assert (edit.kind, edit.when) == ("graph_skill", Rule.of(phase="middle", completion="none"))
    first, second = optimizer.last_result.rounds
    (candidate,) = first.candidates
    assert candidate.fate == "inherited"
    # Scores ask for the phase; that the skill then spares the last draft is because it changed nothing there.
    assert candidate.fitted.rule == Rule.of(phase="middle")
    assert "it did nothing except when completion is none and phase is middle" in candidate.reason
    assert {trial.kind for trial in candidate.trials} == {"matched_prefix"}
    assert second.mean_base_score == 1.0


def test_each_task_is_tried_in_two_states_and_the_early_ones_count_against_the_skill_everywhere(learned):
    optimizer, _, _ = learned
    (candidate,) = optimizer.last_result.rounds[0].candidates
    gains = {phase: [t.gain for t in candidate.trials if t.features["phase"] == phase] for phase in ("first", "middle")}
    assert len(gains["first"]) == len(gains["middle"]) == 6
    assert max(gains["first"]) == 0.0 < max(gains["middle"])


def test_the_confirmation_tasks_had_no_part_in_trials_or_proposals(learned):
    roles = learned[0].last_result.identity.data_roles
    assert not set(roles["confirmed"]) & (set(roles["tried"]) | set(roles["proposed"]))


def test_what_was_learned_raises_held_out_tasks_where_the_skill_everywhere_does_not(learned):
    optimizer, program, _ = learned
    (edit,) = program.evocue.edits
    everywhere = attach(make_agent(), dataclasses.replace(edit, when=Rule()))
    with dspy.context(lm=scripted_lm(hasty_clerk_reply)):
        counts = [
            compare(make_agent(), one, HELD_OUT, score, learned=optimizer.last_result.identity.data_roles).counts
            for one in (program, everywhere)
        ]
    assert [(one.wins, one.losses) for one in counts] == [(6, 0), (0, 6)]


def test_the_inherited_skill_is_a_part_of_the_graph_and_taking_it_off_restores_the_graph(learned):
    _, program, _ = learned
    (edit,) = program.evocue.edits
    (skill,) = program.graph.skills
    assert skill.skill_id == edit.edit_id
    nodes = [node.name for node in program.graph.wiring.nodes if node.skill == edit.edit_id]
    assert nodes == [f"{edit.edit_id}.1:revise", f"{edit.edit_id}.success", f"{edit.edit_id}.failure"]
    assert edit.edit_id in program.mermaid()
    plain = program.evocue.without(edit.edit_id)
    assert plain.graph == make_agent().graph
    assert plain.dump_state() == make_agent().dump_state()


def test_the_skill_takes_from_the_runs_own_budget(learned):
    _, program, _ = learned
    with dspy.context(lm=scripted_lm(hasty_clerk_reply)):
        with_skill, without = program(task_id="search-50"), make_agent()(task_id="search-50")
    assert with_skill.steps - without.steps == with_skill.model_calls - without.model_calls > 0


def test_it_is_saved_and_loaded_alone_and_as_a_part(learned, tmp_path):
    class Office(dspy.Module):
        def __init__(self, agent):
            super().__init__()
            self.agent = agent

        def forward(self, task_id):
            return self.agent(task_id=task_id)

    _, program, _ = learned
    program.save(tmp_path / "agent.json")
    loaded = dspy_evocue.load(make_agent(), tmp_path / "agent.json")
    assert (loaded.graph, loaded.evocue.edits) == (program.graph, program.evocue.edits)
    Office(program).save(tmp_path / "office.json")
    office = dspy_evocue.load(Office(make_agent()), tmp_path / "office.json")
    assert office.agent.graph == program.graph
    with dspy.context(lm=scripted_lm(hasty_clerk_reply)):
        assert loaded(task_id="search-50").score == office(task_id="search-50").score == 1.0


def test_the_result_explains_the_skill_and_what_was_tried(learned, tmp_path):
    result = learned[0].last_result
    assert "on prepare -> pre_commit, when completion is none and phase is middle" in result.explain()
    assert result.to_dict()["edits"][0]["kind"] == "graph_skill"
    result.report(tmp_path / "run.html")
    assert "pre_commit" in (tmp_path / "run.html").read_text(encoding="utf-8")


def test_the_proposer_is_shown_the_graph_the_operations_and_the_tasks(learned):
    prompt = next(p for p in learned[0].reflection_lm.engine.prompts if "[[ ## call_sites ## ]]" in p)
    for told in (
        "- prepare (draft): write the next action",
        "- START -> prepare is entered with the draft empty.",
        "- prepare -> pre_commit: 35 entries in 9 episodes",
        "- phase: first or middle or late",
        "- completion: one word",
        "- revise: rewrite the pending action",
        "Pay every open invoice of",
    ):
        assert told in prompt
    assert "House" not in prompt


def test_a_skill_that_harms_nowhere_is_spared_the_states_in_which_it_does_nothing():
    optimizer, program, _ = learn(adviser_reply([REVISION_SKILL]), clerk=clerk_reply, max_rounds=1)
    (candidate,) = optimizer.last_result.rounds[0].candidates
    assert candidate.fitted.rule == Rule()
    (edit,) = program.evocue.edits
    everywhere = attach(make_agent(), dataclasses.replace(edit, when=Rule()))
    with dspy.context(lm=scripted_lm(clerk_reply)):
        spent = [[one(**example.inputs()) for example in HELD_OUT] for one in (program, everywhere)]
    assert {run.score for runs in spent for run in runs} == {1.0}
    ours, theirs = (sum(run.model_calls for run in runs) for runs in spent)
    assert ours < theirs


def test_a_refused_skill_is_revised_once_with_the_checkers_words():
    optimizer, program, _ = learn(adviser_reply([BROKEN], [REVISION_SKILL]))
    assert len(program.evocue.edits) == 1
    (asked,) = [p for p in optimizer.reflection_lm.engine.prompts if "[[ ## feedback ## ]]" in p]
    assert "The skill can end in success with the draft empty, but declares no return for that." in asked


def test_a_skill_that_stays_wrong_costs_no_trial():
    optimizer, program, _ = learn(adviser_reply([BROKEN], [BROKEN]), max_rounds=1)
    assert program.evocue.edits == ()
    result = optimizer.last_result
    ((_, reasons),) = result.rounds[0].refused
    assert "declares no return" in reasons
    assert result.trials == ()
    assert result.spend.metric_calls == len(result.rounds[0].base_scores)


def test_a_skill_that_changes_nothing_is_not_inherited():
    optimizer, program, _ = learn(adviser_reply([USELESS]), max_rounds=1)
    assert program.evocue.edits == ()
    (candidate,) = optimizer.last_result.rounds[0].candidates
    assert candidate.fate == "rejected"
    assert not any(trial.changes for trial in candidate.trials)


def test_a_start_condition_of_the_proposal_is_kept_and_the_rule_adds_to_it():
    checked = {**REVISION_SKILL, "skill": {**REVISION_SKILL["skill"], "when": {"outcome": "drafted"}}}
    _, program, _ = learn(adviser_reply([checked]), max_rounds=1)
    (edit,) = program.evocue.edits
    assert edit.when == Rule.of(outcome="drafted", phase="middle")


def test_an_instruction_and_a_skill_are_learned_in_one_run():
    lesson = {
        "text": "Every call of apis.payments.pay must be given reference='<invoice number>/<vendor>'.",
        "at": ["commit -> draft"],
        "expected_effect": "Payments are right.",
    }
    optimizer, program, _ = learn(adviser_reply([lesson, REVISION_SKILL]), max_rounds=1)
    assert {edit.kind for edit in program.evocue.edits} == {"instruction", "graph_skill"}
    assert [one.fate for one in optimizer.last_result.rounds[0].candidates] == ["inherited", "inherited"]


def test_a_second_compile_starts_from_the_inherited_skill(learned):
    _, program, _ = learned

    def careless(prompt, number=1):
        reply = hasty_clerk_reply(prompt, number)
        # What is left to learn: a note that somebody has to have written down before the end.
        return (
            reply if "- " in prompt.rpartition("[[ ## notes ## ]]")[2][:200] else reply.replace("answer=", "answer=1+")
        )

    noting = {
        **REVISION_SKILL,
        "skill": {**REVISION_SKILL["skill"], "operations": [{"operation": "reflect"}]},
        "at": ["route -> prepare"],
    }
    noting["skill"]["returns"] = [
        {"status": status, "draft": draft, "target": "prepare"}
        for status in ("success", "failure")
        for draft in ("empty", "pending-invalid")
    ]
    optimizer, again, _ = learn(adviser_reply([noting]), student=program, clerk=careless, max_rounds=1)
    assert optimizer.last_result.rounds[0].mean_base_score == 0.0
    assert [skill.target for skill in again.graph.skills] == ["pre_commit", "prepare"]
    (second,) = optimizer.last_result.edits
    assert again.evocue.without(second.edit_id).graph == program.graph


def test_the_estimate_bounds_what_a_run_takes(learned):
    optimizer, _, _ = learned
    estimate = optimizer.estimate(make_agent(), trainset=TASKS)
    assert optimizer.last_result.spend.metric_calls <= estimate.metric_calls
    assert (
        estimate.metric_calls
        > optimizer_with(adviser_reply([]), skills=False).estimate(make_agent(), trainset=TASKS).metric_calls
    )


KILLED_AT = (30, 60, 110, 150)
"""Numbers of model calls: in base runs, early trials, late trials, and the confirmation."""


def run_to_kill(killing, log_dir):
    learn(killing(adviser_reply([REVISION_SKILL])), clerk=killing(hasty_clerk_reply), log_dir=log_dir)


@pytest.fixture(scope="module")
def killed_runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("killed")
    kill_runs(__file__, directory, KILLED_AT)
    return directory


def decided(result):
    return [
        (
            one.base_scores,
            [(c.edit, c.fate, c.reason, [(t.task_id, t.gain, t.status) for t in c.trials]) for c in one.candidates],
            None if one.confirmation is None else one.confirmation.decision.to_dict(),
        )
        for one in result.rounds
    ]


@pytest.mark.parametrize("at", KILLED_AT)
def test_a_killed_run_resumes_with_the_same_decisions_and_pays_for_no_finished_step_twice(killed_runs, learned, at):
    expected, program, calls_of_whole = learned
    optimizer, resumed, calls = learn(adviser_reply([REVISION_SKILL]), log_dir=killed_runs / str(at))
    assert decided(optimizer.last_result) == decided(expected.last_result)
    assert resumed.graph == program.graph
    assert optimizer.last_result.spend.metric_calls == expected.last_result.spend.metric_calls
    # Only the run or the pair that was in flight is paid for again.
    pairs = [*expected.last_result.trials, *expected.last_result.rounds[0].confirmation.pairs]
    assert (at - 1) + calls - calls_of_whole <= max(pair.parent.lm_calls + pair.edited.lm_calls for pair in pairs)


def test_a_finished_run_costs_nothing_to_run_again(tmp_path):
    first, program, _ = learn(adviser_reply([REVISION_SKILL]), log_dir=tmp_path)
    again, same, calls = learn(adviser_reply([REVISION_SKILL]), log_dir=tmp_path)
    assert calls == 0
    assert decided(again.last_result) == decided(first.last_result)
    assert same.graph == program.graph


def test_a_spent_budget_leaves_the_graph_as_it_was():
    optimizer, program, _ = learn(adviser_reply([REVISION_SKILL]), budget=Budget(max_metric_calls=20))
    assert optimizer.last_result.stop_reason == "budget"
    assert program.graph == make_agent().graph
