from dspy_combee.conflicts import Conflict, find_conflicts


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
