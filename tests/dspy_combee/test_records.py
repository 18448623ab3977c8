import json

import dspy
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.records import render_record, render_value, sendable_record

values = st.recursive(
    st.none() | st.integers() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(values)
def test_anything_becomes_text_that_json_can_hold(value):
    text = render_value(value)
    assert type(text) is str
    json.dumps(text)


@given(st.lists(st.text(min_size=1, max_size=3000), min_size=1, max_size=4), st.integers(500, 3000))
def test_a_bounded_record_fits_and_shows_what_was_cut(texts, max_chars):
    record = {f"field {index}": text for index, text in enumerate(texts)}
    rendered = render_record("r7", record, max_chars=max_chars)
    assert rendered.startswith("[r7]\n")
    assert len(rendered) <= max_chars
    whole = render_record("r7", record)
    assert ("characters cut" in rendered) == (len(whole) > max_chars) or rendered == whole


def test_short_parts_stay_whole_when_a_long_one_is_cut():
    rendered = render_record(
        "r1", {"Inputs": "x" * 5000, "Generated Outputs": "zzz", "Feedback": "use K-17"}, max_chars=600
    )
    assert "Feedback: use K-17" in rendered
    assert "Generated Outputs: zzz" in rendered
    assert "characters cut" in rendered


def test_images_become_placeholders_and_histories_text():
    history = dspy.History(messages=[{"question": "one?", "answer": "1"}, {"question": "two?", "answer": "2"}])
    image = dspy.Image(url="https://example.com/x.png")
    text = render_record("r1", {"Inputs": {"picture": image, "history": history}, "Feedback": "ok"})
    assert "[image]" in text
    assert "example.com" not in text
    assert "question = one?; answer = 1" in text


def test_text_that_no_provider_could_receive_is_repaired():
    text = render_record("r1", {"Inputs": {"page": "caf\udce9"}})
    assert text == "[r1]\nInputs: page = caf?"


def test_a_value_that_cannot_be_shown_is_named_by_its_class():
    class Handle:
        def __str__(self):
            raise RuntimeError("closed")

    assert render_value({"file": Handle(), "page": 3}) == "file = [Handle]; page = 3"


def test_a_record_keeps_its_shape_when_text_that_no_provider_could_receive_is_replaced():
    record = {"Inputs": {"q": "a\ud800b", "n": 3}, "Feedback": ["fine", "c\udfff"]}
    clean = sendable_record(record)
    assert clean == {"Inputs": {"q": "a?b", "n": 3}, "Feedback": ["fine", "c?"]}
    assert sendable_record(clean) is clean
