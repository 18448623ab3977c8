"""Plan the tree of a parallel scan: how many groups a level has, how large they are, how many levels there are.

Combee, section 3.1: `n` reflections go into `floor(sqrt(n))` groups that are aggregated in parallel, and the group
updates into one, so that every call sees about `sqrt(n)` items, its copies besides. Here, too, as long as no call sees
more than `DEFAULT_MAX_FAN_IN` items: past that point groups of `sqrt(n)` outgrow what a call attends to, which is the
overload that the scan is there to avoid, and there are more groups and, where needed, more levels instead.
Pure: it plans, `aggregation.scan` runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SMALL_BATCH = 3
"""Up to this many reflections there is one group of them all: nothing to scan."""
DEFAULT_MAX_FAN_IN = 16
"""The most items, copies counted, that a call sees unless the user says otherwise; with two copies the published groups
stand up to 56 reflections. Chosen by `benchmarks/combee_capacity.py`."""


@dataclass(frozen=True, slots=True)
class Level:
    """One wave of calls."""

    items: int
    """How many distinct items enter the level: reflections at the first one, group updates above."""
    copies: int
    """How often each of them is dealt."""
    group_sizes: tuple[int, ...]
    """How many items each call of the level sees, copies counted; one call a group."""


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The levels from the reflections up to the one update; empty when there is nothing to aggregate."""

    levels: tuple[Level, ...]

    @property
    def calls(self) -> int:
        """How many aggregation calls the plan makes."""
        return sum(len(level.group_sizes) for level in self.levels)

    @property
    def largest_call(self) -> int:
        """How many items the largest call sees."""
        return max((max(level.group_sizes) for level in self.levels), default=0)


def plan_scan(count: int, *, group_size: int | None = None, max_fan_in: int | None = None, copies: int = 1) -> ScanPlan:
    """Plan how `count` reflections become one update.

    One group at the first level means one call in all: there is nothing to scan. Two levels with square-root groups
    are planned as long as they keep the fan-in, else more groups and levels.

    Args:
        count: How many reflections there are.
        group_size: How many distinct reflections a first-level call sees; None means about `sqrt(count)`.
        max_fan_in: The most items that any call may see, copies counted, at least 2; None for what `fan_in_bound`
            says. A number as large as all copies together gives the published tree at any size.
        copies: How often each reflection is dealt at the first level; groups never hold one twice, so it is capped
            by the number of groups, and by `max_fan_in`.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(count, group_size, max_fan_in, copies)
    if count == 0:
        return ScanPlan(levels=())
    fan_in = fan_in_bound(max_fan_in, group_size=group_size, copies=copies)
    copies = min(copies, fan_in)
    groups = _first_level_groups(count, group_size=group_size, max_fan_in=fan_in, copies=copies)
    copies = min(copies, groups)
    first = Level(items=count, copies=copies, group_sizes=near_equal_sizes(count * copies, groups))
    return ScanPlan(levels=(first, *plan_reduce(groups, max_fan_in=fan_in)))


def fan_in_bound(max_fan_in: int | None, *, group_size: int | None, copies: int) -> int:
    """Return the most items that a call sees: what the user says, else the default, or what their group size needs."""
    if max_fan_in is not None:
        return max_fan_in
    return max(DEFAULT_MAX_FAN_IN, (group_size or 0) * copies)


def plan_reduce(count: int, *, max_fan_in: int) -> tuple[Level, ...]:
    """Plan the levels above the first one: `count` group updates become one, no call seeing more than the fan-in."""
    levels: list[Level] = []
    while count > 1:
        groups = math.ceil(count / max_fan_in)
        levels.append(Level(items=count, copies=1, group_sizes=near_equal_sizes(count, groups)))
        count = groups
    return tuple(levels)


def _first_level_groups(count: int, *, group_size: int | None, max_fan_in: int, copies: int) -> int:
    """Return how many groups the first level has: `floor(sqrt(count))` unless a size or the fan-in says more."""
    groups = math.isqrt(count) if group_size is None else math.ceil(count / group_size)
    while groups < count and math.ceil(count * min(copies, groups) / groups) > max_fan_in:
        groups += 1
    return max(1, groups)


def near_equal_sizes(total: int, groups: int) -> tuple[int, ...]:
    """Split `total` into `groups` sizes that differ by at most one, the larger ones first."""
    base, larger = divmod(total, groups)
    return (base + 1,) * larger + (base,) * (groups - larger)


def _check(count: int, group_size: int | None, max_fan_in: int | None, copies: int) -> None:
    if count < 0:
        raise ValueError(f"count must be at least 0, got {count}")
    if group_size is not None and group_size < 1:
        raise ValueError(f"group_size must be at least 1 or None, got {group_size}")
    if max_fan_in is not None and max_fan_in < 2:
        raise ValueError(f"max_fan_in must be at least 2 or None, got {max_fan_in}")
    if copies < 1:
        raise ValueError(f"copies must be at least 1, got {copies}")
