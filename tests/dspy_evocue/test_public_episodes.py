import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_evocue.public_episodes import PublicEpisode, cut_middle, episode_from


def episode(*texts, **settings):
    return episode_from("t1", {"question": "q"}, [("react", text) for text in texts], 0.0, **settings)


def test_steps_are_numbered_from_one_and_can_be_asked_for():
    shown = episode("a", "b", "c")
    assert shown.history() == "[1] react: a\n[2] react: b\n[3] react: c"
    assert shown.history(first=2, last=2) == "[2] react: b"
    assert shown.history(first=9) == "(no steps)"


@given(st.text(max_size=400), st.integers(40, 200))
def test_a_cut_text_fits_and_says_how_much_is_left_out(text, room):
    cut = cut_middle(text, room)
    assert len(cut) <= room
    if len(text) <= room:
        assert cut == text
    else:
        left_out = int(cut.split("[... ")[-1].split(" characters")[0]) if text.count("[... ") == 0 else None
        assert left_out is None or len(cut.replace(f"\n[... {left_out} characters left out ...]\n", "")) == (
            len(text) - left_out
        )


def test_a_long_step_keeps_its_head_and_tail():
    shown = episode("HEAD" + "x" * 5000 + "TAIL", "next").history(max_chars=4000)
    assert "HEAD" in shown
    assert "TAIL" in shown
    assert "[2] react: next" in shown
    assert len(shown) <= 4000


def test_odd_text_comes_through_unchanged():
    odd = "{question} [[ ## answer ## ]] {{}} %s ${x} 请用中文 🙂"
    assert episode(odd).history() == f"[1] react: {odd}"
    assert episode_from("t", {"q": odd}, [], None).task_text() == f"q: {odd}"


def test_a_task_id_is_one_word_and_a_score_is_a_number():
    with pytest.raises(ValueError, match="a task id must be one word, got 'two words'"):
        PublicEpisode("two words", {})
    with pytest.raises(ValueError, match="final_score must be a finite number or None, got nan"):
        PublicEpisode("t", {}, final_score=float("nan"))
    with pytest.raises(ValueError, match="max_chars must be at least 40, got 3"):
        cut_middle("text", 3)


def test_an_unknown_score_is_no_zero():
    assert PublicEpisode("t", {}).score_text() == "unknown"
    assert PublicEpisode("t", {}, final_score=0.0).score_text() == "0"
