import json
import re

import dspy
import pytest

from dspy_combee.judge import Judgement, judge_lessons
from dspy_combee.provenance import RecordSource
from dspy_combee.runtime.execution.threads import ThreadExecutor
from dspy_combee.testing import scripted_lm

RULES = [(f"r{n}", f"When item {n} is late, the code is K-{n}7.") for n in range(1, 8)]


def judging(prompt, _):
    """A judge that compares codes and conditions word for word."""
    lessons, reflections = prompt.rsplit("[[ ## reflections ## ]]", 1)
    verdicts = []
    for rid, number, code in re.findall(r"\[(r\d+)\]\nWhen item (\d) is late, the code is (K-\d+)\.", reflections):
        has_code, has_item = code in lessons.rsplit("[[ ## lessons ## ]]")[-1], f"item {number}" in lessons
        covered = "fully" if has_code and has_item else "partly" if has_code or has_item else "no"
        verdicts.append({"record_id": rid, "covered": covered, "specific": "specific" if has_code else "generic"})
    return f"[[ ## verdicts ## ]]\n{json.dumps(verdicts)}"


def judge(lessons, reply=judging, **settings):
    lm = scripted_lm(reply)
    return judge_lessons(lessons, RULES, lm=lm, executor=ThreadExecutor(2), **settings), lm.engine


def test_coverage_and_specificity_are_counted_over_all_groups():
    judgement, engine = judge("item 1: K-17\nitem 2: K-27\nbe careful with item 3")
    assert judgement == Judgement(fully=2, partly=1, missing=4, generic=1, fully_covered=("r1", "r2"))
    assert judgement.coverage == pytest.approx(2.5 / 7)
    assert judgement.specificity == pytest.approx(2 / 3)
    assert engine.calls == 2


def test_nothing_covered_has_no_specificity():
    judgement, _ = judge("Be careful.")
    assert (judgement.coverage, judgement.specificity) == (0.0, None)


def test_a_failed_call_and_an_invented_record_are_no_verdicts():
    def reply(prompt, number):
        if "[r1]" in prompt:
            return "[[ ## verdicts ## ]]\n" + json.dumps(
                [{"record_id": rid, "covered": "fully", "specific": "specific"} for rid in ("[R1]", "r99", "r1")]
            )
        return ValueError("no judgement today")

    judgement, _ = judge("item 1: K-17", reply, group_size=2)
    assert (judgement.fully, judgement.missing) == (1, 0)
    assert judgement.unjudged == tuple(f"r{n}" for n in range(2, 8))
    assert Judgement(0, 0, 0, 0).coverage is None


def test_the_sources_of_a_result_are_reflections_too():
    sources = [RecordSource(rid, None, 0.0, text) for rid, text in RULES]
    with dspy.context(lm=scripted_lm(judging)):
        assert judge_lessons("item 1: K-17", sources).fully == 1


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="at least one, got none"):
        judge_lessons("x", [])
    with pytest.raises(ValueError, match="group_size must be at least 1, got 0"):
        judge_lessons("x", RULES, group_size=0)
