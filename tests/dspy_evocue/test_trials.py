"""Paired trials: both arms go on from the same checkpoint, and differ in the edit alone."""

import json

import dspy
import pytest
from house import EXAMPLE, FIRST, LESSON, RECURRING, House, PlainEnvironment, locked, resident, resident_lm

from dspy_combee.testing import scripted_lm
from dspy_evocue import (
    CallSite,
    InstructionEdit,
    Rule,
    TrialRecord,
    attach,
    deepcopy_environment,
    paired_trial,
    record_runs,
    reexecuting_environment,
)
from dspy_evocue.testing import chat_reply, scripted_agent_lm

ENVIRONMENTS = {
    "deepcopy": deepcopy_environment,
    "re-execution": lambda house: reexecuting_environment(House),
    "snapshots by hand": PlainEnvironment,
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_lesson_helps_where_it_is_read_late_with_every_way_to_restore(name):
    house = House()
    with dspy.context(lm=resident_lm()):
        trial = paired_trial(resident(house), RECURRING, EXAMPLE, locked(house), environment=ENVIRONMENTS[name](house))
    assert (trial.status, trial.before, trial.after, trial.gain) == ("applied", 0.0, 1.0, 1.0)
    assert (trial.kind, trial.site, trial.checkpoint) == ("matched_prefix", "tool:walk -> react", 2)
    assert trial.features["visit"] == "recurring"


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_same_lesson_on_the_first_entry_changes_nothing(name):
    house = House()
    with dspy.context(lm=resident_lm()):
        trial = paired_trial(resident(house), FIRST, EXAMPLE, locked(house), environment=ENVIRONMENTS[name](house))
    assert (trial.status, trial.before, trial.after, trial.changes) == ("applied", 0.0, 0.0, ())
    assert not trial.evidence.is_usable


def test_recorded_observations_on_a_stateful_tool_are_caught_by_the_control_check():
    house = House()
    with dspy.context(lm=resident_lm()):
        trial = paired_trial(resident(house), RECURRING, EXAMPLE, locked(house))
    assert trial.status == "unresolved"
    assert trial.before is None
    assert trial.after is None
    assert "control check" in trial.reason
    assert "tool:walk" in trial.reason


def test_neither_model_nor_tool_is_called_before_the_checkpoint():
    calls = []

    def ask(what: str) -> str:
        """Ask."""
        calls.append(what)
        return f"about {what}"

    lm = scripted_agent_lm(lambda turn: ("ask", {"what": f"n{turn.step}"}) if turn.step < 4 else ("finish", {}))
    agent = dspy.ReAct("question -> answer", tools=[ask])
    late = InstructionEdit(at=CallSite("tool:ask", "react"), text=LESSON, when=Rule.of(visit="late"))
    with dspy.context(lm=lm):
        (recording,) = record_runs(agent, [EXAMPLE], lambda gold, pred: 1.0, num_threads=1)
        before, called = lm.engine.calls, len(calls)
        trial = paired_trial(agent, late, EXAMPLE, lambda gold, pred: 1.0, recording=recording)
    assert called == 4
    assert len(calls) == 4
    assert lm.engine.calls - before == 4
    assert (trial.prefix.lm_calls, trial.parent.lm_calls, trial.edited.lm_calls) == (4, 2, 2)
    assert trial.prefix.total_tokens > 0


def test_a_failed_tool_call_in_the_prefix_is_replayed_as_it_was():
    def ask(what: str) -> str:
        """Ask."""
        if what == "n1":
            raise LookupError("no such thing")
        return f"about {what}"

    lm = scripted_agent_lm(lambda turn: ("ask", {"what": f"n{turn.step}"}) if turn.step < 4 else ("finish", {}))
    agent = dspy.ReAct("question -> answer", tools=[ask])
    late = InstructionEdit(at=CallSite("*", "react"), text=LESSON, when=Rule.of(visit="late"))
    with dspy.context(lm=lm):
        trial = paired_trial(agent, late, EXAMPLE, lambda gold, pred: 1.0)
    assert (trial.status, trial.checkpoint, trial.reason) == ("applied", 8, "")


def test_an_edge_that_is_never_entered_is_unreached_and_costs_no_arm():
    house, lm = House(), resident_lm()
    edit = InstructionEdit(at=CallSite("extract.predict", "react"), text=LESSON)
    with dspy.context(lm=lm):
        trial = paired_trial(resident(house), edit, EXAMPLE, locked(house), environment=deepcopy_environment(house))
    assert (trial.status, trial.after) == ("unreached", None)
    assert lm.engine.calls == trial.recording.lm_calls


def test_a_rule_that_never_holds_is_skipped():
    house = House()
    edit = InstructionEdit(at=CallSite("*", "react"), text=LESSON, when=Rule.of(last_tool="lock"))
    with dspy.context(lm=resident_lm()):
        trial = paired_trial(resident(house), edit, EXAMPLE, locked(house), environment=deepcopy_environment(house))
    assert (trial.status, trial.reason) == ("skipped", "the edge was entered, but the rule never held")


def test_a_trial_from_the_start_runs_both_programs_and_carries_no_features():
    house = House()
    with dspy.context(lm=resident_lm()):
        trial = paired_trial(
            resident(house), RECURRING, EXAMPLE, locked(house), environment=deepcopy_environment(house), from_start=True
        )
    assert (trial.kind, trial.status, trial.gain, dict(trial.features)) == ("task_start", "applied", 1.0, {})
    assert trial.prefix.lm_calls == trial.recording.lm_calls == 0


def test_a_trial_from_the_start_that_never_reaches_the_edge_says_so():
    edit = InstructionEdit(at=CallSite("extract.predict", "react"), text=LESSON)
    house = House()
    with dspy.context(lm=resident_lm()):
        trial = paired_trial(
            resident(house), edit, EXAMPLE, locked(house), environment=deepcopy_environment(house), from_start=True
        )
    assert trial.status == "unreached"


def test_the_metric_is_called_once_a_rollout():
    calls = []

    def metric(gold, pred):
        calls.append(pred.answer)
        return {"score": 1.0, "feedback": f"judged {pred.answer}"}

    edit = InstructionEdit(at=CallSite("START", "self"), text=LESSON)
    lm = scripted_lm(lambda prompt, number: chat_reply(answer="with" if LESSON in prompt else "without"))
    with dspy.context(lm=lm):
        trial = paired_trial(dspy.Predict("question -> answer"), edit, EXAMPLE, metric)
    assert calls == ["without", "without", "with"]
    assert trial.feedback == ("judged without", "judged with")


def test_both_arms_share_a_rollout_id_and_another_pair_gets_another():
    lm = scripted_lm(lambda prompt, number: chat_reply(answer=f"sample {number}"), cache=True, temperature=1.0)
    edit = InstructionEdit(at=CallSite("START", "self"), text=LESSON)
    program = dspy.Predict("question -> answer")

    def ids(trial):
        return [entry["kwargs"].get("rollout_id") for entry in lm.history]

    with dspy.context(lm=lm):
        (recording,) = record_runs(program, [EXAMPLE], lambda gold, pred: 1.0, num_threads=1)
        first = paired_trial(program, edit, EXAMPLE, lambda g, p: 1.0, recording=recording, rollout_id=1)
        second = paired_trial(program, edit, EXAMPLE, lambda g, p: 1.0, recording=recording, rollout_id=2)
        calls = lm.engine.calls
        again = paired_trial(program, edit, EXAMPLE, lambda g, p: 1.0, recording=recording, rollout_id=1)
    assert calls == 5
    assert lm.engine.calls == 5
    assert ids(first)[:5] == [None, 1, 1, 2, 2]
    assert (again.parent.lm_calls, again.parent.cached_calls) == (0, 1)
    assert outcome(again) == outcome(first)
    assert second.changes != first.changes


def outcome(trial):
    spent = ("seconds", "recording", "prefix", "parent", "edited")
    return {name: value for name, value in trial.to_dict().items() if name not in spent}


def test_samples_inside_one_program_stay_distinct_under_a_rollout_id():
    program = dspy.BestOfN(dspy.Predict("question -> answer"), N=3, reward_fn=lambda a, p: 0.0, threshold=1.0)
    lm = scripted_lm(lambda prompt, number: chat_reply(answer=f"sample {number}"), cache=True, temperature=1.0)
    edit = InstructionEdit(at=CallSite("*", "module"), text=LESSON)
    with dspy.context(lm=lm):
        trial = paired_trial(program, edit, EXAMPLE, lambda gold, pred: 1.0)
    assert lm.engine.calls == 9
    assert trial.status == "applied"


def test_no_rollout_id_is_sent_at_temperature_zero():
    lm = scripted_lm(lambda prompt, number: chat_reply(answer="a"), cache=True, temperature=0)
    edit = InstructionEdit(at=CallSite("START", "self"), text=LESSON)
    with dspy.context(lm=lm):
        paired_trial(dspy.Predict("question -> answer"), edit, EXAMPLE, lambda gold, pred: 1.0)
    assert lm.engine.calls == 2


def test_the_trial_of_a_program_with_edits_keeps_them_in_both_arms():
    house = House()
    old = InstructionEdit(at=CallSite("START", "react"), text="An older lesson.")
    program = attach(resident(house), old)
    lm = resident_lm()
    with dspy.context(lm=lm):
        trial = paired_trial(program, RECURRING, EXAMPLE, locked(house), environment=deepcopy_environment(house))
    assert trial.gain == 1.0
    assert program.evocue.edits == (old,)


def test_the_program_and_its_world_are_as_before_after_a_trial():
    house = House()
    agent = resident(house)
    with dspy.context(lm=resident_lm()):
        paired_trial(agent, RECURRING, EXAMPLE, locked(house), environment=deepcopy_environment(house))
    assert (house.log, house.is_locked, house.has_left) == ([], False, False)
    assert {type(predictor) for predictor in agent.predictors()} == {dspy.Predict}
    assert {type(tool) for tool in agent.tools.values()} == {dspy.Tool}
    assert not [name for name in vars(agent.react) if "evocue" in name]


def test_a_checkpoint_inside_a_fork_moves_back_to_the_fork():
    class Fan(dspy.Module):
        def __init__(self):
            super().__init__()
            self.plan = dspy.Predict("question -> plan")
            self.part = dspy.Predict("plan -> draft")
            self.merge = dspy.Predict("draft -> answer")

        def forward(self, question):
            plan = self.plan(question=question).plan
            pairs = [(self.part, {"plan": f"{plan} {index}"}) for index in range(4)]
            drafts = dspy.Parallel(num_threads=4, disable_progress_bar=True)(pairs)
            return self.merge(draft=" ".join(sorted(draft.draft for draft in drafts)))

    def reply(prompt, number):
        answer = "better" if "better" in prompt else "same"
        return chat_reply(plan="p", draft="better" if LESSON in prompt else "draft", answer=answer)

    lm = scripted_lm(reply)
    inside = InstructionEdit(at=CallSite("plan", "part"), text=LESSON)
    after = InstructionEdit(at=CallSite("JOIN", "merge"), text=LESSON)
    metric = lambda gold, pred: float("better" in pred.answer)  # noqa: E731
    with dspy.context(lm=lm):
        in_fork = paired_trial(Fan(), inside, EXAMPLE, metric)
        at_join = paired_trial(Fan(), after, EXAMPLE, metric)
    assert (in_fork.status, in_fork.gain, in_fork.checkpoint) == ("applied", 1.0, 1)
    assert (in_fork.prefix.lm_calls, in_fork.parent.lm_calls) == (1, 5)
    assert (at_join.status, at_join.checkpoint) == ("applied", 5)
    assert (at_join.prefix.lm_calls, at_join.parent.lm_calls) == (5, 1)


def test_a_checkpoint_inside_a_tool_moves_back_to_the_tool_call():
    helper = dspy.Predict("question -> draft")

    class Delegating(dspy.Module):
        def __init__(self):
            super().__init__()
            self.helper = helper
            self.agent = dspy.ReAct("question -> answer", tools=[self.delegate])

        def delegate(self, what: str) -> str:
            """Delegate."""
            return self.helper(question=what).draft

        def forward(self, question):
            return self.agent(question=question)

    def reply(prompt, number):
        if "next_tool_name" in prompt:
            tool = ("finish", "{}") if "observation_0" in prompt else ("delegate", '{"what": "w"}')
            return chat_reply(next_thought="t", next_tool_name=tool[0], next_tool_args=tool[1])
        if "[[ ## draft ## ]]" in prompt:
            return chat_reply(draft="good" if LESSON in prompt else "bad")
        return chat_reply(reasoning="r", answer="good" if "good" in prompt else "bad")

    edit = InstructionEdit(at=CallSite("tool:delegate", "helper"), text=LESSON)
    with dspy.context(lm=scripted_lm(reply)):
        trial = paired_trial(Delegating(), edit, EXAMPLE, lambda gold, pred: float(pred.answer == "good"))
    assert (trial.status, trial.gain, trial.checkpoint) == ("applied", 1.0, 1)
    assert (trial.prefix.lm_calls, trial.parent.lm_calls) == (1, 3)


def test_a_record_survives_json():
    house = House()
    with dspy.context(lm=resident_lm()):
        trial = paired_trial(
            resident(house), RECURRING, EXAMPLE, locked(house), environment=deepcopy_environment(house)
        )
    assert TrialRecord.from_dict(json.loads(json.dumps(trial.to_dict()))) == trial
    assert "applied" in trial._repr_html_()


def test_a_feature_of_the_users_own_decides_where_the_edit_acts():
    def room(state):
        return str(state.last_arguments and state.last_arguments.get("room"))

    house = House()
    edit = InstructionEdit(at=CallSite("*", "react"), text=LESSON, when=Rule.of(room="room 2"))
    with dspy.context(lm=resident_lm()):
        trial = paired_trial(
            resident(house), edit, EXAMPLE, locked(house), environment=deepcopy_environment(house), features=[room]
        )
    assert (trial.gain, trial.checkpoint, trial.features["room"]) == (1.0, 6, "room 2")
