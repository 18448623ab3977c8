from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.lessons import (
    Drop,
    Group,
    Lesson,
    LessonUpdate,
    Merge,
    apply_operations,
    attach_lessons,
    fit_lessons,
    merge_in_code,
    one_line,
    render_block,
    split_instruction,
)
from dspy_combee.specifics import keeps_specifics, specific_tokens

conditions = st.sampled_from(
    ["refund over {}", "message from {}", "not a {}", "when the total is {}", "only {} invoices", "before {}"]
)
codes = st.sampled_from(["K-17", "K-18", "GREEN", "RED", "250", "Marta", '"urgent"', "send_mail", "3.5%"])
rules = st.builds(lambda condition, code, value: f"{condition.format(code)}: answer {value}", conditions, codes, codes)
ids = st.lists(st.integers(1, 30).map("r{}".format), max_size=3, unique=True).map(tuple)
lessons = st.lists(st.builds(Lesson, rules, ids), max_size=12)
numbers = st.lists(st.integers(0, 14), min_size=1, max_size=4).map(tuple)
operations = st.lists(
    st.one_of(
        st.builds(Merge, numbers, st.one_of(rules, st.builds("{}; {}".format, rules, rules), st.just(" "))),
        st.builds(Drop, st.integers(0, 14)),
        st.builds(Group, numbers, st.sampled_from(["money", "people", "", "two\nlines"])),
    ),
    max_size=8,
)
awkward = st.text(max_size=60).map(one_line).filter(bool)


def all_tokens(items):
    return frozenset().union(*(specific_tokens(lesson.text) for lesson in items))


def all_ids(items):
    return {rid for lesson in items for rid in lesson.record_ids}


@given(lessons, operations)
def test_operations_lose_no_specific_token_and_no_record(given_lessons, ops):
    applied = apply_operations(given_lessons, ops)
    together = " ; ".join(lesson.text for lesson in applied.lessons)
    assert keeps_specifics(together, tuple(lesson.text for lesson in given_lessons))
    assert all_ids(applied.lessons) == all_ids(given_lessons)


@given(lessons, operations)
def test_lessons_that_no_operation_mentions_stay_as_they_are(given_lessons, ops):
    mentioned = {n for op in ops for n in ([op.number] if isinstance(op, Drop) else op.numbers)}
    kept = apply_operations(given_lessons, ops).lessons
    for number, lesson in enumerate(given_lessons, start=1):
        if number not in mentioned:
            assert lesson.text in [one.text for one in kept]


@given(lessons, operations)
def test_operations_neither_invent_lessons_nor_change_their_input(given_lessons, ops):
    before = list(given_lessons)
    assert len(apply_operations(given_lessons, ops).lessons) <= len(given_lessons)
    assert given_lessons == before


@given(lessons)
def test_no_operation_changes_nothing(given_lessons):
    assert apply_operations(given_lessons, []).lessons == tuple(given_lessons)


def test_a_merge_that_loses_a_token_is_refused_with_the_token():
    applied = apply_operations([Lesson("refund: K-17"), Lesson("invoice: K-18")], [Merge((1, 2), "money: K-17")])
    assert len(applied.lessons) == 2
    assert "the text loses 18, k-18" in applied.refused[0]


def test_a_merge_that_loses_a_negation_is_refused():
    applied = apply_operations([Lesson("do not use K-17"), Lesson("K-17 is old")], [Merge((1, 2), "K-17 is old, use")])
    assert len(applied.lessons) == 2
    assert "negation" in applied.refused[0]


def test_a_merge_joins_the_records_of_its_parts():
    applied = apply_operations(
        [Lesson("refund: K-17", ("r1",)), Lesson("invoice: K-18", ("r2", "r1"))],
        [Merge((1, 2), "refund: K-17, invoice: K-18")],
    )
    assert applied.lessons == (Lesson("refund: K-17, invoice: K-18", ("r1", "r2")),)


def test_a_drop_is_accepted_only_when_another_lesson_says_it():
    full, part = Lesson("refunds over 250 euro go to K-17", ("r1",)), Lesson("refunds over 250: K-17", ("r2",))
    applied = apply_operations([full, part, Lesson("RED")], [Drop(2), Drop(3)])
    assert [one.text for one in applied.lessons] == ["refunds over 250 euro go to K-17", "RED"]
    assert applied.lessons[0].record_ids == ("r1", "r2")
    assert "no other lesson says" in applied.refused[0]


def test_a_general_rule_is_not_dropped_for_one_with_a_bound():
    standing = [Lesson("refunds over 250 go to K-17"), Lesson("refunds go to K-17")]
    assert len(apply_operations(standing, [Drop(2)]).lessons) == 2


@given(lessons)
def test_merging_in_code_loses_no_token_and_no_record(given_lessons):
    merged = merge_in_code(given_lessons)
    assert all_tokens(merged) == all_tokens(given_lessons)
    assert all_ids(merged) == all_ids(given_lessons)
    assert len(merged) <= len(given_lessons)


@given(lessons)
def test_merging_in_code_twice_is_merging_once(given_lessons):
    merged = merge_in_code(given_lessons)
    assert merge_in_code(merged) == merged


def test_rules_with_other_values_or_negations_are_never_folded():
    apart = [
        Lesson("refunds over 250 go to K-17", ("r1",)),
        Lesson("refunds over 250 go to K-18", ("r1",)),
        Lesson("refunds over 250 do not go to K-17", ("r1",)),
    ]
    assert merge_in_code(apart) == tuple(apart)


def test_rules_with_exchanged_conditions_are_never_folded():
    assert len(merge_in_code([Lesson("if RED answer GREEN", ("r1",)), Lesson("if GREEN answer RED", ("r2",))])) == 2
    apart = [
        Lesson("dogs answer RED, cats answer GREEN", ("r1",)),
        Lesson("cats answer RED, dogs answer GREEN", ("r2",)),
    ]
    assert merge_in_code(apart) == tuple(apart)


def test_two_readings_of_one_record_become_one_lesson():
    merged = merge_in_code(
        [Lesson("Refunds over 250 go to K-17.", ("r1",)), Lesson("Always send refunds over 250 to K-17", ("r1", "r2"))]
    )
    assert len(merged) == 1
    assert merged[0].record_ids == ("r1", "r2")


@given(st.text(max_size=80), st.lists(st.builds(Lesson, awkward, st.just(()), awkward | st.just("")), max_size=6))
def test_an_instruction_comes_apart_into_what_it_was_made_of(own, given_lessons):
    if split_instruction(own)[1]:
        return
    text = attach_lessons(own, given_lessons)
    found_own, found = split_instruction(text)
    assert found_own == own
    assert sorted(one.text for one in found) == sorted(one.text for one in given_lessons)
    assert {(one.text, one.heading) for one in found} == {(one.text, one.heading) for one in given_lessons}


@given(st.text(max_size=80), st.lists(st.builds(Lesson, awkward), min_size=1, max_size=6))
def test_attaching_again_replaces_the_block_and_leaves_the_users_text(own, given_lessons):
    once = attach_lessons(own, given_lessons)
    assert attach_lessons(once, given_lessons) == once
    assert once.startswith(split_instruction(own)[0])


@given(lessons, st.integers(0, 600))
def test_lessons_that_do_not_fit_are_named_and_none_is_cut(given_lessons, max_chars):
    kept, left_out = fit_lessons(given_lessons, max_chars)
    assert len(render_block(kept)) <= max_chars
    assert sorted((*kept, *left_out), key=repr) == sorted(given_lessons, key=repr)


def test_the_best_supported_lessons_stay_when_room_is_short():
    strong, weak = Lesson("a strong rule", ("r1", "r2")), Lesson("some weak rule", ("r3",))
    kept, left_out = fit_lessons([weak, strong], len(render_block([strong])))
    assert (kept, left_out) == ((strong,), (weak,))


def test_an_update_shows_the_records_of_each_lesson():
    assert LessonUpdate((Lesson("refund: K-17", ("r1", "r2")),)).render() == "[r1, r2] refund: K-17"


def test_a_merge_of_lessons_without_specific_tokens_must_still_say_what_they_say():
    lessons = [Lesson("Ask for the receipt before a refund"), Lesson("Ask for the receipt before an exchange")]
    assert apply_operations(lessons, [Merge((1, 2), "heading")]).lessons == tuple(lessons)
    merged = apply_operations(lessons, [Merge((1, 2), "Ask for the receipt before a refund or an exchange")])
    assert len(merged.lessons) == 1


def test_a_heading_that_is_only_the_word_is_refused():
    lessons = [Lesson("a: K-1"), Lesson("b: K-2")]
    assert apply_operations(lessons, [Group((1, 2), "heading")]).lessons == tuple(lessons)
