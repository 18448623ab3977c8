from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.playbook import AddEntry, Playbook, Vote, approximate_tokens


def voted(**helpful: int) -> Playbook:
    book = Playbook().apply([AddEntry(f"lesson number {name}", "S") for name in sorted(helpful)])
    votes = [
        Vote(entry.id, f"v{i}", "helpful") for entry in book.entries for i in range(helpful[entry.text.split()[-1]])
    ]
    return book.apply(votes)


@given(st.lists(st.text(min_size=1, max_size=80), max_size=8), st.integers(1, 200))
def test_the_limit_holds_and_entries_stay_whole(texts, max_tokens):
    book = Playbook().apply([AddEntry(text, "S") for text in texts])
    limited = book.limited(max_tokens)
    kept = book.keeping(limited.kept)
    assert limited.tokens <= max_tokens
    assert (approximate_tokens(kept.render()) if kept.entries else 0) == limited.tokens
    assert set(limited.kept) | set(limited.dropped) == set(book.entries)


def test_the_least_voted_goes_first_and_the_proved_one_stays():
    book = voted(a=2, b=0, c=1)
    limited = book.limited(approximate_tokens(book.render()) - 1)
    assert [entry.text for entry in limited.dropped] == ["lesson number b"]


def test_a_new_entry_is_protected_from_unproved_ones_but_not_from_proved_ones():
    book = voted(a=3, b=0).apply([AddEntry("lesson number n", "S")])
    one_less = book.limited(approximate_tokens(book.render()) - 1)
    assert [entry.text for entry in one_less.dropped] == ["lesson number b"]
    only_one = book.limited(approximate_tokens(book.keeping(book.entries[:1]).render()))
    assert [entry.text for entry in only_one.kept] == ["lesson number a"]


def test_nothing_is_dropped_under_the_limit():
    book = voted(a=0, b=0)
    assert book.limited(10_000).kept == book.entries
