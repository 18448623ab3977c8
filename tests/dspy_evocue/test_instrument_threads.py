"""Threads and tasks of one run fork and join, and runs at the same time do not mix."""

import asyncio
import concurrent.futures
import contextvars

import dspy
import pytest
from edited_programs import LESSON, Loop, answering_lm, lesson, seen

from dspy_evocue import CallSite, InstructionEdit, attach, list_sites


def test_evaluate_with_many_threads_on_one_object_injects_exactly_where_it_should():
    program = attach(Loop(), lesson("START", "write"))
    lm = answering_lm()
    devset = [dspy.Example(question=f"q{index}").with_inputs("question") for index in range(24)]
    with dspy.context(lm=lm):
        dspy.Evaluate(devset=devset, metric=lambda e, p: 1.0, num_threads=8, display_progress=False)(program)
    by_question = {}
    for prompt in lm.engine.prompts:
        by_question.setdefault(prompt.rpartition("q")[0], []).append(LESSON in prompt)
    assert len(lm.engine.prompts) == 72
    assert sum(seen(lm)) == 24


def test_parallel_workers_fork_from_the_last_node_and_join_afterwards():
    class Fan(dspy.Module):
        def __init__(self):
            super().__init__()
            self.plan = dspy.Predict("question -> plan")
            self.part = dspy.Predict("plan -> draft")
            self.merge = dspy.Predict("draft -> answer")

        def forward(self, question):
            plan = self.plan(question=question).plan
            pairs = [(self.part, {"plan": f"{plan} {index}"}) for index in range(5)]
            drafts = dspy.Parallel(num_threads=3, disable_progress_bar=True)(pairs)
            return self.merge(draft=" ".join(draft.draft for draft in drafts))

    example = dspy.Example(question="q").with_inputs("question")
    with dspy.context(lm=answering_lm()):
        sites = list_sites(Fan(), [example])
    assert {str(edge): edge.count for edge in sites.edges} == {
        "START -> plan": 1,
        "plan -> part": 5,
        "JOIN -> merge": 1,
    }


class Compound(dspy.Module):
    def __init__(self):
        super().__init__()
        self.draft = dspy.Predict("question -> draft")
        self.polish = dspy.Predict("draft -> summary")

    def forward(self, question):
        return self.polish(draft=self.draft(question=question).draft)


class Workers(dspy.Module):
    def __init__(self, run_all):
        super().__init__()
        self.part = Compound()
        self.merge = dspy.Predict("summary -> answer")
        self.run_all = run_all

    def forward(self, question):
        self.run_all(self.part, [f"{question} {index}" for index in range(6)])
        return self.merge(summary="s")


def in_dspys_own_workers(module, questions):
    dspy.Parallel(num_threads=2, disable_progress_bar=True)([(module, {"question": each}) for each in questions])


def in_threads_with_copied_contexts(module, questions):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(contextvars.copy_context().run, module, question=each) for each in questions]
        for call in calls:
            call.result()


@pytest.mark.parametrize("run_all", [in_dspys_own_workers, in_threads_with_copied_contexts])
def test_items_that_share_a_worker_thread_do_not_follow_each_other(run_all):
    example = dspy.Example(question="q").with_inputs("question")
    with dspy.context(lm=answering_lm()):
        sites = list_sites(Workers(run_all), [example])
    assert {str(edge): edge.count for edge in sites.edges} == {
        "START -> part.draft": 6,
        "part.draft -> part.polish": 6,
        "JOIN -> merge": 1,
    }


def test_a_single_hop_to_another_thread_is_no_fork():
    def one_hop(module, questions):
        in_threads_with_copied_contexts(module, questions[:1])

    example = dspy.Example(question="q").with_inputs("question")
    with dspy.context(lm=answering_lm()):
        sites = list_sites(Workers(one_hop), [example])
    assert CallSite("part.polish", "merge") in sites.sites


def test_asyncio_tasks_fork_and_join_and_twenty_runs_at_once_do_not_mix():
    class Gather(dspy.Module):
        def __init__(self):
            super().__init__()
            self.left = dspy.Predict("question -> draft")
            self.right = dspy.Predict("question -> summary")
            self.merge = dspy.Predict("draft, summary -> answer")

        async def aforward(self, question):
            left, right = await asyncio.gather(self.left.acall(question=question), self.right.acall(question=question))
            return await self.merge.acall(draft=left.draft, summary=right.summary)

    edits = [lesson("START", "left"), InstructionEdit(at=CallSite("JOIN", "merge"), text="Merge lesson.")]
    program = attach(Gather(), *edits)
    lm = answering_lm()

    async def twenty():
        await asyncio.gather(*(program.acall(question=f"q{index}") for index in range(20)))

    with dspy.context(lm=lm):
        asyncio.run(twenty())
    assert sum(seen(lm)) == 20
    assert sum("Merge lesson." in prompt for prompt in lm.engine.prompts) == 20


def test_asyncify_inside_gather_forks():
    class Gather(dspy.Module):
        def __init__(self):
            super().__init__()
            self.plan = dspy.Predict("question -> plan")
            self.part = dspy.Predict("plan -> draft")
            self.merge = dspy.Predict("question -> answer")

        async def aforward(self, question):
            await self.plan.acall(question=question)
            part = dspy.asyncify(self.part)
            await asyncio.gather(*(part(plan=f"p{index}") for index in range(3)))
            return await self.merge.acall(question=question)

    example = dspy.Example(question="q").with_inputs("question")
    with dspy.context(lm=answering_lm()):
        sites = list_sites(Gather(), [example])
    assert {str(edge): edge.count for edge in sites.edges} == {
        "START -> plan": 1,
        "plan -> part": 3,
        "JOIN -> merge": 1,
    }
