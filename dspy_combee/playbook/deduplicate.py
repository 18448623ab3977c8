"""Which entries of a playbook say the same, and what folds them into one.

Three tests, cheapest first: the same words in the same order; nearly the same words; and, with the user's embedder,
nearly the same meaning. Two entries whose particulars (numbers, codes, names) or negations differ are never one:
"code A12 for refunds" and "code A13 for refunds" are two lessons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dspy_combee.clusters import Embedder, embed_texts
from dspy_combee.playbook.entries import PlaybookEntry, joined_ids
from dspy_combee.specifics import polarity_words, similarity, specific_tokens


def deduplicate(
    entries: Sequence[PlaybookEntry], *, likeness: float = 0.85, embed: Embedder | None = None, nearness: float = 0.95
) -> tuple[PlaybookEntry, ...]:
    """Fold entries that say the same into the oldest of them; counters add up, provenance is joined.

    Args:
        entries: In any order.
        likeness: The share of meaningful words in common from which two entries are one, 0 to 1.
        embed: The user's embedder; None leaves the last test out.
        nearness: The cosine from which two entries are one, 0 to 1.

    Returns:
        The remaining entries by number.

    Raises:
        ValueError: The embedder did not return one vector of numbers a text.
    """
    ordered = sorted(entries, key=lambda entry: (entry.number, entry.id))
    vectors = embed_texts([entry.text for entry in ordered], embed).tolist() if embed and ordered else None
    same_text: dict[str, int] = {}
    blocks: dict[tuple[frozenset[str], frozenset[str]], list[int]] = {}
    kept: dict[int, PlaybookEntry] = {}
    for index, entry in enumerate(ordered):
        plain = " ".join(entry.text.casefold().split())
        block = blocks.setdefault((specific_tokens(entry.text), polarity_words(entry.text)), [])
        near = (
            other
            for other in block
            if similarity(ordered[other].text, entry.text) >= likeness
            or (vectors is not None and _cosine(vectors[other], vectors[index]) >= nearness)
        )
        twin = same_text[plain] if plain in same_text else next(near, None)
        same_text[plain] = index if twin is None else twin
        if twin is None:
            block.append(index)
            kept[index] = entry
        else:
            kept[twin] = folded(kept[twin], entry)
    return tuple(kept.values())


def folded(entry: PlaybookEntry, twin: PlaybookEntry) -> PlaybookEntry:
    """Return the entry with the counters and records of its twin added."""
    return replace(
        entry,
        helpful=entry.helpful + twin.helpful,
        harmful=entry.harmful + twin.harmful,
        neutral=entry.neutral + twin.neutral,
        record_ids=joined_ids(entry.record_ids, twin.record_ids),
    )


def _cosine(first: Sequence[float], second: Sequence[float]) -> float:
    length = math.sqrt(sum(value * value for value in first) * sum(value * value for value in second))
    return sum(a * b for a, b in zip(first, second, strict=True)) / length if length else 0.0
