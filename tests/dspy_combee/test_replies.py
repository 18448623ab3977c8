import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.errors import ReflectionError
from dspy_combee.replies import (
    is_cut_json,
    recover_instruction,
    recover_lists,
    refuse_cut_reply,
    usable_text,
    without_reasoning,
)

TEXT = "Answer with the code.\nUse K-17 for refunds."


@pytest.mark.parametrize(
    "reply",
    [
        TEXT,
        f"```\n{TEXT}\n```",
        f"```text\n{TEXT}\n```",
        f"```plaintext\n{TEXT}\n```\n",
        f"~~~\n{TEXT}\n~~~",
        f"```\n{TEXT}",
        f"{TEXT}\n```",
        json.dumps({"new_instruction": TEXT}),
        "```json\n" + json.dumps({"new_instruction": TEXT}) + "\n```",
        f"[[ ## new_instruction ## ]]\n{TEXT}\n\n[[ ## completed ## ]]",
        f"<think>hm, maybe\nK-18?</think>\n{TEXT}",
        f"<think>hm</think>[[ ## new_instruction ## ]]\n```\n{TEXT}\n```\n[[ ## completed ## ]]",
    ],
)
def test_a_good_instruction_is_taken_out_of_its_wrapping(reply):
    assert recover_instruction(reply) == TEXT


def test_a_fence_inside_the_instruction_stays():
    text = "Answer as in\n```\nK-17\n```\nand nothing else."
    assert recover_instruction(text) == text
    assert recover_instruction(f"```\n{text}\n```") == text


def test_a_fence_that_ends_the_instruction_stays_inside_an_outer_one():
    text = "Answer as in\n```\nK-17\n```"
    assert recover_instruction(f"````\n{text}\n````") == text


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "   \n",
        "<think>never ends",
        "<THINKING>never ends",
        "ends here</think>",
        '{"new_instruction": "   "}',
        '{"new_instruction": null}',
        '{"new_instruction": ["a"]}',
        '{"new_instruction": "Answer with the',
        '{"new_instruction": "Answer", "why": {"a": ',
        "[[ ## new_instruction ## ]]\n\n[[ ## completed ## ]]",
        "```\n\n```",
    ],
)
def test_blank_cut_and_unfinished_replies_are_refused(reply):
    with pytest.raises(ReflectionError):
        recover_instruction(reply)


def test_an_overlong_text_is_refused_with_both_lengths():
    with pytest.raises(ReflectionError, match="at most 40,000 characters, got 200,000"):
        usable_text("x" * 200_000, max_chars=40_000)


DEEP = '{"lessons": ' + "[" * 100_000


def test_a_list_nested_too_deeply_is_refused_and_told_from_a_cut_one():
    whole = DEEP + "]" * 100_000 + "}"
    assert is_cut_json(DEEP)
    assert not is_cut_json(whole)
    with pytest.raises(ReflectionError, match="must be JSON with a list 'lessons'"):
        recover_lists(whole, ["lessons"])


def test_none_is_refused():
    with pytest.raises(ReflectionError, match="must be text, got NoneType"):
        usable_text(None)


@given(st.text(), st.text())
def test_no_reasoning_tag_survives(before, after):
    try:
        cleaned = without_reasoning(f"{before}<think>x</think>{after}")
    except ReflectionError:
        return
    assert "<think>" not in cleaned.casefold()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4), st.data())
def test_json_is_cut_exactly_when_its_end_is_missing(contents, data):
    text = json.dumps(contents)
    assert not is_cut_json(text)
    length = data.draw(st.integers(1, len(text) - 1))
    assert is_cut_json(text[:length])


@given(st.text())
def test_usable_text_is_the_text_without_outer_white_space(text):
    try:
        assert usable_text(text) == without_reasoning(text).strip()
    except ReflectionError:
        assert not text.strip() or "think" in text.casefold()


def test_a_length_finish_is_refused_and_no_history_proves_nothing():
    class Response:
        finish_reason = "length"

    class Choices:
        choices = (Response,)

    for response in (Response, Choices):
        with pytest.raises(ReflectionError, match="raise max_tokens"):
            refuse_cut_reply({"response": response, "outputs": []})
    refuse_cut_reply(None)
    refuse_cut_reply({"response": None, "outputs": ["fine"]})


CUT_LIST = '[{"text": "Never open the door unless'


def test_a_chat_field_of_json_that_was_repaired_is_refused():
    whole = f'[[ ## candidates ## ]]\n{CUT_LIST} it rings"}}]'
    refuse_cut_reply({"response": None, "outputs": [whole, f"{whole}\n\n[[ ## completed ## ]]"]})
    refuse_cut_reply({"response": None, "outputs": ['[[ ## answer ## ]]\n{name} said "no", [see']})
    with pytest.raises(ReflectionError, match="stops before its end"):
        refuse_cut_reply({"response": None, "outputs": [f"[[ ## candidates ## ]]\n{CUT_LIST}"]})


def test_json_that_was_repaired_is_refused():
    with pytest.raises(ReflectionError, match="stops before its end"):
        refuse_cut_reply({"response": None, "outputs": [{"text": '{"new_instruction": "half'}]})
