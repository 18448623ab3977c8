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
    room = [base + 1] * larger + [base] * (groups - larger)
    rng.shuffle(room)
    table = _Table(room, rng)
    for _ in range(copies):
        order = list(range(count))
        rng.shuffle(order)
        for position in order:
            table.place(position)
    return table.members


class _Table:
    """The groups while they are being filled."""

    def __init__(self, room: list[int], rng: random.Random) -> None:
        self.members: list[set[int]] = [set() for _ in room]
        self._rng = rng
        self._with_room: list[list[int]] = [[] for _ in range(max(room, default=0) + 1)]
        """By how many positions a group can still take; those at 0 are full."""
        for group, free in enumerate(room):
            self._with_room[free].append(group)

    def place(self, position: int) -> None:
        """Put a position into a group that lacks it, the emptiest first; where all open ones have it, swap one out."""
        while not self._with_room[-1]:
            self._with_room.pop()
        for free in range(len(self._with_room) - 1, 0, -1):
            index = self._index_of_lacking(position, self._with_room[free])
            if index is not None:
                group = self._fill(free, index)
                self.members[group].add(position)
                return
        self._swap_in(position)

    def _index_of_lacking(self, position: int, groups: list[int]) -> int | None:
        if not groups:
            return None
        index = self._rng.randrange(len(groups))
        if position not in self.members[groups[index]]:
            return index
        lacking = [index for index, group in enumerate(groups) if position not in self.members[group]]
        return self._rng.choice(lacking) if lacking else None

    def _fill(self, free: int, index: int) -> int:
        """Take one place of the group at an index of those with so much room; return the group."""
        groups = self._with_room[free]
        groups[index], groups[-1] = groups[-1], groups[index]
        group = groups.pop()
        self._with_room[free - 1].append(group)
        return group

    def _swap_in(self, position: int) -> None:
        """Place the position into a full group by moving one of its members to an open one.

        Such a member exists: the open group holds at most as many items as the full one, and one that it lacks.
        """
        free = self._rng.choice([free for free, groups in enumerate(self._with_room) if free for _ in groups])
        index = self._rng.randrange(len(self._with_room[free]))
        grows = self._with_room[free][index]
        full = [group for group in self._with_room[0] if position not in self.members[group]]
        self._rng.shuffle(full)
        for group in full:
            movable = sorted(self.members[group] - self.members[grows])
            if movable:
                moved = self._rng.choice(movable)
                self.members[group].remove(moved)
                self.members[group].add(position)
                self.members[grows].add(moved)
                self._fill(free, index)
                return
        raise AssertionError("copies < groups leaves a group to swap with")
