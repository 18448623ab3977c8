import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.clusters import embed_texts, representatives, tfidf_vectors
from dspy_combee.playbook import AddEntry, Playbook
from dspy_combee.retrieval import fitting_entries

TEXTS = [
    "round money to cents",
    "money is rounded to cents",
    "cite the page of the source",
    "the page of the source is cited",
    "answer in French",
    "French is the language to answer in",
]


@pytest.mark.parametrize("seed", range(5))
def test_each_topic_is_represented_once(seed):
    chosen = representatives(tfidf_vectors(TEXTS), 3, random.Random(seed))
    assert sorted(position // 2 for position in chosen) == [0, 1, 2]


@given(st.lists(st.text(max_size=20), min_size=1, max_size=12), st.integers(1, 5), st.integers(0, 9))
def test_representatives_are_distinct_positions_and_repeat_with_the_seed(texts, count, seed):
    chosen = representatives(tfidf_vectors(texts), count, random.Random(seed))
    assert 1 <= len(chosen) <= max(count, 1) or len(texts) <= count
    assert list(chosen) == sorted(set(chosen))
    assert all(0 <= position < len(texts) for position in chosen)
    assert chosen == representatives(tfidf_vectors(texts), count, random.Random(seed))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([[1.0]], r"one vector a text, got shape \(1, 1\) for 2 texts"),
        ([1.0, 2.0], r"one vector a text, got shape \(2,\)"),
        ([[1.0], [1.0, 2.0]], "all of one length"),
        ([[1.0], ["x"]], "one vector a text"),
        ([[1.0], [float("nan")]], "finite numbers"),
        (None, "one vector a text"),
    ],
)
def test_what_an_embedder_returns_is_checked_wherever_one_is_taken(returned, message):
    book = Playbook().apply([AddEntry("answer briefly"), AddEntry("use code A12")])
    for use in (
        lambda embedder: embed_texts(["a", "b"], embedder),
        lambda embedder: book.deduplicated(embed=embedder),
        lambda embedder: fitting_entries(book.entries, {}, top=1, embedder=embedder),
    ):
        with pytest.raises(ValueError, match="embedder must return"):
            use(lambda texts: returned)
    with pytest.raises(ValueError, match=message):
        embed_texts(["a", "b"], lambda texts: returned)
