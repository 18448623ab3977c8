from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.conflicts import Conflict, find_conflicts, suspected_pairs


def test_another_code_for_the_same_case_is_a_conflict():
    texts = ["Late goods from France get L-9.", "x", "Late goods from France get L-8."]
    assert find_conflicts(texts) == (Conflict(0, 2),)
    assert find_conflicts(["Late goods get L-9.", "Late goods get L-8."]) == (Conflict(0, 1),)


def test_a_negation_of_the_same_rule_is_a_conflict():
    assert find_conflicts(["Round the final amount.", "Never round the final amount."]) == (Conflict(0, 1),)


def test_codes_of_different_cases_are_no_conflict():
    assert find_conflicts(["Quarter Q1 is code A-1.", "Quarter Q2 is code A-2."]) == ()
    assert find_conflicts(["Code A-1 for late returns.", "Code B-2 for damaged refunds.", "Code C-3 for gifts."]) == ()


def test_the_same_rule_twice_is_no_conflict():
    assert find_conflicts(["Late goods from France get L-9.", "Goods from France that are late get L-9."]) == ()


def test_lines_of_a_table_are_no_conflicts_and_a_pair_beside_them_is():
    table = [f"Parcels marked K{number} go to gate G-{number % 2}." for number in range(20)]
    pair = ["Late goods from France get L-9.", "Late goods from France get L-8."]
    assert find_conflicts([*table, *pair]) == (Conflict(20, 21),)


def test_however_many_outcomes_of_one_case_contradict_each_other():
    texts = [f"Late goods from France get L-{number}." for number in range(6)]
    assert len(find_conflicts(texts)) == 15


RULES = st.lists(
    st.sampled_from(["late", "goods", "from", "France", "not", "L-9", "L-8", "40", "red", "get"]), min_size=1
)


@given(st.lists(RULES.map(" ".join), max_size=12), st.sampled_from([0.2, 0.5, 0.8, 1.0]))
def test_a_pair_is_found_among_many_texts_exactly_when_it_is_found_alone(texts, alike):
    pairs = combinations(enumerate(texts), 2)
    alone = [Conflict(i, j) for (i, one), (j, other) in pairs if suspected_pairs([one, other], alike=alike)]
    assert list(suspected_pairs(texts, alike=alike)) == alone
