"""The learner in its surroundings: threads, loops, streams, callbacks, logs, and a light import."""

import asyncio
import logging
import threading

import dspy
import pytest

import dspy_evocue
from dspy_combee.testing import scripted_lm
from dspy_evocue.call_sites import CallSite
from dspy_evocue.evocue import EvoCUE
from dspy_evocue.proposal_checks import ProposedEdit
from dspy_evocue.proposer import Proposals
from dspy_evocue.testing import chat_reply, scripted_agent_lm


def test_four_at_once_see_only_their_own_models(bed):
    results = {}

    def one(number):
        hint = f"Hint number {number}."
        lm = bed.task_lm(lambda prompt, _: bed.answer(prompt, hint=hint))
        optimizer = bed.optimizer(adviser=bed.adviser([bed.candidate(hint)]), max_rounds=1, num_threads=2)
        program, engine = bed.compile(optimizer, lm=lm)
        results[number] = [edit.text for edit in program.evocue.edits], engine.prompts

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        texts, prompts = results[number]
        assert texts == [f"Hint number {number}."]
        others = [f"Hint number {other}." for other in range(4) if other != number]
        assert not [prompt for prompt in prompts if any(hint in prompt for hint in others)]


def test_it_runs_inside_a_running_loop_and_leaves_the_settings_alone(bed):
    before = dict(dspy.settings.copy())

    async def main():
        return bed.compile(bed.optimizer(max_rounds=1))[0]

    program = asyncio.run(main())
    assert len(program.evocue.edits) == 1
    assert dict(dspy.settings.copy()) == before


def test_nothing_is_streamed_where_a_streaming_app_compiles(bed, streamed):
    judge = scripted_lm(lambda prompt, number: chat_reply(verdict="yes"))

    def metric(example, prediction, trace=None):
        with dspy.context(lm=judge):
            dspy.Predict("answer -> verdict")(answer=prediction.answer)
        return bed.metric(example, prediction)

    with streamed.context():
        program, _ = bed.compile(bed.optimizer(metric=metric, max_rounds=1))
    assert len(program.evocue.edits) == 1
    assert judge.engine.calls > 0
    assert streamed.chunks == []


def test_usage_that_the_user_tracks_is_what_the_run_spent(bed):
    optimizer = bed.optimizer(max_rounds=1)
    with dspy.context(track_usage=True), dspy.track_usage() as tracker:
        bed.compile(optimizer)
    assert sum(len(calls) for calls in tracker.usage_data.values()) == optimizer.last_result.spend.lm_calls > 0


def test_one_info_line_a_round(bed, caplog):
    optimizer = bed.optimizer(adviser=bed.adviser([]), max_rounds=2)
    with caplog.at_level(logging.INFO):
        bed.compile(optimizer)
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("dspy_") and r.levelno == logging.INFO]
    assert [line.split(":")[0] for line in ours] == ["Round 1", "Round 2"]


def test_it_fires_dspys_compile_callbacks(bed):
    events = []

    class Watch(dspy.utils.callback.BaseCallback):
        def on_compile_start(self, call_id, instance, inputs):
            events.append(type(instance).__name__)

        def on_compile_end(self, call_id, outputs, exception):
            events.append(type(exception).__name__)

    with dspy.context(callbacks=[Watch()]), pytest.raises(ValueError, match="at least one example"):
        bed.optimizer().compile(bed.program(), trainset=[])
    assert events == ["EvoCUE", "ValueError"]


def test_tools_with_a_state_and_no_environment_are_noticed_and_the_remedy_is_named():
    class Counter:
        def __init__(self):
            self.count = 0

        def tick(self) -> str:
            """Count."""
            self.count += 1
            return f"count {self.count}"

    agent = dspy.ReAct("question -> answer", tools=[Counter().tick])
    policy = lambda turn: ("tick", {}) if turn.step < 2 else ("finish", {})  # noqa: E731
    edit = ProposedEdit("Be careful.", (CallSite("tool:tick", "react"),))

    class Fixed:
        def propose(self, request):
            return Proposals((edit,))

    optimizer = EvoCUE(
        lambda gold, pred: 0.0, proposer=Fixed(), max_cards=0, max_rounds=1, num_threads=1, progress=False
    )
    judge = scripted_lm(lambda prompt, number: chat_reply(requirements="[]"))
    optimizer.reflection_lm = judge
    tasks = [dspy.Example(question=f"q{n}").with_inputs("question") for n in range(20)]
    with dspy.context(lm=scripted_agent_lm(policy)):
        optimizer.compile(agent, trainset=tasks)
    result = optimizer.last_result
    assert {trial.status for trial in result.trials} == {"unresolved"}
    assert "give environment= (deepcopy_environment" in result.explain()


def test_the_package_exports_every_promised_name_without_importing_dspy():
    import subprocess
    import sys

    code = (
        "import sys, dspy_evocue\n"
        "assert 'dspy' not in sys.modules\n"
        "for name in dspy_evocue.__all__: getattr(dspy_evocue, name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    promised = {"EvoCUE", "CallSite", "InstructionEdit", "SkillEdit", "Rule", "paired_trial", "list_sites", "load"}
    assert promised <= set(dspy_evocue.__all__)
