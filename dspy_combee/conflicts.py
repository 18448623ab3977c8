"""Which lessons may contradict each other, found by shape: they speak of the same thing and differ in what to do.

A pair is a suspicion, not a verdict: it is shown to the last aggregation call side by side with the evidence of both
sides, and what that call does not settle is kept. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspy_combee.specifics import contains_rule, content_words, polarity_words, similarity, specific_tokens

ALIKE = 0.5
"""The share of meaningful words in common from which two lessons speak of the same thing."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two lessons that may contradict each other, by their positions."""

    first: int
    second: int


def find_conflicts(texts: Sequence[str], *, alike: float = ALIKE) -> tuple[Conflict, ...]:
    """Return the pairs of texts that share most of their words but not their negations or their particulars.

    Texts that share a particular and differ in another ("returns over $50: code A1", "returns over $50: code B2") are
    a pair; texts that share none ("code A1 for returns", "code B2 for refunds") are two lessons, unless all that
    differs is the one particular that each has.

    Args:
        texts: The lessons.
        alike: The share of meaningful words in common from which two texts are compared, 0 to 1.

    Returns:
        Pairs in order of the first, then the second position.
    """
    by_word: dict[str, list[int]] = {}
    found: list[Conflict] = []
    for index, text in enumerate(texts):
        nearby = sorted({other for word in content_words(text) for other in by_word.get(word, ())})
        found.extend(Conflict(other, index) for other in nearby if _contradict(texts[other], text, alike))
        for word in content_words(text):
            by_word.setdefault(word, []).append(index)
    return tuple(sorted(found, key=lambda conflict: (conflict.first, conflict.second)))


def _contradict(one: str, other: str, alike: float) -> bool:
    if similarity(one, other) < alike or contains_rule(one, other) or contains_rule(other, one):
        return False
    if polarity_words(one) != polarity_words(other):
        return specific_tokens(one) == specific_tokens(other)
    ours, theirs = _particulars(one), _particulars(other)
    if len(ours) == len(theirs) == 1 and ours != theirs:
        return _words_without(one, ours) == _words_without(other, theirs)
    return bool(ours & theirs) and bool(ours - theirs) and bool(theirs - ours)


def _particulars(text: str) -> frozenset[str]:
    """Return the specific tokens without those that are part of another one ("9" in "L-9")."""
    tokens = specific_tokens(text)
    return frozenset(token for token in tokens if not any(token != other and token in other for other in tokens))


def _words_without(text: str, particulars: frozenset[str]) -> frozenset[str]:
    return content_words(text) - frozenset[str]().union(*(content_words(particular) for particular in particulars))
