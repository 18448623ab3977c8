"""What a set of operations makes of a playbook's entries: pure, and the same in any order of arrival.

Parallel groups curate against one snapshot and do not know of each other, so their operations may overlap. The rules:

- merges that share an entry become one; an entry is counted once;
- of several new texts for one entry, the one with most records behind it stands (then the longer, then by the
  alphabet), and the others are kept as entries of their own;
- what is merged or updated is not removed by another group;
- additions get their numbers in an order that depends on the operations alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from dspy_combee.playbook.entries import (
    AddEntry,
    MergeEntries,
    Operation,
    PlaybookEntry,
    Refused,
    RemoveEntry,
    UpdateEntry,
    Vote,
    joined_ids,
    natural_key,
    normal_section,
    normal_text,
    section_key,
)

ID_SLUG = "e"


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of a set of operations."""

    entries: tuple[PlaybookEntry, ...]
    """By number."""
    sections: tuple[str, ...]
    next_number: int
    refused: tuple[Refused, ...]
    """What was not carried out, in an order that does not depend on arrival."""


@dataclass(slots=True)
class _Sorted:
    """The operations by kind, each kind in its canonical order, and what was refused on the way."""

    additions: list[AddEntry] = field(default_factory=list)
    updates: list[UpdateEntry] = field(default_factory=list)
    merges: list[MergeEntries] = field(default_factory=list)
    removals: list[RemoveEntry] = field(default_factory=list)
    votes: list[Vote] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


def apply_operations(
    entries: Sequence[PlaybookEntry],
    sections: Sequence[str],
    operations: Iterable[Operation],
    *,
    next_number: int,
    version: int,
) -> Applied:
    """Carry out a set of operations on a snapshot.

    Args:
        entries: The snapshot; ids are unique.
        sections: The known section names, in display order.
        operations: From any number of groups, in any order, repeats allowed.
        next_number: The number of the next new entry.
        version: What new entries carry as `created`.
    """
    by_id = {entry.id: entry for entry in entries}
    sorted_operations = _sort(operations, by_id)
    names = {section_key(name): name for name in reversed(sections)}
    _learn_sections(names, sorted_operations)
    additions = list(sorted_operations.additions)

    _count_votes(by_id, sorted_operations.votes)
    merged_into = _merge(by_id, sorted_operations.merges, additions)
    touched = set(merged_into.values()) | _update(by_id, sorted_operations.updates, merged_into, additions)
    for removal in sorted_operations.removals:
        target = merged_into.get(removal.entry_id, removal.entry_id)
        if target in touched:
            sorted_operations.refused.append(Refused(removal, f"entry {target} was changed by another operation"))
        else:
            by_id.pop(target, None)
    _add(by_id, additions, names, next_number, version)

    ordered = sorted(by_id.values(), key=lambda entry: (entry.number, entry.id))
    ordered = [replace(entry, section=names.get(section_key(entry.section), entry.section)) for entry in ordered]
    new_names = sorted(set(names.values()) - set(sections), key=lambda name: (_first_use(ordered, name), name))
    return Applied(
        entries=tuple(ordered),
        sections=(*sections, *new_names),
        next_number=max([next_number, *(entry.number + 1 for entry in ordered)]),
        refused=tuple(sorted(sorted_operations.refused, key=lambda refused: (refused.reason, repr(refused.operation)))),
    )


def _first_use(entries: Sequence[PlaybookEntry], section: str) -> int:
    return min((entry.number for entry in entries if entry.section == section), default=0)


def _sort(operations: Iterable[Operation], known: dict[str, PlaybookEntry]) -> _Sorted:
    result = _Sorted()
    for operation in sorted(set(operations), key=repr):
        problem = _problem(operation, known)
        if problem:
            result.refused.append(Refused(operation, problem))
        elif isinstance(operation, AddEntry):
            result.additions.append(replace(operation, text=normal_text(operation.text)))
        elif isinstance(operation, UpdateEntry):
            result.updates.append(replace(operation, text=normal_text(operation.text)))
        elif isinstance(operation, MergeEntries):
            ids = tuple(sorted({entry_id for entry_id in operation.entry_ids if entry_id in known}, key=natural_key))
            result.merges.append(replace(operation, text=normal_text(operation.text), entry_ids=ids))
        elif isinstance(operation, RemoveEntry):
            result.removals.append(operation)
        else:
            result.votes.append(operation)
    return result


def _problem(operation: Operation, known: dict[str, PlaybookEntry]) -> str:
    if not isinstance(operation, (RemoveEntry, Vote)) and not normal_text(operation.text):
        return "its text is empty"
    if isinstance(operation, (UpdateEntry, RemoveEntry, Vote)) and operation.entry_id not in known:
        return f"no entry {operation.entry_id!r}"
    if isinstance(operation, MergeEntries) and len(set(operation.entry_ids) & known.keys()) < 2:
        return "a merge needs two known entries"
    return ""


def _learn_sections(names: dict[str, str], operations: _Sorted) -> None:
    wanted = [operation.section for operation in (*operations.additions, *operations.updates, *operations.merges)]
    for name in sorted({normal_section(section) for section in wanted if section is not None}):
        names.setdefault(section_key(name), name)


def _count_votes(by_id: dict[str, PlaybookEntry], votes: Iterable[Vote]) -> None:
    tags: dict[tuple[str, str], set[str]] = {}
    for vote in votes:
        tags.setdefault((vote.entry_id, vote.record_id), set()).add(vote.tag)
    for (entry_id, _), said in tags.items():
        # A run that says both has said nothing.
        tag = next(iter(said)) if len(said) == 1 else "neutral"
        entry = by_id[entry_id]
        by_id[entry_id] = replace(entry, **{tag: getattr(entry, tag) + 1})


def _strength(operation: UpdateEntry | MergeEntries) -> tuple[int, int, str, str]:
    """Rank rival texts for one entry: most records first, then the longer, then the alphabet."""
    return (-len(set(operation.record_ids)), -len(operation.text), operation.text, repr(operation))


def _merge(
    by_id: dict[str, PlaybookEntry], merges: Sequence[MergeEntries], additions: list[AddEntry]
) -> dict[str, str]:
    """Carry out the merges; return the id that now stands for each merged entry."""
    stands_for: dict[str, str] = {}
    for rivals in _overlapping(merges):
        ids = sorted({entry_id for merge in rivals for entry_id in merge.entry_ids}, key=_age(by_id))
        members = [by_id.pop(entry_id) for entry_id in ids]
        chosen, *others = sorted(rivals, key=_strength)
        by_id[ids[0]] = replace(
            members[0],
            section=members[0].section if chosen.section is None else normal_section(chosen.section),
            text=chosen.text,
            helpful=sum(member.helpful for member in members),
            harmful=sum(member.harmful for member in members),
            neutral=sum(member.neutral for member in members),
            record_ids=joined_ids(*(member.record_ids for member in members), chosen.record_ids),
        )
        stands_for.update(dict.fromkeys(ids, ids[0]))
        _keep_beside(additions, others, chosen.text, by_id[ids[0]].section)
    return stands_for


def _age(by_id: dict[str, PlaybookEntry]) -> Callable[[str], tuple[int, str]]:
    return lambda entry_id: (by_id[entry_id].number, entry_id)


def _overlapping(merges: Sequence[MergeEntries]) -> list[list[MergeEntries]]:
    groups: list[tuple[set[str], list[MergeEntries]]] = []
    for merge in merges:
        ids, members = set(merge.entry_ids), [merge]
        for group in [group for group in groups if group[0] & ids]:
            groups.remove(group)
            ids |= group[0]
            members = group[1] + members
        groups.append((ids, members))
    return [members for _, members in groups]


def _update(
    by_id: dict[str, PlaybookEntry],
    updates: Sequence[UpdateEntry],
    merged_into: dict[str, str],
    additions: list[AddEntry],
) -> set[str]:
    rivals: dict[str, list[UpdateEntry]] = {}
    for update in updates:
        rivals.setdefault(update.entry_id, []).append(update)
    touched: set[str] = set()
    for entry_id, candidates in rivals.items():
        if entry_id in merged_into:
            entry = by_id[merged_into[entry_id]]
            _keep_beside(additions, candidates, entry.text, entry.section)
            continue
        chosen, *others = sorted(candidates, key=_strength)
        entry = by_id[entry_id]
        by_id[entry_id] = replace(
            entry,
            text=chosen.text,
            section=entry.section if chosen.section is None else normal_section(chosen.section),
            record_ids=joined_ids(entry.record_ids, chosen.record_ids),
        )
        touched.add(entry_id)
        _keep_beside(additions, others, chosen.text, by_id[entry_id].section)
    return touched


def _keep_beside(
    additions: list[AddEntry], others: Iterable[UpdateEntry | MergeEntries], chosen: str, section: str
) -> None:
    additions.extend(
        AddEntry(other.text, other.section or section, other.record_ids) for other in others if other.text != chosen
    )


def _add(
    by_id: dict[str, PlaybookEntry], additions: Sequence[AddEntry], names: dict[str, str], number: int, version: int
) -> None:
    """Add what is new; an addition that an entry already says word for word only lends it its records."""
    existing = {(section_key(entry.section), entry.text): entry.id for entry in by_id.values()}
    grouped: dict[tuple[str, str], tuple[str, ...]] = {}
    for addition in additions:
        key = (section_key(addition.section), addition.text)
        grouped[key] = joined_ids(grouped.get(key, ()), addition.record_ids)
    for key in sorted(grouped, key=lambda key: ([natural_key(record) for record in grouped[key][:1]], key)):
        if key in existing:
            entry = by_id[existing[key]]
            by_id[entry.id] = replace(entry, record_ids=joined_ids(entry.record_ids, grouped[key]))
            continue
        while f"{ID_SLUG}{number}" in by_id:
            number += 1
        entry_id = f"{ID_SLUG}{number}"
        by_id[entry_id] = PlaybookEntry(
            id=entry_id, section=names[key[0]], text=key[1], record_ids=grouped[key], created=version
        )
        number += 1
