"""Group texts by likeness and name one representative a group. Pure; numpy is loaded when first used."""

from __future__ import annotations

import math
import random
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

Embedder = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Texts in, one vector a text out, in order."""

DIMENSIONS = 2_048
MAX_ITERATIONS = 25


def embed_texts(texts: Sequence[str], embedder: Embedder | None) -> Any:
    """Return an array with one row of numbers a text: by the user's embedder, by TF-IDF for None.

    Raises:
        ValueError: The embedder returned something else.
        Exception: What the embedder raised.
    """
    import numpy as np

    if embedder is None:
        return tfidf_vectors(texts)
    returned = embedder(list(texts))
    try:
        vectors = np.asarray(returned, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"embedder must return one vector a text, all of one length: {error}") from error
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise ValueError(f"embedder must return one vector a text, got shape {vectors.shape} for {len(texts)} texts")
    if not np.isfinite(vectors).all():
        raise ValueError("embedder must return finite numbers, got some that are not")
    return vectors


def tfidf_vectors(texts: Sequence[str]) -> Any:
    """Return one vector of unit length a text: word weights by TF-IDF, words hashed into a fixed number of columns.

    The same texts give the same vectors in every process.
    """
    import numpy as np

    counted = [Counter(re.findall(r"\w+", text.casefold())) for text in texts]
    documents = Counter(word for counts in counted for word in counts)
    vectors = np.zeros((len(texts), DIMENSIONS))
    for row, counts in enumerate(counted):
        for word, count in counts.items():
            weight = (1 + math.log(count)) * (math.log((1 + len(texts)) / (1 + documents[word])) + 1)
            vectors[row, zlib.crc32(word.encode("utf-8", "replace")) % DIMENSIONS] += weight
    return _unit_length(vectors)


def representatives(vectors: Any, count: int, rng: random.Random) -> tuple[int, ...]:
    """Cluster vectors by direction into `count` groups and return the position nearest to each group's centre.

    Args:
        vectors: One a row.
        count: How many groups, at least 1; with as many rows or fewer every row stands for itself.
        rng: Where the first centres are drawn from.

    Returns:
        Ascending positions, each once; fewer than `count` when rows coincide.
    """
    import numpy as np

    rows = _unit_length(np.asarray(vectors, dtype=float))
    if len(rows) <= count:
        return tuple(range(len(rows)))
    centres = rows[_spread_out(rows, count, rng)]
    groups = np.zeros(len(rows), dtype=int)
    for iteration in range(MAX_ITERATIONS):
        nearest = np.argmax(rows @ centres.T, axis=1)
        if iteration and (nearest == groups).all():
            break
        groups = nearest
        centres = np.stack([_centre(rows[groups == g], centres[g]) for g in range(len(centres))])
    chosen = set()
    for group in range(len(centres)):
        members = np.flatnonzero(groups == group)
        if len(members):
            chosen.add(int(members[np.argmax(rows[members] @ centres[group])]))
    return tuple(sorted(chosen))


def _spread_out(rows: Any, count: int, rng: random.Random) -> list[int]:
    """Return positions to start from: a random one, then each time the row farthest from those that are there."""
    import numpy as np

    chosen = [rng.randrange(len(rows))]
    likeness = rows @ rows[chosen[0]]
    while len(chosen) < count:
        chosen.append(int(np.argmin(likeness)))
        likeness = np.maximum(likeness, rows @ rows[chosen[-1]])
    return chosen


def _centre(members: Any, before: Any) -> Any:
    return _unit_length(members.mean(axis=0, keepdims=True))[0] if len(members) else before


def _unit_length(rows: Any) -> Any:
    import numpy as np

    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths == 0, 1, lengths)
