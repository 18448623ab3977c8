"""Trial memory: everything that was tried, accepted or not, on disk before it is used (EvoCUE).

An append-only file of JSON lines, one record a candidate, trial, confirmation pair and decision. Each record has a key
that says which step of the run it belongs to, so that a resumed run finds what it has paid for. Later proposals read a
compact index, and the trials of one edit on request; both are made from a list of public fields, because full records
may hold the metric's own words.
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dspy_combee.runtime.run_log import RunLog
from dspy_evocue.paired_differences import count_pairs
from dspy_evocue.public_episodes import cut_middle

MemoryKind = Literal["candidate", "trial", "confirmation", "decision"]
"""What a record is about: an edit as it was proposed, one paired trial of it, one pair of its confirmation, or what
was decided about it and why."""

FILE_NAME = "trial_memory.jsonl"
MAX_INDEX_CHARS = 8000
"""How long the index may be, unless asked for otherwise."""


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """One thing that happened to one edit."""

    key: str
    """Which step of the run it belongs to; unique in a memory ("round 1/trial/e3f/t2/rollout 1")."""
    kind: MemoryKind
    edit_id: str
    parent_version: str = ""
    """The program that the edit was tried on."""
    content: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Plain JSON values. Read by the index: of a candidate `text`, `at`, `scope`, `expected_effect` and `round`; of a
    trial and a confirmation `task_id`, `before`, `after`, `status`, `features` and `site`; of a decision `stage`,
    `accepted` and `reason`."""

    def __post_init__(self) -> None:
        if not self.key or not self.edit_id:
            raise ValueError(f"a memory record must have a key and an edit id, got {self.key!r} and {self.edit_id!r}")
        if self.kind not in get_args(MemoryKind):
            raise ValueError(f"kind must be one of {', '.join(get_args(MemoryKind))}, got {self.kind!r}")

    @property
    def gain(self) -> float | None:
        """The paired difference of a trial or confirmation, after - before; None when a score is missing."""
        before, after = self.content.get("before"), self.content.get("after")
        return None if before is None or after is None else after - before

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON values; `from_dict` reads it back."""
        return {
            "key": self.key,
            "kind": self.kind,
            "edit_id": self.edit_id,
            "parent_version": self.parent_version,
            "content": dict(self.content),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MemoryRecord:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: When it is no such record.
        """
        try:
            return cls(
                values["key"], values["kind"], values["edit_id"], values.get("parent_version", ""), values["content"]
            )
        except KeyError as error:
            raise ValueError(f"a memory record must have {error}, got {sorted(values)}") from error


class TrialMemory:
    """The records of a run, in the order in which they were remembered. Safe to use from several threads."""

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        """Read what the directory holds; without one, nothing is kept on disk.

        A line that a killed process tore is skipped. Of two records with one key the first stands.
        """
        self._log = None if directory is None else RunLog(directory, name=FILE_NAME)
        self._lock = threading.Lock()
        self._records: dict[str, MemoryRecord] = {}
        for values in () if self._log is None else self._log.read():
            record = MemoryRecord.from_dict(values)
            self._records.setdefault(record.key, record)
        self.resumed = len(self._records)
        """How many records were there already."""

    def remember(self, record: MemoryRecord) -> MemoryRecord:
        """Keep a record; it is on disk when this returns. Return the one that stands under its key.

        Raises:
            TypeError: When the content is no plain JSON; nothing is kept then.
        """
        with self._lock:
            known = self._records.get(record.key)
            if known is not None:
                return known
            # Kept as it will be read again: tuples become lists, and later changes to the caller's values do nothing.
            kept = MemoryRecord.from_dict(json.loads(json.dumps(record.to_dict())))
            if self._log is not None:
                self._log.append(kept.to_dict())
            self._records[kept.key] = kept
            return kept

    def find(self, key: str) -> MemoryRecord | None:
        """Return what is remembered of that step of the run, so that it need not be paid for again."""
        with self._lock:
            return self._records.get(key)

    def records(self, edit_id: str | None = None, *, kind: MemoryKind | None = None) -> tuple[MemoryRecord, ...]:
        """Return full records in order: of one edit, of one kind, or all."""
        with self._lock:
            return tuple(
                record
                for record in self._records.values()
                if edit_id in (None, record.edit_id) and kind in (None, record.kind)
            )

    def index(self, *, max_chars: int = MAX_INDEX_CHARS) -> str:
        """Return one entry an edit, the latest first: what, where, how its trials went, what was decided.

        When that is longer than `max_chars`, the oldest entries are left out and their number is said.
        """
        by_edit: dict[str, list[MemoryRecord]] = defaultdict(list)
        for record in self.records():
            by_edit[record.edit_id].append(record)
        entries = [_entry(edit_id, records) for edit_id, records in reversed(by_edit.items())]
        shown: list[str] = []
        room = max_chars - len(_left_out(len(entries)))
        for entry in entries:
            room -= len(entry) + 1
            if room < 0:
                break
            shown.append(entry)
        missing = len(entries) - len(shown)
        return "\n".join([*shown, _left_out(missing)] if missing else shown)

    def details(self, edit_id: str, *, max_chars: int = MAX_INDEX_CHARS) -> str:
        """Return the trials and confirmation pairs of one edit, one a line; empty when there are none."""
        lines = [_pair_line(record) for record in self.records(edit_id) if record.kind in ("trial", "confirmation")]
        return cut_middle("\n".join(lines), max_chars)


def _entry(edit_id: str, records: Sequence[MemoryRecord]) -> str:
    """Return what the index says of one edit. Only public fields are read."""
    nothing: Mapping[str, Any] = {}
    proposed = next((record.content for record in records if record.kind == "candidate"), nothing)
    at = proposed.get("at", "an unknown entry")
    places = at if isinstance(at, str) else ", ".join(map(str, at))
    lines = [
        f"- {edit_id} (round {proposed.get('round', '?')}) on {places}, scope {proposed.get('scope', 'call')}: "
        + cut_middle(" ".join(str(proposed.get("text", "")).split()), 300)
    ]
    if proposed.get("expected_effect"):
        lines.append(f"  expected: {cut_middle(str(proposed['expected_effect']), 200)}")
    for kind, name in (("trial", "trials"), ("confirmation", "confirmation")):
        pairs = [record for record in records if record.kind == kind]
        if pairs:
            lines.append(f"  {name}: {count_pairs([pair.gain for pair in pairs])}{_other_statuses(pairs)}")
    for record in records:
        if record.kind == "decision":
            verdict = "accepted" if record.content.get("accepted") else "not accepted"
            stage = record.content.get("stage", "decision")
            lines.append(f"  {stage}: {verdict}. {cut_middle(str(record.content.get('reason', '')), 200)}".rstrip())
    return "\n".join(lines)


def _other_statuses(pairs: Iterable[MemoryRecord]) -> str:
    """Return how many trials did not simply apply the edit."""
    counts: dict[str, int] = defaultdict(int)
    for pair in pairs:
        counts[str(pair.content.get("status", "applied"))] += 1
    others = [f"{count} {status.replace('_', ' ')}" for status, count in sorted(counts.items()) if status != "applied"]
    return f" ({', '.join(others)})" if others else ""


def _pair_line(record: MemoryRecord) -> str:
    content = record.content
    features: Mapping[str, Any] = content.get("features") or {}
    state = ", ".join(f"{name} is {value}" for name, value in sorted(features.items()))
    scores = " -> ".join(
        "?" if score is None else f"{score:g}" for score in (content.get("before"), content.get("after"))
    )
    parts = [f"{record.kind} on {content.get('task_id', '?')}: {content.get('status', 'applied')}, {scores}"]
    parts += [f"at {content['site']}"] if content.get("site") else []
    return "; ".join([*parts, state] if state else parts)


def _left_out(count: int) -> str:
    return f"- ({count} earlier edits are left out here)"
