"""What every aggregation promises, and what each baseline does with its reflections."""

import random
import re

import dspy
import pytest

from dspy_combee.aggregation import NAMES, make_aggregation
from dspy_combee.aggregation.base import AggregationJob
from dspy_combee.aggregation.hierarchical import Hierarchical
from dspy_combee.aggregation.salvage import Salvage
from dspy_combee.aggregation.scan import Scan
from dspy_combee.aggregation.summarize import Summarize
from dspy_combee.aggregation.top_k import TopK
from dspy_combee.learners.base import Entry, Reflection, TextUpdate
from dspy_combee.runtime.execution.threads import ThreadExecutor
from dspy_combee.testing import scripted_lm


class Recorder:
    """A curate call that passes on what it is shown, and remembers it."""

    def __init__(self):
        self.seen = []

    def __call__(self, reflections):
        self.seen.append([reflection.text for reflection in reflections])
        if reflections[0].update is not None:
            return TextUpdate(tuple(entry for r in reflections for entry in r.update.entries))
        return TextUpdate(tuple(Entry(r.text, r.record_ids) for r in reflections))


def job(count, curate, **options):
    topics = ("round money to cents", "cite the page", "answer in French")
    reflections = tuple(Reflection(f"{topics[i % 3]} {i}", (f"r{i}",), "self") for i in range(count))
    return AggregationJob("self", reflections, curate, **options)


def summarizer(prompt, _):
    shown = prompt.split("[[ ## reflections ## ]]")[-1]
    return "[[ ## summary ## ]]\nsummary of " + " ".join(re.findall(r"\[(r[\d, r]+)\]", shown))


def aggregate(aggregation, jobs, reply=summarizer):
    lm = scripted_lm(reply)
    with dspy.context(lm=lm):
        return aggregation.aggregate(jobs, executor=ThreadExecutor(4), rng=random.Random(0)), lm.engine


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_one_result_a_job_in_order_with_as_many_calls_as_announced(name, count):
    aggregation = make_aggregation(name)
    jobs = [job(count, Recorder()), AggregationJob("other", (), Recorder())]
    results, _ = aggregate(aggregation, jobs)
    assert aggregation.name == name
    assert [result.component for result in results] == ["self", "other"]
    assert len(results[0].calls) == aggregation.calls_for(count)
    assert (results[0].update is not None) == (count > 0)
    assert results[1].update is None


@pytest.mark.parametrize("name", NAMES)
def test_a_failing_call_loses_nothing_else_and_never_raises(name):
    def broken(reflections):
        raise ValueError("no")

    (failed, worked), _ = aggregate(make_aggregation(name), [job(4, broken), job(4, Recorder())])
    assert failed.update is None
    assert failed.uncited == ("r0", "r1", "r2", "r3")
    assert any(call.error for call in failed.calls)
    assert worked.update is not None


def test_summarize_shows_the_aggregation_call_one_summary_of_all():
    curate = Recorder()
    (result,), engine = aggregate(Summarize(), [job(3, curate)])
    assert curate.seen == [["summary of r0 r1 r2"]]
    assert engine.calls == 1
    assert [call.stage for call in result.calls] == ["summarize", "update"]


def test_when_the_summary_fails_the_reflections_themselves_are_read():
    curate = Recorder()
    (result,), _ = aggregate(Summarize(), [job(3, curate)], reply=lambda prompt, _: ValueError("down"))
    assert len(curate.seen[0]) == 3
    assert "down" in result.calls[0].error


def test_hierarchical_sums_up_each_alone_and_then_together():
    curate = Recorder()
    (result,), engine = aggregate(Hierarchical(), [job(3, curate)])
    assert engine.calls == 4
    assert curate.seen == [["summary of r0 r1 r2"]]
    assert [call.stage for call in result.calls] == ["summarize each"] * 3 + ["condense", "update"]


def test_top_k_reads_one_of_each_cluster_and_reports_the_others():
    curate = Recorder()
    (result,), engine = aggregate(TopK(), [job(9, curate)])
    assert sorted(text.rsplit(" ", 1)[0] for text in curate.seen[0]) == [
        "answer in French",
        "cite the page",
        "round money to cents",
    ]
    assert len(result.uncited) == 6
    assert engine.calls == 0


def test_top_k_takes_the_users_embedder_and_checks_it():
    curate = Recorder()
    aggregate(TopK(clusters=2, embedder=lambda texts: [[1.0, 0.0]] * 4 + [[0.0, 1.0]] * 5), [job(9, curate)])
    assert len(curate.seen[0]) == 2
    with pytest.raises(ValueError, match=r"one vector a text, got shape \(1, 1\) for 9"):
        aggregate(TopK(embedder=lambda texts: [[1.0]]), [job(9, curate)])


def test_the_learner_says_what_a_summary_must_carry():
    def condense(reflections, summary):
        return Reflection(
            summary, tuple(r for x in reflections for r in x.record_ids), details={"votes": len(reflections)}
        )

    seen = []

    def curate(reflections):
        seen.extend(reflection.details for reflection in reflections)
        return TextUpdate((Entry("x", ("r0",)),))

    aggregate(Summarize(), [job(5, curate, condense=condense)])
    assert seen == [{"votes": 5}]


class Forgetful(Recorder):
    """Misses what record r5 says in a group of several."""

    def __call__(self, reflections):
        update = super().__call__(reflections)
        is_crowded = reflections[0].update is None and len(reflections) > 1
        return TextUpdate(tuple(entry for entry in update.entries if not is_crowded or "r5" not in entry.record_ids))


@pytest.mark.parametrize("join", [None, lambda updates: TextUpdate(tuple(e for u in updates for e in u.entries))])
def test_what_no_line_cites_gets_one_more_pass(join):
    plain, _ = aggregate(Scan(duplication=1), [job(9, Forgetful(), join=join)])
    assert plain[0].uncited == ("r5",)
    salvaged, _ = aggregate(Salvage(Scan(duplication=1)), [job(9, Forgetful(), join=join)])
    assert salvaged[0].uncited == ()
    assert {r for entry in salvaged[0].update.entries for r in entry.record_ids} == {f"r{i}" for i in range(9)}
    assert salvaged[0].note == "1 of 1 uncited records were salvaged"
    assert len(salvaged[0].calls) <= Salvage(Scan(duplication=1)).calls_for(9)


def test_salvage_is_bounded_and_leaves_alone_what_cites_nothing():
    def citing_one(reflections):
        return TextUpdate((Entry("x", ("r0",)),))

    for count, merged in ((40, 1), (400, 1)):
        (result,), _ = aggregate(Salvage(Scan()), [job(count, citing_one)])
        stages = [call.stage for call in result.calls]
        assert stages.count("salvage, merged") == merged
        assert 2 <= stages.count("salvage") + merged <= max(2, stages.count("level 1") / 4)
    largest = max(len(call.record_ids) for call in result.calls if call.stage == "level 1")
    assert all(len(call.record_ids) <= largest for call in result.calls if call.stage == "salvage")
    (silent,), _ = aggregate(Salvage(Scan()), [job(40, lambda reflections: TextUpdate((Entry("x"),)))])
    assert "salvage" not in [call.stage for call in silent.calls]


def test_a_salvage_that_loses_more_than_it_finds_is_not_taken():
    class Rewriting(Forgetful):
        def __call__(self, reflections):
            update = super().__call__(reflections)
            is_salvage = any("r5" in reflection.record_ids for reflection in reflections[1:])
            return TextUpdate(update.entries[:1]) if reflections[0].update and is_salvage else update

    plain, _ = aggregate(Scan(duplication=1), [job(9, Rewriting())])
    (salvaged,), _ = aggregate(Salvage(Scan(duplication=1)), [job(9, Rewriting())])
    assert [call.stage for call in salvaged.calls][-1] == "salvage, merged"
    assert salvaged.update == plain[0].update


def test_wrong_numbers_are_named():
    with pytest.raises(ValueError, match="group_size must be at least 1, got 0"):
        Salvage(Scan(), group_size=0)
    with pytest.raises(ValueError, match="max_share must be above 0, got 0"):
        Salvage(Scan(), max_share=0)
    with pytest.raises(ValueError, match="clusters must be at least 1"):
        TopK(clusters=0)
