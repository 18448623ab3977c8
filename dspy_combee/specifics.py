"""What makes a rule specific: its numbers, codes, quoted strings, identifiers and names.

Code that shortens text must not lose these. Pure; used by the loss-checked reduce to judge what a model proposes.
"""

from __future__ import annotations

import re
from functools import lru_cache

_QUOTED = re.compile(r'"([^"\n]{1,80})"|`([^`\n]{1,80})`|“([^”\n]{1,80})”|(?<!\w)\'([^\'\n]{1,80})\'(?!\w)')
_NUMBER = re.compile(r"(?<![\w.])(?<!\d[.,:/])[$€£]?\d[\d.,:/]*(?<![.,:/])(?!\w|[.,:/]\d)%?")
_IDENTIFIER = re.compile(
    r"(?<!\w)(?:"
    r"[A-Za-z]+(?:[-_./][A-Za-z0-9]+)*[-_]?\d[\w-]*"  # K-17, v2, us-east-1, step_3
    r"|\d+[A-Za-z][\w-]*"  # 3DS, 10k
    r"|[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+"  # snake_case
    r"|[a-z]+(?:[A-Z][a-z0-9]+)+"  # camelCase
    r"|(?:[A-Z][a-z0-9]+){2,}"  # CapWords
    r"|[A-Z]{2,}(?:-[A-Z]+)*"  # GREEN, XBRL
    r")(?!\w)"
)
_NAME = re.compile(r"(?<=[a-z,;)] )[A-Z][a-z]+(?: [A-Z][a-z]+)*(?!\w)")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")

_EMPTY_WORDS = frozenset(
    "a an and are as at be been being by can could do does did for from had has have how i if in into is it its just "
    "may might must of on or our s shall should so such t than that the their them then there these they this those "
    "to too us use used using very was we were what when where which while who will with would you your also always "
    "any make sure ensure please rule record records message case cases output answer code".split()
)
"""Words that carry no condition. Negations, bounds and orderings ("not", "only", "before", "over") are kept."""
_POLARITY = frozenset(
    "no not never without only except unless neither nor before after above below over under more less least most "
    "first last until instead both either cannot can't don't isn't won't".split()
)


@lru_cache(maxsize=65536)
def specific_tokens(text: str) -> frozenset[str]:
    """Return the numbers, codes, quoted strings, identifiers and mid-sentence names of a text, casefolded."""
    found: set[str] = set()
    for match in _QUOTED.finditer(text):
        found.add(next(group for group in match.groups() if group is not None))
    for pattern in (_NUMBER, _IDENTIFIER, _NAME):
        found.update(match.group().strip("$€£") for match in pattern.finditer(text))
    return frozenset(" ".join(token.split()).casefold() for token in found if token.strip())


@lru_cache(maxsize=65536)
def content_words(text: str) -> frozenset[str]:
    """Return the words that carry meaning, casefolded, without a plural "s"; polarity words are always among them."""
    return frozenset(_ordered_words(text))


def polarity_words(text: str) -> frozenset[str]:
    """Return the negations, bounds and orderings of a text: two rules that differ in them are different rules."""
    return content_words(text) & _POLARITY


def keeps_specifics(text: str, parts: tuple[str, ...]) -> bool:
    """Whether every specific token of every part can be found in the text, as a whole word or number."""
    return not lost_specifics(text, parts)


def lost_specifics(text: str, parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the specific tokens of the parts that the text lacks, sorted."""
    folded = " ".join(text.casefold().split())
    wanted = frozenset[str]().union(*(specific_tokens(part) for part in parts))
    return tuple(sorted(token for token in wanted if not _has_token(folded, token)))


def contains_rule(container: str, contained: str) -> bool:
    """Whether one rule says all that another says: specific tokens, meaningful words in their order, polarity.

    The order counts: "if RED answer GREEN" and "if GREEN answer RED" have the same words.
    """
    return (
        _is_subsequence(_ordered_words(contained), _ordered_words(container))
        and polarity_words(contained) == polarity_words(container)
        and keeps_specifics(container, (contained,))
    )


def same_order(one: str, other: str) -> bool:
    """Whether the meaningful words that two texts share come in the same order in both."""
    shared = content_words(one) & content_words(other)
    first, second = ([word for word in _ordered_words(text) if word in shared] for text in (one, other))
    return list(dict.fromkeys(first)) == list(dict.fromkeys(second))


def coverage(text: str, part: str) -> float:
    """Return the share of a part's meaningful words that a text has, 0 to 1."""
    wanted = content_words(part)
    return len(wanted & content_words(text)) / len(wanted) if wanted else 1.0


def similarity(one: str, other: str) -> float:
    """Return the share of meaningful words that two texts have in common, 0 to 1 (Jaccard)."""
    first, second = content_words(one), content_words(other)
    return len(first & second) / len(first | second) if first or second else 1.0


@lru_cache(maxsize=65536)
def _ordered_words(text: str) -> tuple[str, ...]:
    words = (word.casefold() for word in _WORD.findall(text))
    return tuple(
        word if word in _POLARITY else _singular(word)
        for word in words
        if word in _POLARITY or word not in _EMPTY_WORDS
    )


def _is_subsequence(part: tuple[str, ...], whole: tuple[str, ...]) -> bool:
    rest = iter(whole)
    return all(word in rest for word in part)


def _has_token(folded: str, token: str) -> bool:
    is_number = not any(character.isalpha() or character == "_" for character in token)
    start = folded.find(token)
    while start != -1:
        before, after = folded[:start][-2:][::-1], folded[start + len(token) :][:2]
        if not (_goes_on(token[0], before, is_number) or _goes_on(token[-1], after, is_number)):
            return True
        start = folded.find(token, start + 1)
    return False


def _goes_on(edge: str, beyond: str, is_number: bool) -> bool:
    """Whether a token goes on beyond its edge: in a longer word, or in a longer number such as 250,000."""
    if not (edge.isalnum() and beyond):
        return False
    return beyond[0].isalnum() or (is_number and beyond[0] in ".,:/" and beyond[1:].isdigit())


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
