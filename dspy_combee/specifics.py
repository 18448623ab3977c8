"""What makes a lesson specific, and whether a rewording still holds it.

A lesson is worth its place in a prompt for its particulars: numbers, codes, quoted strings, identifiers, names. A
merge that drops one of them has lost the lesson, however well it reads. This file finds the particulars by shape
alone; it never asks a model and knows nothing about what they mean.
"""

from __future__ import annotations

import re

_QUOTED = re.compile(r"\"([^\"\n]+)\"|`([^`\n]+)`|“([^”\n]+)”|(?<!\w)'([^'\n]+)'(?!\w)")
_WORD = re.compile(r"[^\W_](?:[\w./%$€£:+#-]*[\w%])?", re.UNICODE)
_SENTENCE_START = re.compile(r"(?:^|[.!?\n\-*]\s*|\[[^\]]*\]\s*)$")
_NEGATIONS = frozenset(
    {
        "no",
        "not",
        "never",
        "none",
        "without",
        "except",
        "unless",
        "avoid",
        "only",
        "neither",
        "nor",
        "cannot",
        "instead",
    }
)


def _plain(text: str) -> str:
    return " ".join(re.sub(r"(?<=\d),(?=\d{3}\b)", "", text).casefold().split())


def _is_specific_word(word: str, *, starts_sentence: bool) -> bool:
    if any(character.isdigit() for character in word):
        return True
    letters = [character for character in word if character.isalpha()]
    if len(letters) >= 2 and all(character.isupper() for character in letters):
        return True
    if "_" in word or re.search(r"\w[./:]\w", word) or re.search(r"[a-z][A-Z]", word):
        return True
    return word[0].isupper() and not starts_sentence and len(word) > 1


def specific_tokens(text: str) -> frozenset[str]:
    """Return the particulars of a text: numbers, codes, quoted strings, identifiers and names, in lower case.

    A capitalised word counts as a name unless it opens a sentence. Thousands separators are taken out of numbers.
    """
    plain_numbers = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    found = {_plain(next(part for part in match.groups() if part)) for match in _QUOTED.finditer(plain_numbers)}
    for match in _WORD.finditer(plain_numbers):
        starts = bool(_SENTENCE_START.search(plain_numbers, max(0, match.start() - 40), match.start()))
        if _is_specific_word(match.group(), starts_sentence=starts):
            found.add(match.group().casefold())
    return frozenset(token for token in found if token)


def negations(text: str) -> frozenset[str]:
    """Return the words of a text that turn its meaning round ("never", "except", "only", ...)."""
    words = re.findall(r"[^\W\d_]+(?:'t)?", text.casefold().replace("\u2019", "'"))
    return frozenset("not" if word.endswith("n't") else word for word in words) & _NEGATIONS


def lost_specifics(part: str, whole: str) -> tuple[str, ...]:
    """Return the particulars of `part` that `whole` does not hold, sorted; empty when nothing would be lost."""
    held = _plain(whole)
    return tuple(
        sorted(
            token
            for token in specific_tokens(part)
            if not re.search(rf"(?<![\w]){re.escape(token)}(?![\w]|\.\d)", held)
        )
    )


def words_of(text: str) -> frozenset[str]:
    """Return the distinct words of a text in lower case, the measure of lexical likeness in this package."""
    return frozenset(re.findall(r"\w+", _plain(text)))
