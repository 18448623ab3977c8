import dspy

from dspy_combee.learners.base import Trajectory
from dspy_combee.trajectory_text import render_judgement, render_run

EXAMPLE = dspy.Example(question="2+2?", answer="4").with_inputs("question")


def test_a_run_shows_inputs_steps_outputs_and_error_but_no_label():
    trajectory = Trajectory(
        "r1",
        EXAMPLE,
        None,
        0.0,
        "wrong",
        (("solve", {"question": "2+2?"}, dspy.Prediction(hint="add")),),
        "ValueError: no",
    )
    text = render_run(trajectory, {})
    assert text.splitlines() == [
        "[r1]",
        "step 1, solve, input question: 2+2?",
        "step 1, solve, output hint: add",
        "error: ValueError: no",
    ]


def test_the_judgement_is_a_text_of_its_own():
    told = render_judgement(Trajectory("r1", EXAMPLE, None, 0.5, "round it"))
    assert told == "feedback: round it\nexpected answer: 4\nscore: 0.5"
    assert render_judgement(Trajectory("r1", {"question": "x"})) == "nothing is known"


def test_what_an_agent_repeats_with_every_step_is_sent_once():
    history, steps = "", []
    for number in range(20):
        history += f"thought {number}: " + "x" * 500 + "\n"
        steps.append(("react", {"trajectory": history}, {"next": str(number)}))
    text = render_run(Trajectory("r1", EXAMPLE, trace=tuple(steps)), {}, max_chars=None)
    assert len(text) < 1.3 * len(history)
    assert all(text.count(f"thought {number}:") == 1 for number in range(20))


def test_a_long_run_is_cut_in_the_middle_and_says_so():
    trajectory = Trajectory("r1", EXAMPLE, trace=(("solve", {"question": "a" * 300_000}, {"answer": "short"}),))
    text = render_run(trajectory, {}, max_chars=5_000)
    assert len(text) <= 5_000
    assert "characters cut" in text
    assert "short" in text


def test_images_are_a_placeholder():
    image = dspy.Image("data:image/png;base64," + "A" * 5_000)
    text = render_run(Trajectory("r1", EXAMPLE, trace=(("see", {"picture": image}, {"answer": "x"}),)), {})
    assert "[image]" in text
    assert "AAAA" not in text
