import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.runtime.budget import Spend
from dspy_evocue.comparison import ArmOutcome, ComparedTask, ResultIdentity, compare_outcomes


def task(task_id, before, after, scenario=None):
    return ComparedTask(task_id, ArmOutcome(before), ArmOutcome(after), scenario)


def compare(*tasks, **settings):
    return compare_outcomes(tasks, rng=random.Random(3), **settings)


def test_a_comparison_counts_better_worse_and_equal():
    result = compare(task("a", 0.0, 1.0), task("b", 1.0, 0.5), task("c", 1.0, 1.0))
    assert (result.counts.wins, result.counts.losses, result.counts.ties) == (1, 1, 1)
    assert result.mean_gain == pytest.approx(0.5 / 3)
    assert (result.before_rate, result.after_rate) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert result.after_mean == pytest.approx(2.5 / 3)


def test_a_missing_score_drops_the_task_on_both_sides_and_is_reported():
    result = compare(task("a", 1.0, None), task("b", None, 0.0), task("c", 0.0, 1.0))
    assert result.missing == ("a", "b")
    assert (result.before_mean, result.after_mean, result.counts.pairs) == (0.0, 1.0, 1)
    assert "2 missing" in str(result)


def test_a_scenario_counts_only_if_all_its_tasks_do():
    result = compare(
        task("a", 1.0, 1.0, "s"), task("b", 0.0, 1.0, "s"), task("c", 1.0, 1.0, "t"), task("d", 1.0, 0.9, "t")
    )
    assert result.scenarios is not None
    assert (result.scenarios.scenarios, result.scenarios.before, result.scenarios.after) == (2, 1, 1)


def test_a_scenario_with_a_missing_score_is_left_out_not_failed():
    result = compare(task("a", 1.0, 1.0, "s"), task("b", 1.0, None, "s"), task("c", 0.0, 1.0, "t"))
    assert result.scenarios is not None
    assert (result.scenarios.scenarios, result.scenarios.after, result.scenarios.incomplete) == (1, 1, 1)
    assert compare(task("a", 1.0, 1.0)).scenarios is None


def test_calls_of_unknown_usage_are_counted_apart():
    known = ArmOutcome(1.0, spend=Spend(lm_calls=2, input_tokens=30, output_tokens=5))
    unknown = ArmOutcome(None, spend=Spend(lm_calls=3, input_tokens=10, output_tokens=1, calls_without_usage=2))
    result = compare(ComparedTask("a", known, unknown), ComparedTask("b", known, known))
    assert result.before_spend == Spend(lm_calls=4, input_tokens=60, output_tokens=10)
    assert str(result).endswith(
        "tokens before: 60 in, 10 out in 4 calls; after: 40 in, 6 out in 5 calls, 2 calls of unknown usage"
    )


def test_a_learning_task_in_the_evaluation_is_reported():
    identity = ResultIdentity(data_roles={"tried": ("a",), "confirmed": ("z",), "evaluated": ("a", "b")})
    result = compare(task("a", 0.0, 1.0), task("a#2", 0.0, 1.0), task("b", 0.0, 1.0), identity=identity)
    assert result.learned_from == ("a", "a#2")
    assert "2 of these tasks were used for learning" in str(result)


def test_the_interval_is_seeded_and_holds_the_mean():
    tasks = [task(f"t{n}", 0.0, float(n % 3 > 0)) for n in range(30)]
    result = compare(*tasks)
    assert result.interval == compare(*tasks).interval
    assert result.interval is not None
    assert result.interval.low < result.mean_gain < result.interval.high


def test_no_pair_is_said_and_is_no_zero():
    result = compare(task("a", None, 1.0))
    assert (result.before_mean, result.before_rate, result.interval, result.mean_gain) == (None, None, None, None)
    assert str(result) == "no task has both scores (1 missing)"


def test_a_comparison_is_plain_json():
    identity = ResultIdentity({"dspy": "3.4.1"}, (0,), "abc", {"tried": ("x",)}, {"before": "1", "after": "2"})
    record = compare(task("a", 0.0, 1.0, "s"), task("b", None, 1.0), identity=identity).to_dict()
    assert json.loads(json.dumps(record)) == record
    assert record["identity"]["artifact_sha256"] == {"before": "1", "after": "2"}


def test_odd_input_is_refused():
    with pytest.raises(ValueError, match="task ids must be distinct, got 'a' twice"):
        compare(task("a", 0.0, 1.0), task("a", 0.0, 1.0))
    with pytest.raises(ValueError, match="score must be a finite number or None, got inf"):
        ArmOutcome(float("inf"))


scores = st.sampled_from([None, 0.0, 0.5, 1.0])


@given(st.lists(st.tuples(scores, scores), max_size=12), st.integers(0, 99))
def test_swapping_the_programs_turns_the_gain_around(pairs, seed):
    one = compare_outcomes([task(str(n), b, a) for n, (b, a) in enumerate(pairs)], rng=random.Random(seed))
    other = compare_outcomes([task(str(n), a, b) for n, (b, a) in enumerate(pairs)], rng=random.Random(seed))
    assert (one.counts.wins, one.counts.losses) == (other.counts.losses, other.counts.wins)
    assert one.missing == other.missing
    assert one.before_mean == other.after_mean
