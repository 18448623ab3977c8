"""The playbook as text: what a prompt shows, and how it is read back without loss.

An entry is one line, `[e3 +4 -1 ~2] text`, and any further lines of its text are indented by two spaces. So nothing
inside an entry can be taken for a heading, another entry or the end of the playbook. Everything that a reader or
another tool may have written by hand is read too: bullets, plain lines, entries before the first heading, and the
`[slug-00001] helpful=1 harmful=0 :: text` form of public ACE playbooks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dspy_combee.playbook.entries import (
    DEFAULT_SECTION,
    ENTRY_ID,
    PlaybookEntry,
    normal_section,
    normal_text,
    section_key,
)

PREAMBLE = "Apply every one of these lessons whose condition holds. Each shows its id, helped (+) and hurt (-) counts:"
_END = "</playbook>"
_BEGIN = re.compile(r"^<playbook next-id=\"(\d+)\">\n", re.MULTILINE)
_END_LINE = re.compile(rf"^{_END}$", re.MULTILINE)
_ENTRY = re.compile(rf"\[({ENTRY_ID})((?: [+~-][0-9]+)*)\](?: (.*)|$)")
_PUBLIC_ACE = re.compile(r"helpful=(\d+)\s+harmful=(\d+)\s*::\s?")
_BULLET = re.compile(r"(?:[-*•]|\d+[.)])\s+(.+)")


@dataclass(frozen=True, slots=True)
class ParsedPlaybook:
    """What a text says about a playbook."""

    entries: tuple[PlaybookEntry, ...]
    sections: tuple[str, ...]
    next_number: int


@dataclass(frozen=True, slots=True)
class SplitInstructions:
    """A predictor's instructions taken apart: the user's own text around the playbook, byte for byte."""

    before: str
    block: str | None
    """The rendered playbook with its markers; None when there is none."""
    after: str

    @property
    def own_text(self) -> str:
        """The instructions without the playbook."""
        return self.before + self.after


def render_entry(entry: PlaybookEntry) -> str:
    """Return an entry as its lines in the prompt."""
    counters = ((entry.helpful, "+"), (entry.harmful, "-"), (entry.neutral, "~"))
    shown = "".join(f" {sign}{count}" for count, sign in counters if count)
    return f"[{entry.id}{shown}] " + entry.text.replace("\n", "\n  ")


def render_block(entries: Sequence[PlaybookEntry], sections: Sequence[str], next_number: int) -> str:
    """Return the whole playbook between its markers."""
    lines = (PREAMBLE, *render_sections(entries, sections)) if entries else ()
    return "\n".join((f'<playbook next-id="{next_number}">', *lines, _END))


def render_sections(entries: Sequence[PlaybookEntry], sections: Sequence[str]) -> tuple[str, ...]:
    """Return the entries as lines under the headings of their sections, the best-voted ones of each first."""
    lines: list[str] = []
    for section in sections:
        members = [entry for entry in entries if entry.section == section]
        lines.append(f"## {section}")
        lines.extend(render_entry(entry) for entry in sorted(members, key=lambda e: (-e.net_votes, e.number, e.id)))
    return tuple(lines)


def split_instructions(instructions: str) -> SplitInstructions:
    """Find the playbook in a predictor's instructions; the last one, should another tool have copied it."""
    found = _find_block(instructions)
    if found is None:
        return SplitInstructions(instructions, None, "")
    before = instructions[: found.start]
    # The blank line that sets the playbook off belongs to it.
    before = before[:-2] if before.endswith("\n\n") else before
    return SplitInstructions(before, instructions[found.start : found.end], instructions[found.end :])


@dataclass(frozen=True, slots=True)
class _Block:
    """Where a text holds a rendered playbook."""

    start: int
    end: int
    next_number: int
    body: str


def _find_block(text: str) -> _Block | None:
    for begin in reversed(list(_BEGIN.finditer(text))):
        end = _END_LINE.search(text, begin.end())
        if end:
            return _Block(begin.start(), end.end(), int(begin.group(1)), text[begin.end() : end.start()])
    return None


def join_instructions(split: SplitInstructions, block: str | None) -> str:
    """Return the user's own text with another playbook in the same place; without one for None."""
    if block is None:
        return split.own_text
    return split.before + ("\n\n" if split.before else "") + block + split.after


def parse_playbook(text: str) -> ParsedPlaybook:
    """Read a playbook from rendered text, from instructions that hold one, or from text written by hand.

    No line is lost: whatever is not a heading or part of an entry becomes an entry of its own, with a new id.
    """
    block = _find_block(text)
    if block:
        body = block.body.removesuffix("\n").removeprefix(PREAMBLE)
        return _read(body, block.next_number, public_form=False)
    return _read(text.replace("\r\n", "\n"), 1, public_form=True)


def _read(body: str, next_number: int, *, public_form: bool) -> ParsedPlaybook:
    found: list[PlaybookEntry] = []
    sections: dict[str, str] = {}
    section = DEFAULT_SECTION
    pieces: list[tuple[str, str, list[str]]] = []
    for line in body.split("\n"):
        if line.startswith("  ") and pieces:
            pieces[-1][2].append(line[2:])
        elif line.startswith("#") and line.lstrip("#").strip():
            section = normal_section(line)
            section = sections.setdefault(section_key(section), section)
        elif line.strip():
            sections.setdefault(section_key(section), section)
            pieces.append((section, line.strip() if public_form else line, []))
    for section, head, more in pieces:
        entry = _read_entry(section, head, more, public_form=public_form)
        if entry.text:
            found.append(entry)
    entries = _with_ids(found, next_number)
    next_free = max([next_number, *(entry.number + 1 for entry in entries)])
    return ParsedPlaybook(tuple(sorted(entries, key=lambda e: (e.number, e.id))), tuple(sections.values()), next_free)


def _read_entry(section: str, head: str, more: list[str], *, public_form: bool) -> PlaybookEntry:
    """Read one entry; its id is empty when the text gives none."""
    bullet = _BULLET.fullmatch(head) if public_form else None
    head = bullet.group(1) if bullet else head
    match = _ENTRY.fullmatch(head)
    if not match:
        return PlaybookEntry(id="", section=section, text=normal_text("\n".join([head, *more])))
    entry_id, counters, first = match.group(1), match.group(2), match.group(3) or ""
    counts = {part[0]: int(part[1:]) for part in counters.split()}
    public = _PUBLIC_ACE.match(first) if public_form else None
    if public:
        counts = {"+": int(public.group(1)), "-": int(public.group(2))}
        first = first[public.end() :]
    return PlaybookEntry(
        id=entry_id,
        section=section,
        text=normal_text("\n".join([first, *more])),
        helpful=counts.get("+", 0),
        harmful=counts.get("-", 0),
        neutral=counts.get("~", 0),
    )


def _with_ids(entries: list[PlaybookEntry], next_number: int) -> list[PlaybookEntry]:
    """Give entries without an id, or with one that another has, a new one."""
    taken: set[str] = set()
    number = max([next_number, *(entry.number + 1 for entry in entries if entry.id)])
    result = []
    for entry in entries:
        if not entry.id or entry.id in taken:
            entry, number = replace(entry, id=f"e{number}"), number + 1
        taken.add(entry.id)
        result.append(entry)
    return result
