"""The learner as a whole: what it finds, what it refuses, what it says, and what never reaches a prompt."""

import json
import threading

import dspy
import pytest

import dspy_evocue
from dspy_combee.testing import scripted_lm
from dspy_evocue.acceptance import MeanGain
from dspy_evocue.call_sites import CallSite
from dspy_evocue.demo.office import OfficeDesk, office_agent, office_environment, office_metric, office_tasks
from dspy_evocue.demo.scripted import LESSON, adviser_lm, clerk_lm
from dspy_evocue.evocue import EvoCUE
from dspy_evocue.proposal_checks import ProposedEdit
from dspy_evocue.proposer import Proposals
from dspy_evocue.testing import chat_reply

ODD_TEXT = '{question} [[ ## answer ## ]] {{}} ```json {"a":1}``` <side_info> %s ${x} 请用中文 🙂'


def test_a_lesson_that_helps_is_confirmed_and_inherited(bed):
    optimizer = bed.optimizer()
    student = bed.program()
    program, _ = bed.compile(optimizer, program=student)
    (edit,) = program.evocue.edits
    assert (edit.text, edit.sites) == (bed.hint, (CallSite("START", "ask"),))
    result = optimizer.last_result
    assert result.stop_reason == "perfect"
    assert result.rounds[0].confirmation.decision.accepted
    assert result.rounds[1].mean_base_score == 1.0
    assert not hasattr(student, "evocue")
    assert student.ask.signature.instructions == program.ask.signature.instructions
    with dspy.context(lm=bed.task_lm()):
        assert program(question="q3").answer == "3"


def test_on_the_office_desk_the_lesson_is_inherited_on_the_recurring_entry():
    desk = OfficeDesk()
    adviser = adviser_lm()
    optimizer = EvoCUE(
        office_metric(desk),
        reflection_lm=adviser,
        environment=office_environment(desk),
        trial_tasks=5,
        proposal_tasks=7,
        max_rounds=1,
        num_threads=4,
        progress=False,
    )
    lm = clerk_lm()
    with dspy.context(lm=lm):
        program = optimizer.compile(office_agent(desk), trainset=office_tasks(20))
    first, recurring = optimizer.last_result.rounds[0].candidates
    assert (first.fate, recurring.fate) == ("rejected", "inherited")
    assert not any(trial.changes for trial in first.trials)
    assert {trial.kind for trial in recurring.trials} == {"matched_prefix"}
    assert [edit.sites for edit in program.evocue.edits] == [(CallSite("tool:*", "react"),)]
    react_prompts = [prompt for prompt in lm.engine.prompts if "next_tool_name" in prompt]
    assert all("Close a ticket." in prompt for prompt in react_prompts)
    assert any("It is read on the first entry only" in prompt for prompt in adviser.engine.prompts)
    assert desk.tickets == {}


def test_nothing_to_find_changes_nothing_and_says_so(bed):
    optimizer = bed.optimizer(adviser=bed.adviser([bed.candidate("Be careful.")]), max_rounds=2)
    program, _ = bed.compile(optimizer)
    result = optimizer.last_result
    assert (program.evocue.edits, result.edits, result.stop_reason) == ((), (), "completed")
    assert "No edit was inherited: the program is unchanged." in result.explain()
    assert result.rounds[0].candidates[0].fate == "rejected"
    with dspy.context(lm=bed.task_lm()):
        assert [program(question=f"q{n}").answer for n in (3, 4)] == ["wrong", "4"]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_coin_flip_metric_and_an_edit_that_does_nothing_inherit_nothing(bed, seed):
    coin = __import__("random").Random(seed)
    lock = threading.Lock()

    def coin_flip(example, prediction, trace=None):
        with lock:
            return float(coin.random() < 0.5)

    # Every answer differs, so that behaviour changes and the trials count.
    lm = scripted_lm(lambda prompt, number: chat_reply(answer=f"answer {number}"))
    optimizer = bed.optimizer(adviser=bed.adviser([bed.candidate("Be careful.")]), metric=coin_flip, seed=seed)
    program, _ = bed.compile(optimizer, lm=lm)
    assert program.evocue.edits == ()


def test_a_lesson_that_harms_is_dropped_early_and_the_saving_is_reported(bed):
    def spoilt(prompt, number):
        return chat_reply(answer="wrong") if "Guess." in prompt else bed.answer(prompt + bed.hint)

    optimizer = bed.optimizer(adviser=bed.adviser([bed.candidate("Guess.")]), max_rounds=1, trial_tasks=8)
    tasks = [*bed.tasks(23), dspy.Example(question="q99", answer="never").with_inputs("question")]
    bed.compile(optimizer, lm=bed.task_lm(spoilt), tasks=tasks)
    (candidate,) = optimizer.last_result.rounds[0].candidates
    assert candidate.fate == "rejected"
    assert len(candidate.trials) < candidate.planned_trials
    assert optimizer.last_result.savings.trials_not_run == candidate.planned_trials - len(candidate.trials)
    assert "stopped after" in candidate.reason


def test_labels_and_metric_internals_never_enter_a_prompt(bed):
    def metric(example, prediction, trace=None):
        if example.answer.endswith("7"):
            raise RuntimeError("CANARY-EXCEPTION")
        right = example.answer == f"CANARY-LABEL-{prediction.answer}"
        return dspy.Prediction(score=float(right), feedback=f"CANARY-FEEDBACK {example.answer}")

    tasks = [
        dspy.Example(question=f"q{n}", answer=f"CANARY-LABEL-{n}", secret="CANARY-FIELD").with_inputs("question")
        for n in range(24)
    ]
    adviser = bed.adviser([bed.candidate("Be careful.")], [bed.candidate()], [bed.candidate("Try hard.")])
    optimizer = bed.optimizer(adviser=adviser, metric=metric)
    _, engine = bed.compile(optimizer, tasks=tasks)
    assert adviser.engine.calls > 3
    assert any("Tried before:\n- e" in prompt for prompt in adviser.engine.prompts)
    assert not [prompt for prompt in adviser.engine.prompts + engine.prompts if "CANARY" in prompt]


def test_later_proposals_see_what_was_tried_and_ideas_as_untested_evidence(bed):
    adviser = bed.adviser([bed.candidate("Be careful.")], [bed.candidate()])
    optimizer = bed.optimizer(adviser=adviser, max_rounds=2, knowledge="Odd questions are the hard ones.")
    program, _ = bed.compile(optimizer)
    proposing = [prompt for prompt in adviser.engine.prompts if "untested_evidence" in prompt]
    assert "- idea of the user: Odd questions are the hard ones." in proposing[0]
    assert "Be careful." not in proposing[0]
    assert "(round 1) on START -> ask, scope call: Be careful." in proposing[1]
    assert "not accepted" in proposing[1]
    assert "- earlier hypothesis" not in proposing[0]
    assert "- earlier hypothesis: all are right" in proposing[1]
    assert [edit.text for edit in program.evocue.edits] == [bed.hint]


def test_confirmation_tasks_are_never_proposed_from_nor_tried(bed):
    optimizer = bed.optimizer(adviser=bed.adviser([bed.candidate("Be careful.")], [bed.candidate()]))
    bed.compile(optimizer)
    roles = optimizer.last_result.identity.data_roles
    assert roles["confirmed"]
    assert not set(roles["confirmed"]) & (set(roles["proposed"]) | set(roles["tried"]))


def test_a_valset_confirms_and_nothing_else(bed):
    optimizer = bed.optimizer()
    tasks = bed.tasks(24)
    bed.compile(optimizer, tasks=tasks[:8], valset=tasks[8:])
    roles = optimizer.last_result.identity.data_roles
    held_out = {dspy_evocue.trials.task_name(task) for task in tasks[8:]}
    assert set(roles["confirmed"]) <= held_out
    assert not set(roles["proposed"]) & held_out


def test_no_more_is_spent_than_estimated(bed):
    optimizer = bed.optimizer(adviser=bed.adviser([bed.candidate("Be careful.")], [bed.candidate()]))
    estimate = optimizer.estimate(bed.program(), trainset=bed.tasks())
    bed.compile(optimizer)
    result = optimizer.last_result
    assert 0 < result.spend.metric_calls <= estimate.metric_calls
    assert 0 < result.spend.lm_calls <= estimate.lm_calls
    assert sum(spend.lm_calls for spend in result.spend_by_stage.values()) == result.spend.lm_calls


def test_a_rerun_with_a_warm_cache_costs_nothing_and_decides_the_same(bed):
    lm, adviser = bed.task_lm(cache=True, temperature=1.0), bed.adviser(cache=True)
    decisions = []
    for _ in range(2):
        optimizer = bed.optimizer(adviser=adviser, num_threads=1)
        bed.compile(optimizer, lm=lm)
        decisions.append([one.to_dict() for one in optimizer.last_result.edits])
        calls = lm.engine.calls, adviser.engine.calls
    assert decisions[0] == decisions[1] != []
    assert optimizer.last_result.spend.lm_calls == 0
    assert calls == (lm.engine.calls, adviser.engine.calls)
    pairs = optimizer.last_result.rounds[0].confirmation.pairs
    assert len({pair.rollout_id for pair in pairs}) == len(pairs)


def test_odd_text_is_learned_saved_and_reported_unchanged(bed, tmp_path):
    def odd(prompt, number):
        return bed.answer(prompt.replace(ODD_TEXT, bed.hint))

    optimizer = bed.optimizer(adviser=bed.adviser([bed.candidate(ODD_TEXT)]))
    program, _ = bed.compile(optimizer, lm=bed.task_lm(odd))
    again, _ = bed.compile(bed.optimizer(), program=program, lm=bed.task_lm(odd))
    assert [edit.text for edit in again.evocue.edits] == [ODD_TEXT]
    program.save(tmp_path / "agent.json")
    optimizer.last_result.save(tmp_path / "result.json")
    optimizer.last_result.report(tmp_path / "result.html")
    assert dspy_evocue.load(bed.program(), tmp_path / "agent.json").evocue.edits == program.evocue.edits
    assert json.loads((tmp_path / "result.json").read_text())["edits"][0]["text"] == ODD_TEXT
    page = (tmp_path / "result.html").read_text(encoding="utf-8")
    assert "&lt;side_info&gt;" in page
    assert "<side_info>" not in page
    assert "<side_info>" not in optimizer.last_result._repr_html_()


def test_an_edit_can_be_explained_and_taken_away(bed):
    optimizer = bed.optimizer(track_stats=True)
    program, _ = bed.compile(optimizer)
    (edit,) = program.evocue.edits
    assert bed.hint in program.evocue.explain()
    explained = optimizer.last_result.explain()
    assert "The program has learned 1 edit:" in explained
    assert "better" in explained
    without = program.evocue.without(edit.edit_id)
    with dspy.context(lm=bed.task_lm()):
        assert (program(question="q3").answer, without(question="q3").answer) == ("3", "wrong")
    assert program.detailed_results is optimizer.last_result


def test_the_result_knows_what_not_to_be_compared_on(bed):
    optimizer = bed.optimizer()
    program, _ = bed.compile(optimizer)
    new = [dspy.Example(question=f"q{n}", answer=str(n)).with_inputs("question") for n in range(20, 40)]
    with dspy.context(lm=bed.task_lm()):
        comparison = dspy_evocue.compare(
            bed.program(),
            program,
            new,
            bed.metric,
            learned=optimizer.last_result.identity.data_roles,
            progress=False,
        )
    assert comparison.counts.wins == 15
    assert 0 < len(comparison.learned_from) <= 4


def test_a_second_compile_builds_on_the_first(bed):
    # The first lesson helps with the odd ones; what is left needs a second one beside it.
    def answer(prompt, number):
        question = int(prompt.rsplit("[[ ## question ## ]]\nq", 1)[1].split()[0])
        right = (question % 2 and bed.hint in prompt) or (question % 2 == 0 and "Mind the even ones." in prompt)
        return chat_reply(answer=str(question) if right else "wrong")

    lm = bed.task_lm(answer)
    program, _ = bed.compile(bed.optimizer(max_rounds=1), lm=lm)
    both = f"{bed.hint} Mind the even ones."
    adviser = bed.adviser([bed.candidate(both)])
    optimizer = bed.optimizer(
        adviser=adviser, max_rounds=1, proposal_tasks=12, trial_tasks=8, confirmation_tasks=8, acceptance="robust"
    )
    better, _ = bed.compile(optimizer, program=program, lm=lm)
    assert [edit.text for edit in better.evocue.edits] == [bed.hint, both]
    assert [edit.text for edit in optimizer.last_result.edits] == [both]
    assert any("The program carries these edits" in prompt for prompt in adviser.engine.prompts)


def test_a_proposer_of_ones_own_and_a_criterion_of_ones_own(bed):
    class Fixed:
        def propose(self, request):
            sites = tuple(use for use in request.sites)
            assert [use.target for use in sites] == ["ask"]
            return Proposals((ProposedEdit(bed.hint, (CallSite("START", "ask"),)), ProposedEdit("", ())))

    class Never(MeanGain):
        def judge(self, differences):
            verdict = super().judge(differences)
            return type(verdict)(False, "never is never")

    adviser = bed.adviser()
    optimizer = bed.optimizer(adviser=adviser, proposer=Fixed(), max_cards=0, acceptance=Never(), max_rounds=1)
    program, _ = bed.compile(optimizer)
    assert program.evocue.edits == ()
    assert optimizer.last_result.rounds[0].candidates[0].fate == "not confirmed"
    assert not any("untested_evidence" in prompt for prompt in adviser.engine.prompts)


def test_skills_are_tried_like_instructions(bed):
    skill = {"operations": [{"operation": "revise", "instruction": bed.hint}]}
    broken = bed.candidate("cook it", skill={"operations": [{"operation": "cook"}]})
    adviser = bed.adviser([bed.candidate("Revise the answer.", skill=skill), broken])
    optimizer = bed.optimizer(adviser=adviser, skills=True, max_rounds=1)

    program, _ = bed.compile(optimizer)
    (edit,) = program.evocue.edits
    assert edit.kind == "skill"
    assert "cook" in optimizer.last_result.rounds[0].refused[0][1]


def test_a_stretch_of_a_task_that_an_edit_repeats_is_reported(bed, caplog):
    leak = "the invoice of Acme Corporation in Springfield of last Tuesday was refunded in full"
    tasks = [
        dspy.Example(question=task.question, answer=task.answer, letter=f"Madam, {leak}.").with_inputs("question")
        for task in bed.tasks()
    ]
    optimizer = bed.optimizer(adviser=bed.adviser([bed.candidate(f"{bed.hint} Say that {leak} today.")]))
    bed.compile(optimizer, tasks=tasks)
    result = optimizer.last_result
    assert result.longest_shared_span.startswith(leak.removesuffix(" full"))
    assert f'"{result.longest_shared_span}"' in result.explain()
    assert result.to_dict()["longest_shared_span"] == result.longest_shared_span
    assert any("characters with the train set" in r.getMessage() for r in caplog.records)


def test_a_predictor_that_no_run_enters_is_named_and_not_offered_to_the_proposer(bed):
    class Branch(dspy.Module):
        def __init__(self):
            super().__init__()
            self.ask = dspy.Predict("question -> answer")
            self.rare = dspy.Predict("question -> answer")

        def forward(self, question):
            return self.ask(question=question)

    adviser = bed.adviser()
    optimizer = bed.optimizer(adviser=adviser, max_rounds=1)
    bed.compile(optimizer, program=Branch(), lm=bed.task_lm())
    assert "Never entered in 6 recorded runs: rare. Nothing is proposed for them." in optimizer.last_result.explain()
    (proposing,) = (prompt for prompt in adviser.engine.prompts if "untested_evidence" in prompt)
    assert "START -> ask" in proposing
    assert "rare" not in proposing


def test_the_lesson_of_the_demo_is_what_is_looked_for():
    assert "expense id" in LESSON
