import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.seeding import branch_rng
from dspy_evocue.acceptance import (
    CRITERIA,
    DEFAULT_CRITERION,
    Anytime,
    Verdict,
    decide,
    find_criterion,
    for_run,
    should_stop,
)

binary = st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=16)
graded = st.lists(st.floats(-1, 1, allow_nan=False), min_size=1, max_size=16)


def test_mean_gain_accepts_a_positive_mean_only():
    assert decide("mean_gain", [1.0, -0.5, 0.0]).accepted
    assert not decide("mean_gain", [1.0, -1.0, 0.0]).accepted


@pytest.mark.parametrize(
    ("differences", "accepted", "reason"),
    [
        ([1.0, 0.5, 0.0], True, "survives without the largest"),
        ([1.0, 0.0, 0.0], False, "fewer than two tasks improved"),
        ([1.0, 0.2, -0.5], False, "without its largest gain the total is negative"),
        ([-1.0, 0.5, 0.5], False, "the mean gain is not positive"),
    ],
)
def test_robust_asks_for_two_gains_and_for_life_without_the_largest(differences, accepted, reason):
    decision = decide("robust", differences)
    assert decision.accepted is accepted
    assert reason in decision.reason


@pytest.mark.parametrize(("decisions", "wins_without_loss"), [(1, 4), (2, 5), (3, 6)])
@pytest.mark.parametrize("losses", [0, 1, 2, 3])
def test_anytime_needs_three_more_wins_for_each_loss(decisions, wins_without_loss, losses):
    criterion = for_run("anytime", decisions)
    needed = wins_without_loss + 3 * losses
    assert decide(criterion, [1.0] * needed + [-1.0] * losses).accepted
    assert not decide(criterion, [1.0] * (needed - 1) + [-1.0] * losses).accepted


def test_a_run_shares_its_alpha_between_its_decisions():
    assert for_run(Anytime(alpha=0.1, high=10), 4) == Anytime(alpha=0.025, high=10)
    assert for_run("robust", 4) == CRITERIA["robust"]
    with pytest.raises(ValueError, match="decisions must be at least 1, got 0"):
        for_run("anytime", 0)


@given(binary, st.integers(0, 10))
def test_anytime_learns_nothing_from_pairs_without_a_difference(differences, ties):
    one, other = decide("anytime", differences), decide("anytime", [*differences, *[0.0] * ties])
    assert one.accepted is other.accepted
    assert one.evidence == pytest.approx(other.evidence)


@given(graded, st.floats(0.01, 0.4))
def test_anytime_accepts_exactly_when_its_interval_is_above_zero(differences, alpha):
    decision = decide(Anytime(alpha=alpha), differences)
    assert decision.interval is not None
    assert decision.accepted is (decision.interval.low >= 0 and decision.evidence >= 1 / alpha * (1 - 1e-9))
    assert decision.interval.low <= decision.mean + 1e-9 <= decision.interval.high + 2e-9


def test_anytime_on_another_scale_decides_the_same():
    percent = decide(Anytime(high=100), [40.0, -20.0, 90.0])
    unit = decide("anytime", [0.4, -0.2, 0.9])
    assert percent.evidence == pytest.approx(unit.evidence)
    assert percent.interval.high == pytest.approx(100 * unit.interval.high)


def test_anytime_refuses_a_score_out_of_its_range():
    with pytest.raises(ValueError, match=r"scores must lie in \[0, 1\] .* got a difference of 40"):
        decide("anytime", [40.0])


def test_betting_on_signs_finds_many_small_gains_but_asks_for_a_positive_mean():
    assert not decide("anytime", [0.1] * 8).accepted
    assert decide(Anytime(stakes="signs"), [0.1] * 8).accepted
    hidden_loss = decide(Anytime(stakes="signs"), [0.05] * 12 + [-1.0])
    assert not hidden_loss.accepted
    assert "the mean gain is not positive" in hidden_loss.reason


@pytest.mark.parametrize("name", CRITERIA)
def test_missing_pairs_are_dropped_counted_and_said(name):
    decision = decide(name, [1.0, None, 1.0, 0.0])
    assert decision.counts == decide(name, [1.0, 1.0, 0.0, None]).counts
    assert decision.reason.endswith("(2 better, 0 worse, 1 equal, 1 missing).")


@pytest.mark.parametrize("name", CRITERIA)
def test_no_evidence_accepts_nothing(name):
    for nothing in ([], [None, None], [0.0] * 8):
        decision = decide(name, nothing)
        assert not decision.accepted
    assert decide(name, []).interval is None
    assert "no pair has both scores" in decide(name, []).reason


@given(st.sampled_from(list(CRITERIA)), graded, st.randoms())
def test_a_decision_does_not_depend_on_which_pair_finished_first(name, differences, shuffler):
    shuffled = list(differences)
    shuffler.shuffle(shuffled)
    assert decide(name, differences).accepted is decide(name, shuffled).accepted


def test_a_decision_is_plain_json():
    record = decide(Anytime(alpha=0.05), [1.0] * 5).to_dict()
    assert json.loads(json.dumps(record)) == record
    assert record["accepted"] is True
    assert record["evidence"] >= 20
    assert record["interval_level"] == 0.9


@dataclass(frozen=True)
class NoLoss:
    """A criterion that a user might write."""

    name: str = "no_loss"

    def judge(self, differences):
        return Verdict(min(differences) >= 0 and max(differences) > 0, "a pair got worse or none got better")


def test_any_object_with_a_name_and_a_judge_decides():
    assert decide(NoLoss(), [0.0, 1.0]).accepted
    assert not decide(NoLoss(), [0.0, -1.0]).accepted
    assert should_stop(NoLoss(), [-1.0], planned=8)


def test_what_is_no_criterion_is_refused():
    with pytest.raises(
        ValueError, match="acceptance must be one of mean_gain, robust, anytime or an object, got 'best'"
    ):
        find_criterion("best")
    with pytest.raises(TypeError, match="must have `name` and `judge"):
        find_criterion(3)  # pyright: ignore[reportArgumentType]
    assert find_criterion(DEFAULT_CRITERION).name == "anytime"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0}, "alpha must be between 0 and 1, got 0"),
        ({"low": 1.0}, "low must be a number below high, got low=1.0, high=1.0"),
        ({"high": float("inf")}, "low must be a number below high"),
        ({"stakes": "all"}, 'stakes must be "amounts" or "signs", got \'all\''),
    ],
)
def test_anytime_refuses_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Anytime(**settings)


def test_a_candidate_stops_when_even_gains_everywhere_would_not_do():
    assert should_stop("anytime", [0.0] * 5, planned=8, threshold=0)
    assert not should_stop("anytime", [0.0] * 4, planned=8, threshold=0)
    assert should_stop("mean_gain", [-1.0, -1.0, -1.0], planned=6, threshold=0)


def test_a_candidate_stops_when_it_would_need_too_much_luck():
    # Three of three gains are needed at hope 0.3: a chance of 2.7 %.
    assert should_stop("anytime", [1.0, 0.0, 0.0], planned=6, hope=0.3)
    assert not should_stop("anytime", [1.0, 0.0, 0.0], planned=6, hope=0.6)


@given(st.sampled_from(list(CRITERIA)), binary, st.integers(0, 8))
def test_with_threshold_zero_stopping_never_loses_an_acceptance(name, differences, more):
    planned = len(differences) + more
    if should_stop(name, differences, planned, threshold=0):
        assert not decide(name, [*differences, *[1.0] * more]).accepted


def test_a_finished_candidate_has_nothing_to_stop():
    assert not should_stop("anytime", [0.0] * 8, planned=8)


def test_a_missing_pair_has_used_up_its_turn():
    assert should_stop("anytime", [None] * 5, planned=8, threshold=0)
    with pytest.raises(ValueError, match="hope must be between 0 and 1, got 2"):
        should_stop("anytime", [], planned=8, hope=2)


def inherits(criterion, before, after, rng, *, rounds=3, pairs=16):
    """Say whether a run of three rounds inherits anything, looking after each pair of coin flips."""
    for _ in range(rounds):
        differences = []
        for _ in range(pairs):
            differences.append(float(rng.random() < after) - float(rng.random() < before))
            if criterion.judge(differences).accepted:
                return True
    return False


def test_runs_rarely_inherit_noise_and_mostly_find_a_gain_of_forty_points():
    criterion = for_run(DEFAULT_CRITERION, 3)
    noise = sum(inherits(criterion, 0.5, 0.5, branch_rng(seed, "noise")) for seed in range(200))
    found = sum(inherits(criterion, 0.5, 0.9, branch_rng(seed, "gain")) for seed in range(200))
    assert noise <= 20
    assert found >= 140
