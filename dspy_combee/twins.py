"""Find, among many lessons, one that says what a new one says, without comparing each with each.

Two texts are twins when one contains the other's rule, or when they have the same specific tokens and bounds and
mostly the same words. The index proposes every text that could be a twin, by words that twins must share, and
`is_twin` decides. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache

from dspy_combee.specifics import (
    contains_rule,
    content_words,
    polarity_words,
    same_order,
    similarity,
    specific_tokens,
)

ALIKE = 0.85
"""Two texts of different records with the same specifics are one rule from this similarity on."""
ALIKE_IN_ONE_RECORD = 0.5
"""The same for two readings of one record."""


class TwinIndex:
    """The lessons kept so far, by number. A lesson may change: what it said before is still looked under, in vain."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[str, Sequence[str]]] = {}
        self._by_text: dict[str, int] = {}
        self._by_word: defaultdict[str, dict[int, None]] = defaultdict(dict)
        self._by_rarest_word: defaultdict[str, dict[int, None]] = defaultdict(dict)
        self._by_record: defaultdict[str, dict[int, None]] = defaultdict(dict)
        self._by_specifics: defaultdict[tuple[frozenset[str], frozenset[str], str], dict[int, None]] = defaultdict(dict)

    def put(self, number: int, text: str, record_ids: Sequence[str]) -> None:
        """Add a lesson, or say what it has become."""
        for record_id in record_ids:
            self._by_record[record_id][number] = None
        before = self._kept.get(number)
        self._kept[number] = (text, record_ids)
        if before is not None and before[0] == text:
            return
        words = _words(text)
        for word in words:
            self._by_word[word][number] = None
        self._by_rarest_word[self._rarest(words)][number] = None
        for key in _alike_keys(text):
            self._by_specifics[key][number] = None
        self._by_text.setdefault(text, number)

    def find(self, text: str, record_ids: Sequence[str]) -> int | None:
        """Return the number of a twin, or None: one with this very text, or else the lowest."""
        same = self._by_text.get(text)
        if same is not None and self._kept[same][0] == text:
            return same
        for number in sorted(self._candidates(text, record_ids)):
            if is_twin(self._kept[number], (text, record_ids)):
                return number
        return None

    def _candidates(self, text: str, record_ids: Iterable[str]) -> set[int]:
        words = _words(text)
        # One that contains this text has all of its words, so the rarest is enough to look under ...
        found = set(self._by_word.get(self._rarest(words), ()))
        # ... and of one that this text contains, the rarest word is among this text's words.
        for word in words:
            found.update(self._by_rarest_word.get(word, ()))
        for record_id in record_ids:
            found.update(self._by_record.get(record_id, ()))
        for key in _alike_keys(text):
            found.update(self._by_specifics.get(key, ()))
        return found

    def _rarest(self, words: Iterable[str]) -> str:
        # Ties may fall either way: which word is taken decides where to look, never what is found.
        return min(words, key=lambda word: len(self._by_word[word]) if word in self._by_word else 0)


def is_twin(one: tuple[str, Sequence[str]], other: tuple[str, Sequence[str]]) -> bool:
    """Whether two lessons, each a text and its record ids, say the same."""
    (text, record_ids), (other_text, other_ids) = one, other
    tokens, other_tokens = specific_tokens(text), specific_tokens(other_text)
    if tokens or other_tokens:
        has_content, other_has_content = bool(content_words(text)), bool(content_words(other_text))
        if tokens.isdisjoint(other_tokens) or has_content != other_has_content:
            return False
    if contains_rule(text, other_text) or contains_rule(other_text, text):
        return True
    if tokens != other_tokens or polarity_words(text) != polarity_words(other_text):
        return False
    # One record teaches one rule, so two readings of it may differ in word order; of two records that is a difference.
    if not set(record_ids).isdisjoint(other_ids):
        return similarity(text, other_text) >= ALIKE_IN_ONE_RECORD
    return similarity(text, other_text) >= ALIKE and same_order(text, other_text)


@lru_cache(maxsize=65536)
def _words(text: str) -> frozenset[str]:
    """Return the words a text is looked up under; the empty one finds those that say nothing in particular."""
    words = content_words(text)
    return words if words and specific_tokens(text) else words | {""}


@lru_cache(maxsize=65536)
def _alike_keys(text: str) -> tuple[tuple[frozenset[str], frozenset[str], str], ...]:
    """Return keys of which two texts that are alike share one.

    Of two sets of words that overlap by `ALIKE`, in one fixed order, the first few of each have a word in common
    (prefix filtering); long words come first since they are the rarer ones.
    """
    words = sorted(content_words(text), key=lambda word: (-len(word), word))
    first = len(words) - math.ceil(ALIKE * len(words) - 1e-9) + 1
    specifics = (specific_tokens(text), polarity_words(text))
    return tuple((*specifics, word) for word in words[:first])
