"""Random generators for parallel branches: each depends on the seed and on its own name, never on timing."""

from __future__ import annotations

import hashlib
import json
import random


def branch_rng(seed: int, *path: str | int) -> random.Random:
    """Return the generator of one branch of a run, the same in every process and on every platform.

    Args:
        seed: The user's seed.
        path: What names the branch, for example `"round", 3, "group", 1`. `1` and `"1"` are different names.

    Raises:
        TypeError: When the seed is not an int, or a part of the path is neither str nor int.
    """
    for part in (seed, *path):
        if isinstance(part, bool) or not isinstance(part, (int, str)):
            raise TypeError(f"a seed must be an int and a path of str and int, got {part!r}")
    if isinstance(seed, str):
        raise TypeError(f"seed must be an int, got {seed!r}")
    digest = hashlib.sha256(json.dumps([seed, *path]).encode("ascii")).digest()
    return random.Random(int.from_bytes(digest, "big"))
