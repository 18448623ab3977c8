"""Cut a lesson down to the sentences that can be its rule, where a model copied more of a feedback than that.

Two kinds of sentences go, and only when others remain: advice that several feedbacks repeat word for word, and remarks
on the case at hand ("C-34 is not right"), whose specific tokens all stand in the record itself. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from dspy_combee.specifics import specific_tokens

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[\"'(\[A-Z0-9])")
_LABEL = re.compile(r"^(?:\([^)]{1,40}\)|(?:the )?(?:specific )?rule(?: is)?\s*[:=]|feedback\s*:)\s*", re.IGNORECASE)


@lru_cache(maxsize=65536)
def sentences(text: str) -> tuple[str, ...]:
    """Return the sentences of a text; joined by spaces they are the text, but for white space."""
    return tuple(part for part in _SENTENCE_END.split(" ".join(text.split())) if part)


def repeated_advice(texts: Iterable[str]) -> frozenset[str]:
    """Return the sentences without any specific token that stand word for word in more than one text, casefolded."""
    counts = Counter(
        sentence.casefold()
        for text in texts
        for sentence in dict.fromkeys(sentences(text))
        if not specific_tokens(sentence)
    )
    return frozenset(sentence for sentence, count in counts.items() if count > 1)


def rule_sentences(text: str, *, advice: frozenset[str] = frozenset(), case: str = "") -> str:
    """Return the text without its label, repeated advice and remarks on the case; never less than one sentence.

    Args:
        text: A lesson as a model wrote it.
        advice: What `repeated_advice` found in the feedbacks of the batch.
        case: The inputs and outputs of the records that the lesson cites.
    """
    unlabelled = _LABEL.sub("", text).strip() or text
    parts = [part for part in sentences(unlabelled) if part.casefold() not in advice] or [unlabelled]
    if len(parts) == 1:
        return parts[0]
    of_case = specific_tokens(case)
    beyond = [part for part in parts if specific_tokens(part) - of_case]
    if beyond:
        parts = [part for part in parts if not specific_tokens(part) or part in beyond]
    return " ".join(parts)
