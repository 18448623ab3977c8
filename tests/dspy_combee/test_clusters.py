import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.clusters import representatives, tfidf_vectors

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
