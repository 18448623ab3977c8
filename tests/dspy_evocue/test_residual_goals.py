import json

import dspy
import pytest

from dspy_combee.testing import scripted_lm
from dspy_evocue.public_episodes import episode_from
from dspy_evocue.residual_goals import check_goals, find_residual_goals
from dspy_evocue.signatures import JudgedRequirement

EPISODE = episode_from(
    "t1",
    {"request": "book a room and tell Ann"},
    [("react", "I will book"), ("tool:book", "booked room 4")],
    final_score=0.0,
)


def judged(requirement, status="observed", step=None):
    return JudgedRequirement(requirement=requirement, status=status, step=step)


def reply_with(requirements):
    text = f"[[ ## requirements ## ]]\n{json.dumps(requirements)}\n\n[[ ## completed ## ]]"
    return scripted_lm(lambda prompt, number: text)


def test_requirements_are_observed_or_missing_by_what_the_model_cites():
    lm = reply_with(
        [
            {"requirement": "a room is booked", "status": "observed", "step": 2},
            {"requirement": "Ann is told", "status": "missing", "step": None},
        ]
    )
    with dspy.context(lm=lm):
        found = find_residual_goals(EPISODE)
    assert found.residual == ("Ann is told",)
    assert found.diagnosis == "goals_missing"
    assert str(found) == "missing: Ann is told"


@pytest.mark.parametrize("step", [0, 3, -1, None])
def test_a_reference_that_does_not_exist_is_dropped_and_proves_nothing(step):
    found = check_goals(EPISODE, [judged("Ann is told", step=step)])
    assert found.residual == ("Ann is told",)
    assert found.unproven == 1


def test_all_observed_and_still_no_score_is_its_own_diagnosis():
    found = check_goals(EPISODE, [judged("a room is booked", step=2)])
    assert found.diagnosis == "wrongly_completed"
    assert "how it was completed" in str(found)


def test_a_solved_episode_an_unknown_score_and_no_goals_are_told_apart():
    def diagnosis(score, *requirements):
        return check_goals(episode_from("t", {}, [("react", "x")], score), list(requirements)).diagnosis

    assert diagnosis(1.0, judged("a", "missing")) == "solved"
    assert diagnosis(None, judged("a", "missing")) == "unknown"
    assert diagnosis(0.0) == "unknown"


def test_a_reply_that_cannot_be_parsed_gives_no_goals_and_says_so():
    with dspy.context(lm=scripted_lm(lambda prompt, number: "no idea")):
        found = find_residual_goals(EPISODE)
    assert found.goals == ()
    assert found.failure == "the reply has no requirements"
    assert str(found) == "requirements unknown"


def test_an_outage_is_raised_not_judged():
    with (
        dspy.context(lm=scripted_lm(lambda prompt, number: RuntimeError("429 too many requests"))),
        pytest.raises(Exception, match="429"),
    ):
        find_residual_goals(EPISODE)


def test_only_public_information_reaches_the_prompt():
    example = dspy.Example(request="book a room", answer="LABEL-7731", rubric="METRIC-REASON").with_inputs("request")
    public = episode_from("t1", example.inputs().toDict(), [("react", "done")], final_score=0.0)
    lm = reply_with([])
    with dspy.context(lm=lm):
        find_residual_goals(public)
    (prompt,) = lm.engine.prompts
    assert "book a room" in prompt
    assert "LABEL-7731" not in prompt
    assert "METRIC-REASON" not in prompt
