import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.truncation import cut_middle


@given(st.text(min_size=0, max_size=2000), st.integers(60, 500))
def test_a_cut_text_fits_and_shows_the_cut(text, max_chars):
    cut = cut_middle(text, max_chars)
    assert len(cut) <= max_chars
    if len(text) <= max_chars:
        assert cut == text
    else:
        assert "characters cut" in cut


def test_head_and_tail_stay_and_the_number_is_exact():
    cut = cut_middle("a" * 500 + "b" * 500, 200)
    head, _, tail = cut.partition(" [... ")
    missing = int(tail.split()[0].replace(",", ""))
    kept_tail = tail.partition(" ...] ")[2]
    assert set(head) == {"a"}
    assert set(kept_tail) == {"b"}
    assert len(head) + len(kept_tail) + missing == 1000


def test_too_little_room_is_refused():
    with pytest.raises(ValueError, match="at least 60, got 10"):
        cut_middle("x", 10)
