"""With one group, a run of Combee is a run of plain dspy.GEPA."""

import re

import dspy
import pytest
from gepa.strategies.proposal_sampling import IndependentSampling, SameParentSampling


def answer_by_luck(prompt, _number):
    """Answer right or wrong by the question and the length of the instruction, so that candidates differ."""
    question = int(re.findall(r"q(\d+)", prompt)[-1])
    version = len(re.findall("better", prompt))
    draft = "[[ ## draft ## ]]\nd\n\n" if "`draft`" in prompt.split("`answer`")[0] else ""
    is_right = (question * 7 + version * 5) % 11 < 5 + version
    return f"{draft}[[ ## answer ## ]]\n{question if is_right else 'zzz'}\n\n[[ ## completed ## ]]"


def improve(prompt, number):
    current = prompt.count("better")
    return f'{{"new_instruction": "{"better " * (current % 5 + 1)} {number}"}}'


def out_of_reach():
    """Return validation examples one of which is never right: plain dspy.GEPA goes on after a perfect score."""
    answers = ["100", "101", "102", "never"]
    return [dspy.Example(question=f"q{100 + n}", answer=a).with_inputs("question") for n, a in enumerate(answers)]


def run(world, optimizer, student):
    program = world.compile(optimizer, student)
    results = program.detailed_results
    return {
        "instructions": [predictor.signature.instructions for predictor in program.predictors()],
        "candidates": [
            [predictor.signature.instructions for predictor in candidate.predictors()]
            for candidate in results.candidates
        ],
        "parents": results.parents,
        "scores": results.val_subscores,
        "metric calls": results.total_metric_calls,
        "task prompts": world.task_engine.prompts,
        "reflection prompts": world.reflect_engine.prompts,
    }


def both(make_world, batch_size, student, **gepa):
    settings = {"track_stats": True, "reflection_minibatch_size": batch_size, **gepa}
    plain, ours = (make_world(task=answer_by_luck, reflect=improve, val=out_of_reach()) for _ in range(2))
    expected = run(plain, plain.gepa(**settings), student)
    optimizer = ours.combee(gepa=settings, batch_size=batch_size, num_threads=1)  # in order
    found = run(ours, optimizer, student)
    assert expected["reflection prompts"]
    return expected, found, optimizer


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_one_predictor(make_world, seed, batch_size):
    expected, found, optimizer = both(make_world, batch_size, dspy.Predict("question->answer"), seed=seed)
    assert found == expected
    assert optimizer.last_result.rounds[0].batch_size == batch_size


@pytest.mark.parametrize("selector", ["round_robin", "all"])
@pytest.mark.parametrize("seed", [0, 3])
def test_two_predictors_with_merges(make_world, two_steps, selector, seed):
    expected, found, _ = both(
        make_world, 3, two_steps, seed=seed, component_selector=selector, max_metric_calls=90, use_merge=True
    )
    assert found == expected
    assert len(expected["candidates"]) > 2


def test_two_predictors_without_merges(make_world, two_steps):
    expected, found, _ = both(make_world, 2, two_steps, use_merge=False)
    assert found == expected


@pytest.mark.parametrize("strategy", [SameParentSampling(2), IndependentSampling(3)], ids=["same", "independent"])
def test_several_proposals_an_iteration(make_world, strategy):
    expected, found, _ = both(
        make_world, 2, dspy.Predict("question->answer"), gepa_kwargs={"sampling_strategy": strategy}
    )
    for name in ("task prompts", "reflection prompts"):  # their order within one wave is left to the threads
        expected[name], found[name] = sorted(expected[name]), sorted(found[name])
    assert found["reflection prompts"] == expected["reflection prompts"]
    assert found["metric calls"] == expected["metric calls"]


@pytest.mark.parametrize("strategy", ["pareto", "current_best"])
def test_candidate_selection_strategies(make_world, strategy):
    expected, found, _ = both(
        make_world, 3, dspy.Predict("question->answer"), candidate_selection_strategy=strategy, max_metric_calls=90
    )
    assert found == expected


def test_a_metric_without_feedback(make_world):
    def score_only(gold, pred, trace=None, pred_name=None, pred_trace=None):
        return float(pred.answer == gold.answer)

    plain, ours = (
        make_world(task=answer_by_luck, reflect=improve, metric=score_only, val=out_of_reach()) for _ in range(2)
    )
    student = dspy.Predict("question->answer")
    expected = run(plain, plain.gepa(track_stats=True), student)
    assert run(ours, ours.combee(gepa={"track_stats": True}, batch_size=3), student) == expected
