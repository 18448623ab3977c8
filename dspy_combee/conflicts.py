"""Which lessons may contradict each other, found by shape: they speak of the same thing and differ in what to do.

A pair is a suspicion, not a verdict: it is shown to the last aggregation call side by side with the evidence of both
sides, and what that call does not settle is kept. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dspy_combee.specifics import contains_rule, content_words, polarity_words, specific_tokens

ALIKE = 0.5
"""The share of meaningful words in common from which two lessons speak of the same thing."""
MOST_OF_ONE_OUTCOME = 3
"""Of a lesson with more such partners these are lines of a table ("parcels marked K7 go to gate 3"): the same outcome
under another condition. Fewer are shown all the same, since an outcome may also be said before its condition."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two lessons that may contradict each other, by their positions."""

    first: int
    second: int


def find_conflicts(texts: Sequence[str]) -> tuple[Conflict, ...]:
    """Return the pairs of texts that may contradict each other, without those of a table's lines.

    Args:
        texts: The lessons.

    Returns:
        Pairs in order of the first, then the second position.
    """
    suspects = suspected_pairs(texts)
    same_outcome = {one for one in suspects if _differ_before_what_they_share(texts[one.first], texts[one.second])}
    partners = Counter(position for one in same_outcome for position in (one.first, one.second))
    lines = {one for one in same_outcome if max(partners[one.first], partners[one.second]) > MOST_OF_ONE_OUTCOME}
    return tuple(one for one in suspects if one not in lines)


def suspected_pairs(texts: Sequence[str], *, alike: float = ALIKE) -> tuple[Conflict, ...]:
    """Return the pairs of texts that share most of their words but differ in a negation or in one particular.

    "Returns over $50: code A1" and "returns over $50: code B2" are a pair. Texts that differ in more ("code A1 for late
    returns", "code B2 for damaged refunds"; "Q1 is A1", "Q2 is A2") are two lessons.

    Args:
        texts: The lessons.
        alike: The share of meaningful words in common from which two texts are compared, 0 to 1.

    Returns:
        Pairs in order of the first, then the second position.
    """
    found = (
        Conflict(min(pair), max(pair))
        for pair in _pairs_alike([content_words(text) for text in texts], alike)
        if _contradict(texts[min(pair)], texts[max(pair)])
    )
    return tuple(sorted(found, key=lambda conflict: (conflict.first, conflict.second)))


def _pairs_alike(words: Sequence[frozenset[str]], alike: float) -> Iterator[tuple[int, int]]:
    """Yield the positions of each two sets that overlap by at least `alike`, without comparing each with each.

    In one fixed order of words, two such sets share one of their first few (prefix filtering). With the rarest words
    first, those that all lessons have lead to nobody; with the smallest sets first, a set has to be found only by
    larger ones, for which fewer of its words will do.
    """
    frequency = Counter(word for each in words for word in each)
    found_under: dict[str, list[int]] = {}
    for index in sorted(range(len(words)), key=lambda index: len(words[index])):
        each = words[index]
        rarest_first = sorted(each, key=lambda word: (frequency[word], word))
        near = {other for word in rarest_first[: _prefix(each, alike)] for other in found_under.get(word, ())}
        yield from ((other, index) for other in near if _overlap(words[other], each) >= alike)
        for word in rarest_first[: _prefix(each, 2 * alike / (1 + alike))]:
            found_under.setdefault(word, []).append(index)


def _prefix(words: frozenset[str], share: float) -> int:
    """Return how many of a set's words, in a fixed order, hold at least one of any `share` of them."""
    return len(words) - math.ceil(share * len(words) - 1e-9) + 1


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)


def side_by_side(conflict: Conflict, record_ids: Sequence[Sequence[str]]) -> str:
    """Return a pair by its numbers (from 1) with the records behind each side, as a call is shown it.

    Args:
        conflict: The pair.
        record_ids: The records behind each lesson, by position.
    """
    sides = ((position + 1, record_ids[position]) for position in (conflict.first, conflict.second))
    return " <-> ".join(
        f"{number} ({len(ids)} record{'' if len(ids) == 1 else 's'}: {', '.join(ids) or '-'})" for number, ids in sides
    )


def refuted_numbers(
    named: Iterable[int], conflicts: Sequence[Conflict], record_ids: Sequence[Sequence[str]]
) -> frozenset[int]:
    """Return the numbers (from 1) that may go: named, in a shown pair, with no more records than the side that stays.

    Args:
        named: The numbers that the call wants to go.
        conflicts: The pairs that it was shown.
        record_ids: The records behind each lesson, by position.
    """
    wanted = frozenset(named)
    refuted: set[int] = set()
    for conflict in conflicts:
        for loser, winner in ((conflict.first, conflict.second), (conflict.second, conflict.first)):
            has_evidence = len(record_ids[loser]) <= len(record_ids[winner])
            if loser + 1 in wanted and winner + 1 not in wanted | refuted and has_evidence:
                refuted.add(loser + 1)
    return frozenset(refuted)


def _contradict(one: str, other: str) -> bool:
    ours, theirs = _particulars(one), _particulars(other)
    if polarity_words(one) != polarity_words(other):
        differs = ours == theirs
    else:
        differs = len(ours - theirs) == len(theirs - ours) == 1 and (
            bool(ours & theirs) or _words_without(one, ours) == _words_without(other, theirs)
        )
    return differs and not contains_rule(one, other) and not contains_rule(other, one)


def _differ_before_what_they_share(one: str, other: str) -> bool:
    """Whether the one particular in which two texts differ stands, in both, before all that they have in common."""
    ours, theirs = _particulars(one), _particulars(other)
    shared = ours & theirs
    if not shared or ours == theirs:
        return False
    return all(
        _last_position(token, text) < min(_last_position(common, text) for common in shared)
        for text, own in ((one, ours), (other, theirs))
        for token in own - shared
    )


def _last_position(token: str, text: str) -> int:
    return text.casefold().rfind(token.casefold())


@lru_cache(maxsize=65536)
def _particulars(text: str) -> frozenset[str]:
    """Return the specific tokens without those that are part of another one ("9" in "L-9")."""
    tokens = specific_tokens(text)
    return frozenset(token for token in tokens if not any(token != other and token in other for other in tokens))


def _words_without(text: str, particulars: frozenset[str]) -> frozenset[str]:
    return content_words(text) - frozenset[str]().union(*(content_words(particular) for particular in particulars))
