"""Augmented shuffle: give every reflection more than one chance, each time among other neighbours.

Combee, section 3.2, with one addition: the copies of an item never meet in one group while there are groups enough,
since a second copy that the same call reads beside the first one teaches nothing (a plain shuffle puts two copies
into one of `sqrt(n)` groups 43 % of the time at n = 4, 18.5 % at n = 25).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def augmented_shuffle(
    items: Sequence[Item], *, copies: int, groups: int, rng: random.Random
) -> tuple[tuple[Item, ...], ...]:
    """Deal `copies` of every item into `groups` groups whose sizes differ by at most one.

    Items are told apart by position, not by value. With `copies <= groups` no group holds an item twice; beyond that
    each group holds an item `copies // groups` times, and no item more often than needed. The order inside a group is
    random.

    Args:
        items: What to deal; not modified.
        copies: How often each item is dealt (`p` in the paper), at least 1.
        groups: How many groups to fill, at least 1. With more groups than copies of items some stay empty.
        rng: The only source of chance: the same state gives the same groups.

    Returns:
        The groups, `groups` tuples.

    Raises:
        ValueError: `copies` or `groups` is below 1.
    """
    if copies < 1:
        raise ValueError(f"copies must be at least 1, got {copies}")
    if groups < 1:
        raise ValueError(f"groups must be at least 1, got {groups}")
    full_rounds, distinct_copies = divmod(copies, groups)
    dealt = _deal_distinct(len(items), distinct_copies, groups, rng)
    everything = list(range(len(items))) * full_rounds
    result: list[tuple[Item, ...]] = []
    for members in dealt:
        positions = [*everything, *members]
        rng.shuffle(positions)
        result.append(tuple(items[position] for position in positions))
    return tuple(result)


def _deal_distinct(count: int, copies: int, groups: int, rng: random.Random) -> list[set[int]]:
    """Deal `copies < groups` copies of each of `count` positions, no position twice into one group."""
    base, larger = divmod(count * copies, groups)
    capacity = [base + 1] * larger + [base] * (groups - larger)
    rng.shuffle(capacity)
    members: list[set[int]] = [set() for _ in range(groups)]
    open_groups = [group for group in range(groups) if capacity[group]]
    for _ in range(copies):
        order = list(range(count))
        rng.shuffle(order)
        for position in order:
            _place(position, members, capacity, open_groups, rng)
    return members


def _place(
    position: int, members: list[set[int]], capacity: list[int], open_groups: list[int], rng: random.Random
) -> None:
    """Put a position into a group that lacks it, the emptiest first; where all open groups have it, swap one out."""
    lacking = [group for group in open_groups if position not in members[group]]
    if lacking:
        room = max(capacity[group] - len(members[group]) for group in lacking)
        target = rng.choice([group for group in lacking if capacity[group] - len(members[group]) == room])
        members[target].add(position)
        filled = target
    else:
        filled = _swap_in(position, members, open_groups, rng)
    if len(members[filled]) == capacity[filled]:
        open_groups.remove(filled)


def _swap_in(position: int, members: list[set[int]], open_groups: list[int], rng: random.Random) -> int:
    """Place the position into a full group by moving one of its members to an open one; return the group that grew.

    Such a member exists: the open group holds at most as many items as the full one, and one that the full one lacks.
    """
    grows = rng.choice(open_groups)
    full = [group for group in range(len(members)) if position not in members[group] and group not in open_groups]
    rng.shuffle(full)
    for group in full:
        movable = sorted(members[group] - members[grows])
        if movable:
            moved = rng.choice(movable)
            members[group].remove(moved)
            members[group].add(position)
            members[grows].add(moved)
            return grows
    raise AssertionError("copies < groups leaves a group to swap with")
