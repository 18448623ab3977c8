"""Playbooks: itemised lessons with ids, sections, counters and provenance. Pure: no model, no DSPy."""

from dspy_combee.playbook.book import Playbook, playbook_of, playbooks_of, set_playbook
from dspy_combee.playbook.entries import (
    AddEntry,
    MergeEntries,
    Operation,
    PlaybookEntry,
    Refused,
    RemoveEntry,
    UpdateEntry,
    Vote,
)
from dspy_combee.playbook.limit import approximate_tokens

__all__ = [
    "AddEntry",
    "MergeEntries",
    "Operation",
    "Playbook",
    "PlaybookEntry",
    "Refused",
    "RemoveEntry",
    "UpdateEntry",
    "Vote",
    "approximate_tokens",
    "playbook_of",
    "playbooks_of",
    "set_playbook",
]
